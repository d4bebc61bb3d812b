"""The zoo: which models there are, how each is shaped and trained, and how its file is written and read.

A zoo file is safetensors (fp16) with the architecture in its header; beside it lies a card (`NAME.json`)
with the command, the data, the seconds, the accuracies and the digest.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from timm.models.vision_transformer import VisionTransformer

from vitscope.attention import swap_attention
from vitscope.specialization import specialize

FORMAT = "vitscope-zoo-1"


@dataclass(frozen=True)
class Architecture:
    """A plain ViT: learned position embedding, CLS token, pre-norm blocks, MLP ratio 4.

    `attention` names the normalization of scores (`attention.KINDS`); `specialized` gives CLS and patches
    norms of their own in every block, and their own queries, keys and values in the first third of them.
    """

    width: int
    depth: int
    heads: int
    img_size: int = 64
    patch_size: int = 8
    num_classes: int = 0
    reg_tokens: int = 0
    attention: str = "softmax"
    specialized: bool = False

    def build(self, **options: Any) -> VisionTransformer:
        """The model with new weights; `options` go to timm's `VisionTransformer`."""
        model = VisionTransformer(
            img_size=self.img_size,
            patch_size=self.patch_size,
            embed_dim=self.width,
            depth=self.depth,
            num_heads=self.heads,
            num_classes=self.num_classes,
            reg_tokens=self.reg_tokens,
            **options,
        )
        if self.specialized:
            specialize(model, qkv_blocks=self.depth // 3)
        if self.attention != "softmax":
            swap_attention(model, self.attention)
        return model


@dataclass(frozen=True)
class SupervisedRecipe:
    """Supervised training on `emoji_identity`. `images` counts renders seen, not distinct pictures.

    Hidden matrices are updated by Muon (Jordan et al. 2024; `torch.optim.Muon`, update RMS matched to
    AdamW), everything else by AdamW; one warm-up, one cosine to zero. The stream of renders is a function of
    `seed` and position alone, so all models of one seed see the same pictures in the same order.
    """

    architecture: Architecture
    images: int = 409_600
    batch: int = 128
    lr_muon: float = 5e-3
    lr_adamw: float = 1e-3
    weight_decay: float = 0.05
    warmup: float = 0.05
    label_smoothing: float = 0.1
    clip: float = 1.0
    style: str = "noto"
    scale: tuple[float, float] = (0.55, 1.0)  # of the emoji, as a share of the canvas
    precision: str = "bf16"
    snapshots: tuple[int, ...] = field(default=())

    @property
    def steps(self) -> int:
        return self.images // self.batch

    def describe(self) -> dict:
        return {"objective": "supervised", "dataset": "emoji_identity", **asdict(self)}


@dataclass(frozen=True)
class ContrastiveRecipe(SupervisedRecipe):
    """Image–text training: pictures and the Unicode names of their emoji, told apart within a batch.

    The backbone has no head; projection and text tower are published beside it. `embed` is the width of the
    common space, `text_width`, `text_layers` and `text_heads` shape the text tower.
    """

    embed: int = 64
    text_width: int = 96
    text_layers: int = 2
    text_heads: int = 3

    def describe(self) -> dict:
        return {"objective": "contrastive, pictures and names", "dataset": "emoji_identity", **asdict(self)}


# what paper C compares: attention as usual, sparse attention, four registers, CLS and patches apart
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "entmax15": {"attention": "entmax15"},
    "register4": {"reg_tokens": 4},
    "specialized": {"specialized": True},
}

_SNAPSHOTS = (0, 6_400, 25_600, 102_400, 204_800)

RECIPES: dict[str, SupervisedRecipe] = {
    "twin_s": SupervisedRecipe(
        Architecture(width=96, depth=12, heads=3, num_classes=1291), snapshots=_SNAPSHOTS
    ),
    "twin_b": SupervisedRecipe(
        Architecture(width=128, depth=12, heads=4, num_classes=1291), snapshots=_SNAPSHOTS
    ),
    # twin_b with twice the blocks: S to B changes the width alone, B to L the depth alone
    "twin_l": SupervisedRecipe(
        Architecture(width=128, depth=24, heads=4, num_classes=1291), snapshots=_SNAPSHOTS
    ),
    # one width, four depths, a quarter of the twins' images: only the number of blocks differs
    **{
        f"depth_{blocks:02d}": SupervisedRecipe(
            Architecture(width=96, depth=blocks, heads=3, num_classes=1291), images=102_400
        )
        for blocks in (6, 12, 18, 24)
    },
    # one shape, four kinds of token interaction; smaller emoji leave most patches to the background
    **{
        f"sup_{name}": SupervisedRecipe(
            Architecture(width=96, depth=8, heads=3, num_classes=1291, **changes),
            images=153_600,
            batch=64,
            scale=(0.35, 1.0),
            snapshots=(0, 12_800, 25_600, 51_200, 102_400),
        )
        for name, changes in VARIANTS.items()
    },
    # the shape of twin_s, taught by names in place of numbers
    "clip_names": ContrastiveRecipe(Architecture(width=96, depth=12, heads=3), images=204_800),
}


class WeightFileError(ValueError):
    """A weight file is not what it should be; the message says what was found and what was expected."""


def write_weights(path: Path, model: VisionTransformer, architecture: Architecture) -> None:
    """fp16 safetensors with the architecture in the header, written to a temporary name and moved."""
    tensors = {k: v.detach().to("cpu", torch.float16).contiguous() for k, v in model.state_dict().items()}
    broken = [k for k, v in tensors.items() if not torch.isfinite(v).all()]
    if broken:
        raise WeightFileError(
            f"{path.name}: {len(broken)} tensors leave the range of fp16, first {broken[0]}"
        )
    header = {"format": FORMAT, "architecture": json.dumps(asdict(architecture))}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    temporary.write_bytes(_sorted_header(save(tensors, metadata=header)))
    temporary.replace(path)


def _sorted_header(content: bytes) -> bytes:
    """safetensors writes metadata in an order of its own; sorted, equal models are equal files."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def read_weights(path: Path) -> tuple[VisionTransformer, Architecture]:
    """The model of a zoo file, in fp32 and evaluation mode. Every tensor must match."""
    try:
        file = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise WeightFileError(
            f"{path.name} is no safetensors file ({error}); fetch or make it again"
        ) from error
    with file:
        header = file.metadata() or {}
        if header.get("format") != FORMAT:
            raise WeightFileError(
                f"{path.name} carries no vitscope architecture "
                f"(format {header.get('format')!r}, expected {FORMAT!r}); "
                "name the timm architecture it belongs to and pass the file as weights"
            )
        names = file.keys()  # a list; the file itself is neither a mapping nor iterable
        tensors = {key: file.get_tensor(key).to(torch.float32) for key in names}
    architecture = Architecture(**json.loads(header["architecture"]))
    model = architecture.build()
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise WeightFileError(
            f"{path.name} does not hold the tensors of its architecture: {error}"
        ) from error
    return model.eval(), architecture
