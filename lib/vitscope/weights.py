"""Weight files from outside: safe to open, complete, and told apart from what only looks like one."""

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from vitscope.attention import SOFTMAX, normalization_of
from vitscope.pretrain.zoo import WeightFileError

__all__ = [
    "ENDINGS",
    "WeightFileError",
    "cached_revision",
    "digest",
    "is_random",
    "load_into",
    "require_reachable",
]

ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
# what training scripts wrap a backbone in, outermost first
_WRAPPERS = ("teacher", "model_ema", "state_dict", "model", "student")
_PREFIXES = ("module.", "_orig_mod.", "backbone.", "encoder.", "model.", "visual.", "teacher.", "student.")
_HEADS = ("head.", "head_dist.", "fc_norm.", "attn_pool.", "dino_head.", "ibot_head.", "projection_head.")


def is_random(weights: object) -> bool:
    """Whether `weights` asks for random weights: "random" or "random:SEED", and no file that is called so."""
    return str(weights).partition(":")[0] == "random"


def digest(model: nn.Module) -> str:
    """SHA-256 over names, shapes and values (fp32) of all tensors, and over attention that is no softmax."""
    result = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        result.update(f"{key}{tuple(tensor.shape)}".encode())
        result.update(tensor.detach().cpu().to(torch.float32).contiguous().numpy().tobytes())
    for name, module in model.named_modules():
        attention = normalization_of(module)
        if attention != SOFTMAX:  # equal weights, other numbers
            result.update(f"{name}:{attention.name}".encode())
    return result.hexdigest()


def load_into(model: nn.Module, path: Path) -> dict[str, int]:
    """Fill a model from a local file; every tensor but those of heads must be there with its shape.

    Returns the counts matched, missing and unexpected. Pickled files are opened with `weights_only`; nothing
    in them is ever executed, and there is no way to ask for it.
    """
    state = _unwrapped(_read(path))
    own = model.state_dict()
    state = _without_prefix(state, set(own))
    wrong = [k for k in own if k in state and state[k].shape != own[k].shape and not k.startswith(_HEADS)]
    if wrong:
        k = wrong[0]
        raise WeightFileError(
            f"{path.name}: {len(wrong)} tensors have another shape, first {k}: "
            f"{list(state[k].shape)} in the file, {list(own[k].shape)} in the model; "
            "check architecture and image size"
        )
    fits = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}
    missing = [k for k in own if k not in fits]
    needed = [k for k in missing if not k.startswith(_HEADS)]
    if needed:
        raise WeightFileError(
            f"{path.name} fills {len(fits)} of {len(own)} tensors; {len(needed)} of the backbone "
            f"are missing, first {', '.join(needed[:3])}; "
            f"the file has e.g. {', '.join(list(state)[:3]) or 'none'}"
        )
    model.load_state_dict({**own, **fits}, strict=True)
    return {"matched": len(fits), "missing": len(missing), "unexpected": len(state) - len(fits)}


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        head = file.read(200)
    if head.startswith(b"version https://git-lfs"):
        raise WeightFileError(f"{path.name} is a Git LFS pointer, not the weights; fetch the real file")
    if head.lstrip()[:1] == b"<" and b"\x00" not in head[:8]:  # safetensors begin with a length, high bytes 0
        raise WeightFileError(f"{path.name} is a web page, not weights; download the file itself")
    if path.stat().st_size == 0:
        raise WeightFileError(f"{path.name} is empty")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers raise many kinds; all mean the same to the user
        raise WeightFileError(
            f"{path.name} cannot be opened safely as weights "
            f"({type(error).__name__}: {str(error).splitlines()[0][:200]}); "
            "save plain tensors as .safetensors"
        ) from error


def _unwrapped(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    if not isinstance(state, dict):
        return {}
    for wrapper in _WRAPPERS:
        if isinstance(state.get(wrapper), dict):
            return _unwrapped(state[wrapper])
    return {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}


def _without_prefix(state: dict[str, torch.Tensor], own: set[str]) -> dict[str, torch.Tensor]:
    """The state under the chain of known prefixes that brings most keys to match, "" included."""
    best, front = state, [state]
    for _ in range(4):  # chains as long as student.module.backbone.
        front = [
            {k.removeprefix(prefix): v for k, v in s.items()}
            for s in front for prefix in _PREFIXES if any(k.startswith(prefix) for k in s)
        ]  # fmt: skip
        front = [s for s in front if len(s) == len(state)]
        best = max([best, *front], key=lambda s: len(own & set(s)))
    return best


def require_reachable(name: str, config) -> None:
    """Fail within seconds, before any work, when hub weights are neither cached nor within reach."""
    from vitscope.data.hub import NotReachable, require_answer

    repository = config.hf_hub_id
    if not repository:
        raise NotReachable(f"timm lists no weights for {name!r}; use weights='random' or a local file")
    if cached_revision(config):
        return
    licence = f"Its licence: {config.license}. " if config.license else ""
    way_out = "Pass a local file as weights, use weights='random', or a zoo model (vitscope list backbones)."
    require_answer(f"{name} ({repository})", f"{licence}{way_out}")


def cached_revision(config) -> str | None:
    """Commit of the cached hub weights, or None when they are not cached."""
    from huggingface_hub import try_to_load_from_cache

    repository = (config.hf_hub_id or "").partition("@")[0]
    for file in (
        "model.safetensors",
        "pytorch_model.bin",
        "open_clip_model.safetensors",
        "open_clip_pytorch_model.bin",
    ):
        found = try_to_load_from_cache(repository, file) if repository else None
        if isinstance(found, str | os.PathLike):
            return Path(found).parent.name
    return None
