"""One forward pass, every layer: tokens and attention are reduced while the model runs.

Memory beyond the returned results is one batch of one state, whatever the depth and the number of images.
Hooks are removed on every way out, exceptions included; the model's own forward is what runs.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from tqdm import tqdm

from vitscope import attention_maps
from vitscope.attention import Normalization
from vitscope.attention_maps import MapStatistic
from vitscope.backbones import Backbone
from vitscope.errors import unknown
from vitscope.reductions import DEFAULT, REDUCTIONS, Reduction, Tokens
from vitscope.source import Pictures, Source
from vitscope.specialization import SplitNorm
from vitscope.transfer import Arrival, Feed

NORMS = ("none", "final", "layer")
_FIRST_BATCH = {"cpu": 64, "cuda": 256}
_ON_THE_WAY = {"cuda": 1}  # batches whose results may still be on their way while the next one is computed


class NonFiniteActivations(FloatingPointError):
    """NaN or infinite activations; the message names the state and counts the images."""


@dataclass(frozen=True)
class Capture:
    """What one pass kept. First axes: S states (−1, 0, 1…L), N images; L blocks for attention.

    `cls` [S, N, D] holds NaN at state −1, where there is no CLS token yet; None for models without CLS.
    `per_image` holds every scalar statistic [S, N] (NaN where it does not exist), `attention` [L, N, H]
    (statistics of your own may be [L, N]).
    `tokens` [S, K, T, D] are the full tokens of the first K images, the row for CLS and registers NaN at −1.
    """

    states: list[int]
    cls: Tensor | None
    patch_mean: Tensor | None
    tokens: Tensor | None
    per_image: dict[str, Tensor]
    attention: dict[str, Tensor]
    labels: np.ndarray | None
    ids: np.ndarray | None
    norm: str
    batch_size: int
    seconds: float
    backbone: str = ""
    extra: dict[str, Tensor] = field(default_factory=dict)

    @property
    def num_images(self) -> int:
        return next(iter({**self.per_image, **self.extra}.values())).shape[1]

    @property
    def stats(self) -> pd.DataFrame:
        """Tidy table: state, statistic, head (−1 where there is none), mean, std, n."""
        rows = []
        for name, values in self.per_image.items():
            rows += [(s, name, -1, *_summary(v)) for s, v in zip(self.states, values, strict=True)]
        for name, values in self.attention.items():
            for layer, by_image in enumerate(values, start=1):
                heads = enumerate(by_image.T) if by_image.ndim == 2 else [(-1, by_image)]
                rows += [(layer, name, h, *_summary(v)) for h, v in heads]
        return pd.DataFrame(rows, columns=["state", "statistic", "head", "mean", "std", "n"])


def _summary(values: Tensor) -> tuple[float, float, int]:
    return float(values.mean()), float(values.std(correction=0)), len(values)


def capture(
    backbone: Backbone,
    images: Pictures,
    *,
    norm: str,
    reductions: Sequence[str] | Mapping[str, Reduction] = DEFAULT,
    keep_tokens: int = 0,
    attention: bool | Mapping[str, MapStatistic] = False,
    batch_size: int | str = "auto",
    ahead: bool | None = None,
    progress: bool | None = None,
) -> Capture:
    """Run a backbone once over `images` and keep reductions of every state.

    `images`: an `Images` set, or a float tensor [N, 3, H, W] that is already transformed, alone or with
    labels. `norm` is applied to every state before it is reduced: "none", "final" (the model's own last
    norm, so that the last state equals `forward_features`), or "layer" (LayerNorm without parameters).
    `reductions`: names of `reductions.REDUCTIONS`, or a mapping of your own. `keep_tokens`: full tokens of
    that many first images. `attention`: also the statistics of `attention_maps.statistics`; a mapping adds
    statistics of your own, functions of a map [n, H, T, T] that give a value an image [n] or a head [n, H].
    `batch_size` "auto" starts at 64 (CPU) or 256 (CUDA) and halves when memory runs out. `ahead`: prepare the
    next batch in a thread, which changes no number; None does so where pictures must be brought to a GPU.

    Errors: `ValueError` for an unknown norm, reduction or shape; `UnknownAttention` with the class;
    `NonFiniteActivations` with the state.
    """
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    named = _named(reductions)
    # None: no attention at all; a mapping: the usual statistics and these
    map_statistics = None if attention is False else {} if attention is True else dict(attention)
    if map_statistics is not None:
        attention_maps.require_known(backbone.name, backbone.model.blocks)
    size = _FIRST_BATCH.get(backbone.device.type, 64) if batch_size == "auto" else int(batch_size)
    if size < 1:
        raise ValueError(f"batch_size must be 'auto' or at least 1, got {batch_size}")
    source = Source(images, backbone)
    if not 0 <= keep_tokens <= len(source):
        raise ValueError(f"keep_tokens={keep_tokens}, but there are {len(source)} images")
    started, store, done = time.perf_counter(), _Store(len(source)), 0
    late = _ON_THE_WAY.get(backbone.device.type, 0)
    coming: list[tuple[int, Arrival]] = []
    bar = tqdm(total=len(source), unit="img", disable=None if progress is None else not progress, leave=False)
    watched = _probe(backbone, norm, named, map_statistics)
    with bar, watched as probe, Feed(source, ahead) as feed, torch.inference_mode():
        while done < len(source):
            try:
                kept = Arrival(probe.run(feed.take(done, size), max(0, keep_tokens - done)))
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if batch_size != "auto" or size == 1 or not _out_of_memory(error):
                    raise
                size //= 2
                feed.drop()
                torch.cuda.empty_cache()
                continue
            coming.append((done, kept))
            count = min(size, len(source) - done)
            done += count
            while coming and (len(coming) > late or done == len(source)):
                start, kept = coming.pop(0)
                store.add(probe.checked(kept.get()), start)
            bar.update(count)
    results = store.results
    return Capture(
        states=backbone.states,
        cls=results.pop("cls", None),
        patch_mean=results.pop("patch_mean", None),
        tokens=results.pop("tokens", None),
        attention={
            k.removeprefix("attention/"): results.pop(k) for k in list(results) if k.startswith("attention/")
        },
        per_image={k: results.pop(k) for k in list(results) if results[k].ndim == 2},
        extra=results,
        labels=source.labels,
        ids=source.ids,
        norm=norm,
        batch_size=size,
        seconds=time.perf_counter() - started,
        backbone=backbone.name,
    )


def _named(reductions: Sequence[str] | Mapping[str, Reduction]) -> dict[str, Reduction]:
    if isinstance(reductions, Mapping):
        return dict(reductions)
    for name in reductions:
        if name not in REDUCTIONS:
            raise unknown("reduction", name, REDUCTIONS)
    return {name: REDUCTIONS[name] for name in reductions}


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class _Store:
    """Results [S, N, …], allocated once on the CPU when their shapes are first seen."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.results: dict[str, Tensor] = {}

    def add(self, kept: dict[str, Tensor], start: int) -> None:
        for name, value in kept.items():
            if name == "tokens":
                parts = [self.results[name], value] if name in self.results else [value]
                self.results[name] = torch.cat(parts, dim=1)
                continue
            if name not in self.results:
                shape = (value.shape[0], self.count, *value.shape[2:])
                self.results[name] = torch.empty(shape, dtype=torch.float32)
            self.results[name][:, start : start + value.shape[1]] = value


class _Probe:
    """Hooks on one model and what they have collected of the current batch."""

    def __init__(
        self,
        backbone: Backbone,
        norm: str,
        reductions: dict[str, Reduction],
        map_statistics: Mapping[str, MapStatistic],
    ) -> None:
        self.backbone, self.reductions, self.map_statistics = backbone, reductions, map_statistics
        final = backbone.model.norm
        self.norm = {"none": lambda x: x, "final": final, "layer": _layer_norm}[norm]
        # where CLS has a norm of its own, the patch embedding, which has no CLS yet, takes that of patches
        split = norm == "final" and isinstance(final, SplitNorm)
        self.norm_of_patches = final.patches if split else self.norm
        self.geometry = attention_maps.Geometry(
            backbone.grid, backbone.num_prefix_tokens, backbone.has_cls, backbone.device
        )
        self.rows: list[dict[str, Tensor]] = []
        self.maps: list[dict[str, Tensor]] = []
        self.keep = 0

    def run(self, batch: Tensor, keep: int) -> dict[str, Tensor]:
        """One forward pass; results [S, n, …] on the model's device."""
        self.rows, self.maps, self.keep = [], [], keep
        self.backbone.model.forward_features(batch)
        names = dict.fromkeys(name for row in self.rows for name in row)
        kept = {name: torch.stack([_or_nan(row, name, self.rows) for row in self.rows]) for name in names}
        for name in self.maps[0] if self.maps else ():
            kept[f"attention/{name}"] = torch.stack([m[name] for m in self.maps])
        return kept

    def checked(self, kept: dict[str, Tensor]) -> dict[str, Tensor]:
        """The results of a batch, once they are on the CPU. Errors: `NonFiniteActivations`."""
        for name, value in kept.items():
            if name == "tokens":  # the row for CLS and registers is NaN at state −1
                value = value.clone()
                value[0, :, : self.backbone.num_prefix_tokens] = 0
            bad = ~torch.isfinite(value.flatten(2).sum(-1)) if value.ndim > 2 else ~torch.isfinite(value)
            for row, images in enumerate(bad):
                state = row + 1 if name.startswith("attention/") else self.backbone.states[row]
                if images.any() and not (state == -1 and name.startswith("cls")):
                    raise NonFiniteActivations(
                        f"{self.backbone.name}: {name} is not finite at state {state} "
                        f"for {int(images.sum())} of {len(images)} images of a batch"
                    )
        return kept

    def at_patch_embedding(self, module, args, output: Tensor) -> None:
        # models with a dynamic size keep the grid as two axes here
        self._reduce(output.flatten(1, -2), prefix=0)

    def at_first_block(self, module, args) -> None:
        self._reduce(args[0], prefix=self.backbone.num_prefix_tokens)

    def at_block(self, module, args, output: Tensor) -> None:
        self._reduce(output, prefix=self.backbone.num_prefix_tokens)

    def at_attention(self, q: Tensor, k: Tensor, normalization: Normalization) -> None:
        self.maps.append(attention_maps.statistics(q, k, self.geometry, self.map_statistics, normalization))

    def _reduce(self, x: Tensor, prefix: int) -> None:
        expected = self.backbone.num_patches
        if x.shape[1] - prefix != expected:
            raise ValueError(
                f"{self.backbone.name}: {x.shape[1]} tokens less {prefix} prefix tokens are not the "
                f"{expected} patches of its {self.backbone.grid[0]} × {self.backbone.grid[1]} grid"
            )
        x = (self.norm if prefix else self.norm_of_patches)(x)
        first = int(self.backbone.has_cls) if prefix else 0
        tokens = Tokens(
            state=self.backbone.states[len(self.rows)],
            cls=x[:, 0] if first else None,
            registers=x[:, first:prefix],
            patches=x[:, prefix:],
        )
        row: dict[str, Tensor] = {}
        for reduction in self.reductions.values():
            row.update(reduction(tokens))
        if self.keep:
            missing = self.backbone.num_prefix_tokens - prefix
            row["tokens"] = F.pad(x[: self.keep].float(), (0, 0, missing, 0), value=float("nan"))
        self.rows.append(row)


def _layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x.float(), x.shape[-1:])


def _or_nan(row: dict[str, Tensor], name: str, rows: list[dict[str, Tensor]]) -> Tensor:
    """The value of a state, or NaN of the right shape where the state has none (CLS before it exists)."""
    return (
        row[name] if name in row else torch.full_like(next(r[name] for r in rows if name in r), float("nan"))
    )


@contextmanager
def _probe(backbone, norm, reductions, map_statistics) -> Iterator[_Probe]:
    model = backbone.model
    if any(module.training for module in model.modules()):
        raise ValueError(f"{backbone.name} is in training mode; call model.eval() first")
    probe = _Probe(backbone, norm, reductions, map_statistics or {})
    with ExitStack() as stack:
        for handle in _attach(probe, model, map_statistics is not None):
            stack.callback(handle.remove)
        yield probe


def _attach(probe: _Probe, model: Any, attention: bool) -> Iterator[RemovableHandle]:
    """Register every hook, one by one, so that a failure half-way leaves none behind."""
    yield model.patch_embed.register_forward_hook(probe.at_patch_embedding)
    yield model.blocks[0].register_forward_pre_hook(probe.at_first_block)
    for block in model.blocks:
        yield block.register_forward_hook(probe.at_block)
        if attention:
            yield from attention_maps.tap(block.attn, probe.at_attention)
