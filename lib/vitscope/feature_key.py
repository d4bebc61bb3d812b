"""What decides the numbers of a capture, as JSON: the parts of the key under which it is kept.

A part left out would hand out the numbers of something else, so a capture is kept only where all that decides
it can be named. Not among the parts, because captures with either were equal bit for bit: the number of
threads. Where memory runs out and `capture` halves its batch, last bits may differ from those of the batch
that was asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from vitscope import weights
from vitscope.attention_maps import MapStatistic
from vitscope.backbones import Backbone
from vitscope.data.images import Images, fingerprint
from vitscope.reductions import REDUCTIONS, Reduction
from vitscope.source import Pictures

# Every module that a forward pass, its reductions or the making of a picture runs (tested by the imports).
SOURCES = (
    "attention.py", "attention_maps.py", "capture.py", "entmax.py", "projections.py", "reductions.py",
    "source.py", "specialization.py", "transfer.py", "transforms.py", "metrics/similarity.py",
    "data/__init__.py", "data/backgrounds.py", "data/corruptions.py", "data/dense_layouts.py",
    "data/dense_reading.py", "data/dense_sets.py", "data/emoji.py", "data/files.py", "data/hub.py",
    "data/images.py", "data/scenes.py", "data/seeding.py", "data/shifts.py", "data/tasks.py",
)  # fmt: skip
PACKAGES = ("torch", "timm", "torchvision", "pillow", "numpy", "datasets")
_PLAIN = (bool, int, float, str, type(None))


def sources_digest() -> str:
    """SHA-256 over `SOURCES` as they lie on the disk."""
    here = Path(__file__).parent
    return fingerprint(*(hashlib.sha256((here / name).read_bytes()).hexdigest() for name in SOURCES))


_AT_START = sources_digest()


def parts_of(
    backbone: Backbone,
    images: Pictures,
    *,
    norm: str,
    reductions: Sequence[str] | Mapping[str, Reduction],
    keep_tokens: int = 0,
    attention: bool | Mapping[str, MapStatistic] = False,
    batch_size: int | str = "auto",
) -> dict[str, Any] | None:
    """Everything that decides `capture` of these arguments; None where something cannot be named.

    That is: a function of one's own without a `cache_key` (a text attribute that names it and all numbers in
    it); a model with hooks, a replaced forward or modules that are neither torch's, timm's nor in `SOURCES`;
    and sources that were edited since this process began, which may be running the old ones.
    """
    named = _names(reductions, REDUCTIONS)
    statistics = _names(attention if isinstance(attention, Mapping) else {}, {})
    built = _architecture(backbone.model)
    code = sources_digest()
    if named is None or statistics is None or built is None or code != _AT_START:
        return None
    tensors = [*backbone.model.parameters(), *backbone.model.buffers()]
    return {
        "weights": weights.digest(backbone.model),  # as they are now, not as they were described
        "architecture": built,
        "dtype": sorted({str(tensor.dtype) for tensor in tensors}),
        "pictures": _pictures(images),
        "count": len(images[0] if isinstance(images, tuple) else images),
        "transform": backbone.transform.describe(),
        "grid": list(backbone.grid),
        "norm": norm,
        "reductions": named,
        "keep_tokens": keep_tokens,
        "attention": {"kind": backbone.attention, "taken": attention is not False, "own": statistics},
        "batch_size": batch_size,
        "device": arithmetic(backbone.device),
        "packages": {name: installed(name) for name in PACKAGES},
        "code": code,
    }


@cache
def installed(package: str) -> str:
    """Version of a package; it does not change in a process."""
    return metadata.version(package)


def _names(
    given: Sequence[str] | Mapping[str, Callable[..., Any]], known: Mapping[str, Callable[..., Any]]
) -> list[str] | None:
    """A text for each function, in the order given; None where one of them has none."""
    if not isinstance(given, Mapping):
        return [f"={name}" for name in given]
    texts = []
    for name, function in given.items():
        ours = next((f"={one}" for one, that in known.items() if that is function), None)
        key = getattr(function, "cache_key", None)
        if ours is None and not (isinstance(key, str) and key):
            return None
        texts.append(ours or f"{name}: {key}")
    return texts


def _architecture(model: nn.Module) -> str | None:
    """Digest of every module's class and plain attributes: what state dicts do not say (heads, epsilons)."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return None
    seen = []
    for name, module in model.named_modules():
        kind = type(module)
        if not _is_known(kind) or "forward" in vars(module):
            return None
        if module._forward_hooks or module._forward_pre_hooks:
            return None
        plain = {k: repr(v) for k, v in vars(module).items() if k[0] != "_" and _is_plain(v)}
        seen.append((name, f"{kind.__module__}.{kind.__qualname__}", sorted(plain.items())))
    return fingerprint(seen)


def _is_known(kind: type) -> bool:
    package, _, rest = kind.__module__.partition(".")
    return package in ("torch", "timm") or (
        package == "vitscope" and f"{rest.replace('.', '/')}.py" in SOURCES
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(one) for one in value)
    return isinstance(value, _PLAIN)


def _pictures(images: Pictures) -> dict[str, Any]:
    if isinstance(images, Images):
        return {"digest": images.digest, "ids": fingerprint([str(one) for one in images.ids])}
    return {"tensor": tensor_digest(images[0] if isinstance(images, tuple) else images)}


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 over type, shape and bytes of a tensor."""
    plain = tensor.detach().cpu().contiguous()
    content = plain.reshape(-1).view(torch.uint8).numpy()
    return fingerprint(str(plain.dtype), list(plain.shape), content)


def arithmetic(device: torch.device) -> dict[str, Any]:
    """What computes, and how: last bits depend on it.

    On a CPU the instruction set (AVX2 and AVX-512 gave other bits in every statistic), not the model of the
    processor; on a GPU its model, since kernels are chosen by it.
    """
    autocast = torch.is_autocast_enabled(device.type)
    found: dict[str, Any] = {
        "type": device.type,
        "autocast": str(torch.get_autocast_dtype(device.type)) if autocast else None,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if device.type == "cuda":
        cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
        return found | {
            "name": torch.cuda.get_device_name(device),
            "precision": [_precision(cuda, "matmul"), _precision(cudnn, "conv")],
            "kernels": [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(),
                        cuda.cudnn_sdp_enabled()],
            "cudnn": [cudnn.enabled, cudnn.benchmark, cudnn.deterministic],
        }  # fmt: skip
    if device.type == "cpu":
        mkldnn = torch.backends.mkldnn
        return found | {
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "precision": [_precision(mkldnn, name) for name in ("matmul", "conv")],
            "mkldnn": bool(mkldnn.enabled),
        }
    return found


def _precision(backend: object, operation: str) -> str:
    """How an operation rounds float32; "none" is torch's word for its default."""
    set_to = getattr(backend, operation).fp32_precision
    return "ieee" if set_to == "none" else set_to
