"""Information scrambling along one's own training: a few numbers for the logger at every so many steps."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pandas as pd
import torch
from torch import Tensor

from vitscope.backbones import TimmViT, describe
from vitscope.capture import capture
from vitscope.metrics.scrambling import isi_reconstruction
from vitscope.reductions import Tokens
from vitscope.transforms import Pixels, Transform

_REFERENCE = 0  # the state whose R² is 1 after normalisation; always fitted, whatever is reported


class ScramblingMonitor:
    """Information Scrambling Index of a timm ViT while it trains, always on the same pictures.

        ISI(ℓ) = R̃²_all(ℓ) − R̃²_self(ℓ)    (`metrics.scrambling.isi_reconstruction`)

    `images`: float [N, 3, H, W] as the model reads them, or, with `transform`, pictures that it is applied to
    once. `every`: measure at steps that are multiples of it. `states`: which to report; None: all block
    outputs 1…L. `pca`, `maps` and `seed` are those of `isi_reconstruction`.

    The call `monitor(model, step)` returns plain floats by name, for any logger, and `{}` at other steps:

    - `isi/state_03` and so on: ISI of each state; `isi/last` that of the last one, `isi/mean` their mean;
    - `r2_self/last`, `r2_all/last`: R² of the last one before normalisation, without clipping.

    `history` keeps every state of every call. Training goes on as if nothing had happened, also after an
    exception: the model runs in evaluation mode, without gradients or autocast, and then has its training
    flags, its `requires_grad` and the random states back. A wrapped model is passed unwrapped
    (`model.module`).

    Cost: a forward pass over the N images, about 1 s for each state (and the reference, state 0) and 1,000
    images of 64 patches, 96 wide, on one core; and S·N·P·D floats of memory for all S = L + 2 states, 0.3 GiB
    in that case with twelve blocks. A few hundred images show the shape of a curve; single values move by
    about 0.01 with the images of the split.

    Errors: `ValueError` for pictures or states that do not fit, or too few images (says how many are needed);
    `capture.NonFiniteActivations` naming the state where training has diverged.

    >>> from timm.models import VisionTransformer
    >>> _ = torch.manual_seed(0)
    >>> model = VisionTransformer(32, 8, embed_dim=16, depth=2, num_heads=2, num_classes=5)
    >>> x, y = torch.rand(64, 3, 32, 32), torch.randint(5, (64,))
    >>> monitor, sgd = ScramblingMonitor(x, every=2), torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for step in range(4):
    ...     torch.nn.functional.cross_entropy(model(x), y).backward()
    ...     sgd.step()
    ...     values = monitor(model, step)  # logger.log(values, step)
    ...     print(step, sorted(values))
    0 ['isi/last', 'isi/mean', 'isi/state_01', 'isi/state_02', 'r2_all/last', 'r2_self/last']
    1 []
    2 ['isi/last', 'isi/mean', 'isi/state_01', 'isi/state_02', 'r2_all/last', 'r2_self/last']
    3 []
    >>> monitor.history[["step", "state", "r2_all"]].round(1)
       step  state  r2_all
    0     0      1     1.0
    1     0      2     1.0
    2     2      1     1.0
    3     2      2     1.0
    """

    def __init__(
        self,
        images: Tensor | Pixels,
        *,
        transform: Transform | None = None,
        every: int = 1,
        states: Sequence[int] | None = None,
        pca: int = 64,
        maps: int = 3,
        seed: int = 0,
    ) -> None:
        pictures = images if transform is None else transform(images)
        if not isinstance(pictures, Tensor) or pictures.ndim != 4 or not pictures.is_floating_point():
            found = f"{pictures.dtype} {list(pictures.shape)}" if isinstance(pictures, Tensor) else "a list"
            raise ValueError(
                f"expected transformed pictures float [N, 3, H, W], got {found}; pass a transform"
            )
        if every < 1:
            raise ValueError(f"every must be at least 1 step, got {every}")
        if states is not None and (not len(states) or len(set(states)) != len(states)):
            raise ValueError(f"states must be different and at least one, got {list(states)}")
        self.images, self.every = pictures, every
        self.states = None if states is None else sorted(states)
        self.pca, self.maps, self.seed = pca, maps, seed
        self._rows: list[tuple[int, int, float, float, float]] = []

    def __call__(self, model: TimmViT, step: int) -> dict[str, float]:
        """Measure `model` if `step` is a multiple of `every`."""
        if step % self.every:
            return {}
        with _undisturbed(model):
            rows = [(step, *row) for row in self._measure(model)]
        self._rows += rows
        isi = {state: value for _, state, value, _, _ in rows}
        *_, (_, _, last, r2_self, r2_all) = rows
        return {f"isi/state_{state:02d}": value for state, value in isi.items()} | {
            "isi/last": last,
            "isi/mean": sum(isi.values()) / len(isi),
            "r2_self/last": r2_self,
            "r2_all/last": r2_all,
        }

    @property
    def history(self) -> pd.DataFrame:
        """Tidy table of all calls: step, state, isi, r2_self, r2_all."""
        return pd.DataFrame(self._rows, columns=["step", "state", "isi", "r2_self", "r2_all"])

    def _measure(self, model: TimmViT) -> list[tuple[int, float, float, float]]:
        """State, ISI, R²_self and R²_all of each state to report."""
        height, width = self.images.shape[2:]
        half = (0.5, 0.5, 0.5)  # never applied: the pictures are transformed
        name = f"the {type(model).__name__} in training"
        device = str(next(model.parameters()).device)
        backbone = describe(name, model, Transform(height, width, half, half), device=device)
        states = backbone.states[2:] if self.states is None else self.states
        unknown = [state for state in states if state not in backbone.states]
        if unknown:
            raise ValueError(
                f"{name} has states {backbone.states[0]} to {backbone.states[-1]}, no {unknown}; "
                "change the monitor's states"
            )
        captured = capture(
            backbone, self.images, norm="none", reductions={"patches": _patches}, progress=False
        )
        tokens = dict(zip(captured.states, captured.extra["patches"], strict=True))
        found = isi_reconstruction(
            tokens.__getitem__,
            tokens[-1],
            states=[_REFERENCE, *(state for state in states if state != _REFERENCE)],
            reference=_REFERENCE,
            pca=self.pca,
            maps=self.maps,
            draws=1,  # intervals are not reported
            seed=self.seed,
        )
        columns = (found.states, found.isi.tolist(), found.r2_self.tolist(), found.r2_all.tolist())
        return sorted(row for row in zip(*columns, strict=True) if row[0] in states)


def _patches(tokens: Tokens) -> dict[str, Tensor]:
    return {"patches": tokens.patches.float()}


@contextmanager
def _undisturbed(model: TimmViT) -> Iterator[None]:
    """No gradients and no autocast inside; afterwards flags and random states as they were."""
    training = [(module, module.training) for module in model.modules()]
    needed = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    device = next(model.parameters()).device
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        # autocast would also keep its casts of the weights, made without gradients, for the next step
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.no_grad())
        try:
            yield
        finally:
            for module, flag in training:
                module.training = flag
            for parameter, flag in needed:
                parameter.requires_grad_(flag)
