"""Any timm ViT behind one description: its tokens, its grid, its own transform, its digest.

A backbone comes from the embedded zoo, from the hub by its timm name, from a local weight file, or with
random weights. What it is (prefix tokens, registers, CLS or none) is read from the model, never guessed from
its name.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config
from torch import nn

from vitscope import weights as weight_files
from vitscope.attention import KINDS, normalization_of, swap_attention
from vitscope.data import embedded
from vitscope.errors import UnknownName, unknown
from vitscope.pretrain.zoo import read_weights
from vitscope.transforms import Transform

ZOO_MEAN_STD = (0.5, 0.5, 0.5)
DTYPES = ("float32", "bfloat16", "float16")

# A plain ViT of timm: a module with patch_embed, blocks, norm and num_prefix_tokens (`_require_plain_vit`).
# Any, because no class of timm covers all of these and torch types every module attribute as Tensor | Module.
TimmViT = Any


class UnsupportedModel(ValueError):
    """A model that is no plain ViT; the message names its class and what is missing."""


@dataclass(frozen=True)
class Backbone:
    """A frozen ViT in evaluation mode, and what one must know to read its tokens.

    `grid` is (rows, columns) of patches; tokens are [CLS?, registers…, patches row by row]. `attention` names
    the attention map's normalization. `source` says where the weights came from.
    """

    name: str
    model: TimmViT = field(repr=False)
    depth: int
    width: int
    num_prefix_tokens: int
    has_cls: bool
    num_registers: int
    grid: tuple[int, int]
    transform: Transform
    digest: str
    source: dict
    attention: str = "softmax"

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def states(self) -> list[int]:
        """−1 patch embedding, 0 what the first block reads, 1…L block outputs."""
        return list(range(-1, self.depth + 1))


def zoo_names() -> list[str]:
    """Names of the embedded zoo."""
    files = (Path(f) for f in embedded.manifest())
    return [f.stem for f in files if f.parent == Path("zoo") and f.suffix == ".safetensors"]


def snapshots(name: str) -> list[int]:
    """Images seen at each embedded snapshot along the training of a zoo model; load one as "NAME@IMAGES"."""
    folder = Path("zoo") / name
    files = (Path(f) for f in embedded.manifest())
    return sorted(int(f.stem) for f in files if f.parent == folder)


def card(name: str) -> dict:
    """The card of a zoo model: recipe, command, data, seconds, accuracies, training curve, digest."""
    if name not in zoo_names():
        raise unknown("zoo model", name, zoo_names())
    return json.loads(embedded.verified(f"zoo/{name}.json").read_text(encoding="utf-8"))


def available() -> list[str]:
    """The embedded zoo, then every ViT of timm that this library reads by its attention class."""
    return [*zoo_names(), *timm.list_models(["vit_*", "deit*", "eva*", "beit*"])]


def load(
    name: str,
    *,
    weights: str | Path = "auto",
    img_size: int | tuple[int, int] | None = None,
    device: str = "auto",
    attention: str = "auto",
    dtype: str = "float32",
) -> Backbone:
    """A backbone, ready to be captured.

    `name`: a zoo name, a snapshot along its training ("twin_s@25600"), a timm name with or without tag, or
    the path of a zoo file. `weights`: "auto" (the zoo's file, or the hub), "random" or "random:SEED", or the
    path of a local weight file. `img_size` must be a multiple of the patch; the position embedding is
    resampled to it (bicubic, timm's rule). `attention`: "auto" leaves what the model was trained with,
    "softmax" and "entmax15" change it for evaluation only (`attention.swap_attention`). `dtype`: weights
    and arithmetic of the forward pass, "float32", "bfloat16" or "float16"; capture reduces in float32.

    Errors: `UnknownName` with near matches; `hub.NotReachable` when weights are not there and cannot be
    fetched; `weights.WeightFileError` unless every tensor of the backbone is filled; `UnsupportedModel` for
    models that are no plain ViT; `ValueError` for sizes that no patch grid fits.
    """
    if attention not in ("auto", *KINDS):
        raise unknown("attention", attention, ["auto", *KINDS])
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    found = _load(name, weights, img_size, device)
    changes: dict[str, Any] = {}
    if attention not in ("auto", found.attention):
        swap_attention(found.model, attention)
        changes |= {"attention": "swapped for evaluation"}
    if dtype != "float32":
        found.model.to(getattr(torch, dtype))
        changes |= {"dtype": dtype}
    if not changes:
        return found
    source, digest = {**found.source, **changes}, weight_files.digest(found.model)
    return replace(found, attention=_attention_of(found.model), source=source, digest=digest)


def _load(name: str, weights, img_size, device) -> Backbone:
    path = Path(name).expanduser()
    if path.suffix in weight_files.ENDINGS:
        if not path.is_file():
            raise FileNotFoundError(f"no weight file {path}")
        return _from_zoo(path.stem, path, "zoo file", weights, img_size, device)
    if name.partition("@")[0] in zoo_names():
        kind = "zoo snapshot" if "@" in name else "zoo"
        return _from_zoo(name, zoo_file(name), kind, weights, img_size, device)
    return _from_timm(name, weights, img_size, device)


def zoo_file(name: str) -> Path:
    """The verified file of a zoo model, or of a snapshot along its training named "NAME@IMAGES"."""
    model, at, _ = name.partition("@")
    if not at:
        return embedded.verified(f"zoo/{model}.safetensors")
    found = {f"{model}@{count}": count for count in snapshots(model)}
    if name not in found:
        raise unknown("snapshot", name, found)
    return embedded.verified(f"zoo/{model}/{found[name]:07d}.safetensors")


def resolve_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, and no CUDA device is there; use 'cpu' or 'auto'")
    return torch.device(device)


def _from_zoo(name: str, file: Path, kind: str, weights, img_size, device) -> Backbone:
    model, architecture = read_weights(file)
    source: dict = {"kind": kind}
    if weight_files.is_random(weights):
        with _seeded(weights) as seed:
            model = architecture.build()
        source = {"kind": "random", "seed": seed}
    elif str(weights) != "auto":
        model, found = read_weights(_existing(weights))
        if found != architecture:
            raise weight_files.WeightFileError(
                f"{Path(weights).name} holds {found}, not the {architecture} of {name}; load it by its path"
            )
        source = {"kind": "local file", "file": Path(weights).name}
    height, width = _size(img_size, (architecture.img_size,) * 2, (architecture.patch_size,) * 2, name)
    if (height, width) != (architecture.img_size,) * 2:
        model.set_input_size(img_size=(height, width))
        source["pos_embed"] = f"resampled from {architecture.img_size} px (bicubic)"
    transform = Transform(height, width, ZOO_MEAN_STD, ZOO_MEAN_STD)
    return describe(name, model, transform, source, device)


def _from_timm(name: str, weights, img_size, device) -> Backbone:
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        raise unknown("backbone", name, available())
    if name != architecture and name not in timm.list_pretrained(f"{architecture}*"):
        raise unknown("pretrained tag of", name, timm.list_pretrained(f"{architecture}*"))
    config = timm.get_pretrained_cfg(name) or timm.get_pretrained_cfg(architecture)
    if config is None:
        raise UnsupportedModel(f"{name}: timm does not say how its pictures are prepared")
    probe = nn.Module()
    probe.pretrained_cfg = config.to_dict()
    data = resolve_model_data_config(probe)
    options: dict = {}
    if img_size is not None:
        options["img_size"] = img_size if isinstance(img_size, tuple) else (img_size, img_size)
    source: dict
    model: TimmViT
    try:
        # a skeleton without memory: sizes and classes are refused before anything is fetched or filled
        with torch.device("meta"):
            skeleton: TimmViT = timm.create_model(name, pretrained=False)
        _require_plain_vit(name, skeleton)
        if options:
            _size(options["img_size"], options["img_size"], tuple(skeleton.patch_embed.patch_size), name)
        if weight_files.is_random(weights):
            with _seeded(weights) as seed:
                model = timm.create_model(name, pretrained=False, **options)
            source = {"kind": "random", "seed": seed}
        elif str(weights) == "auto":
            weight_files.require_reachable(name, config)
            model = timm.create_model(name, pretrained=True, **options)
            source = {"kind": "hub", "repository": config.hf_hub_id, "licence": config.license,
                      "revision": weight_files.cached_revision(config)}  # fmt: skip
        else:
            file = _existing(weights)
            model = timm.create_model(name, pretrained=False, **options)
            report = weight_files.load_into(model, file)
            source = {"kind": "local file", "file": file.name, **report}
    except AssertionError as error:  # timm asserts on sizes; say which would fit
        raise ValueError(f"{name}: {error}") from error
    _require_plain_vit(name, model)
    patch = model.patch_embed.patch_size
    default = options.get("img_size") or model.patch_embed.img_size
    height, width = _size(options.get("img_size"), tuple(default), tuple(patch), name)
    transform = Transform(
        height,
        width,
        tuple(data["mean"]),
        tuple(data["std"]),
        data["interpolation"],
        data["crop_pct"],
        data["crop_mode"],
    )
    return describe(name, model, transform, source, device)


def _require_plain_vit(name: str, model: nn.Module) -> None:
    missing = [
        part for part in ("patch_embed", "blocks", "norm", "num_prefix_tokens") if not hasattr(model, part)
    ]
    if missing:
        raise UnsupportedModel(
            f"{name} ({type(model).__name__}) is no plain ViT: it has no {', '.join(missing)}"
        )


def describe(
    name: str, model: TimmViT, transform: Transform, source: dict | None = None, device: str = "cpu"
) -> Backbone:
    """The `Backbone` of a timm ViT that is already built (one of your own, say). Sets evaluation mode."""
    _require_plain_vit(name, model)
    model = model.eval().requires_grad_(False).to(resolve_device(device))
    prefix = int(model.num_prefix_tokens)
    has_cls = getattr(model, "cls_token", None) is not None
    rows, columns = model.patch_embed.grid_size
    return Backbone(
        name=name, model=model, depth=len(model.blocks), width=int(model.embed_dim),
        num_prefix_tokens=prefix, has_cls=has_cls, num_registers=prefix - int(has_cls),
        grid=(int(rows), int(columns)), transform=transform, digest=weight_files.digest(model),
        source=source or {"kind": "built by the caller"}, attention=_attention_of(model),
    )  # fmt: skip


def _attention_of(model: TimmViT) -> str:
    """The name of the normalization of every block, or of each kind there is."""
    kinds = [normalization_of(getattr(block, "attn", None)).name for block in model.blocks]
    return " and ".join(dict.fromkeys(kinds))


def _size(asked, default: tuple[int, int], patch: tuple[int, int], name: str) -> tuple[int, int]:
    size = default if asked is None else asked if isinstance(asked, tuple) else (asked, asked)
    for side, step in zip(size, patch, strict=True):
        if side < step or side % step:
            near = sorted({max(step, side // step * step), (side // step + 1) * step})
            raise ValueError(
                f"{name}: image side {side} is no multiple of its {step}-pixel patch; "
                f"nearest valid: {' or '.join(map(str, near))}"
            )
    return size


def _existing(weights) -> Path:
    path = Path(weights).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"no weight file {path}; weights may be 'auto', 'random', or the path of a file"
        )
    return path


class _seeded:
    """Build a model from the seed in "random:SEED" without touching the caller's random state."""

    def __init__(self, weights: object) -> None:
        text = str(weights).partition(":")[2] or "0"
        if not text.isdigit():
            raise ValueError(f"weights {weights!r}: expected 'random' or 'random:SEED' with a whole number")
        self.seed, self._fork = int(text), torch.random.fork_rng()

    def __enter__(self) -> int:
        self._fork.__enter__()
        torch.manual_seed(self.seed)
        return self.seed

    def __exit__(self, *exc) -> None:
        self._fork.__exit__(*exc)


__all__ = [
    "Backbone",
    "UnknownName",
    "UnsupportedModel",
    "available",
    "card",
    "describe",
    "load",
    "zoo_names",
]
