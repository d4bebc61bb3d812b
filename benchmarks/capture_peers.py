"""What others offer to read the states of a ViT, with the few lines a user would write around it.

Every contestant has one set of weights, and the same reductions follow. The statistics of attention are
written here as one writes them where the map is given: the peers keep it, ours never does.
"""

from collections.abc import Callable, Iterable, Iterator

import timm
import torch
from torch import Tensor, nn
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.models.vision_transformer import VisionTransformer

from vitscope.attention_maps import Geometry
from vitscope.reductions import DEFAULT, REDUCTIONS, Tokens

State = tuple[int, Tensor | None, Tensor]
"""Number of a state, CLS [N, D] or None, patches [N, P, D]."""

HOW_TO_GET = "ViT-Prisma is not installed; `make peers` installs it"


def prisma_found() -> bool:
    """Whether ViT-Prisma and what it needs can be imported here."""
    try:
        import vit_prisma.models.base_vit  # noqa: F401
    except ImportError:
        return False
    return True


def model(depth: int, image: int = 224, patch: int = 16, width: int = 384, heads: int = 6) -> nn.Module:
    """A timm ViT with CLS and random weights, in evaluation mode; ViT-S/16 unless told otherwise."""
    torch.manual_seed(0)
    made = timm.create_model(
        "vit_small_patch16_224", img_size=image, patch_size=patch, depth=depth, embed_dim=width,
        num_heads=heads,
    )  # fmt: skip
    return made.eval()


def reduced(states: Iterable[State]) -> list[dict[str, Tensor]]:
    """The token reductions that `capture` makes by default, of every state."""
    rows = []
    for number, cls, patches in states:
        tokens = Tokens(state=number, cls=cls, registers=patches[:, :0], patches=patches)
        row: dict[str, Tensor] = {}
        for name in DEFAULT:
            row.update(REDUCTIONS[name](tokens))
        rows.append(row)
    return rows


def map_statistics(pattern: Tensor, geometry: Geometry) -> dict[str, Tensor]:
    """What `capture(attention=True)` keeps of a map [N, H, T, T], from the map itself."""
    p = geometry.prefix
    between = pattern[:, :, p:, p:]
    travelled = torch.einsum("nhij,ij->nhi", between, geometry.distance)
    return {
        "entropy": -torch.special.xlogy(pattern, pattern).sum(-1).mean(-1),
        "distance": (travelled / between.sum(-1)).mean(-1),
        "cls_incoming": pattern[..., 0].mean(-1),
        "cls_to_patches": pattern[:, :, 0, p:].sum(-1),
    }


def intermediates(source: nn.Module, batch: Tensor) -> Iterator[State]:
    """timm's own: the blocks' outputs (states 1 … L; it does not give −1 and 0)."""
    found = source.forward_intermediates(
        batch, output_fmt="NLC", intermediates_only=True, return_prefix_tokens=True
    )
    for number, (patches, prefix) in enumerate(found, start=1):
        yield number, prefix[:, 0], patches


def torchvision_twin(source: nn.Module) -> VisionTransformer:
    """torchvision's ViT with the weights of a timm one."""
    width, block = source.embed_dim, source.blocks[0]
    twin = VisionTransformer(
        image_size=source.patch_embed.img_size[0], patch_size=source.patch_embed.patch_size[0],
        num_layers=len(source.blocks), num_heads=block.attn.num_heads, hidden_dim=width,
        mlp_dim=block.mlp.fc1.out_features,
    )  # fmt: skip
    names = {"cls_token": "class_token", "pos_embed": "encoder.pos_embedding", "norm": "encoder.ln",
             "patch_embed.proj": "conv_proj", "head": "heads.head"}  # fmt: skip
    inside = {"norm1": "ln_1", "norm2": "ln_2", "attn.qkv.weight": "self_attention.in_proj_weight",
              "attn.qkv.bias": "self_attention.in_proj_bias", "attn.proj": "self_attention.out_proj",
              "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.3"}  # fmt: skip
    weights = {}
    for name, value in source.state_dict().items():
        table, before, rest = names, "", name
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            table, before = inside, f"encoder.layers.encoder_layer_{number}."
        old = next(known for known in table if rest.startswith(known))
        weights[before + rest.replace(old, table[old], 1)] = value
    twin.load_state_dict(weights)
    return twin.eval()


def extractor(twin: VisionTransformer) -> Callable[[Tensor], Iterator[State]]:
    """`create_feature_extractor` at the patch embedding, the first block's input and every block."""
    blocks = len(twin.encoder.layers)
    nodes = {f"encoder.layers.encoder_layer_{i}": str(i + 1) for i in range(blocks)}
    traced = create_feature_extractor(twin, {"conv_proj": "-1", "encoder.dropout": "0", **nodes})

    def run(batch: Tensor) -> Iterator[State]:
        found = traced(batch)
        yield -1, None, found["-1"].flatten(2).mT
        for number in range(blocks + 1):
            x = found[str(number)]
            yield number, x[:, 0], x[:, 1:]

    return run


def prisma_twin(source: nn.Module) -> nn.Module:
    """ViT-Prisma's HookedViT with the weights of a timm one, by its own conversion."""
    from vit_prisma.configs.HookedViTConfig import HookedViTConfig
    from vit_prisma.models.base_vit import HookedViT
    from vit_prisma.prisma_tools.loading_from_pretrained import convert_timm_weights

    attention = source.blocks[0].attn
    config = HookedViTConfig(
        n_layers=len(source.blocks), d_model=source.embed_dim, d_head=attention.head_dim,
        d_mlp=source.blocks[0].mlp.fc1.out_features, n_heads=attention.num_heads,
        patch_size=source.patch_embed.patch_size[0], image_size=source.patch_embed.img_size[0],
        n_classes=source.num_classes, eps=source.norm.eps,
    )  # fmt: skip
    twin = HookedViT(config)
    twin.load_state_dict(convert_timm_weights(source.state_dict(), config))
    return twin.eval()


def prisma_cache(twin: nn.Module, batch: Tensor, keep: str) -> dict[str, Tensor]:
    """`run_with_cache`; `keep` is "states", "states and maps" or "everything"."""
    wanted = ("hook_embed", "blocks.0.hook_resid_pre")

    def chosen(name: str) -> bool:
        maps = keep == "states and maps" and name.endswith("hook_pattern")
        return name in wanted or name.endswith("hook_resid_post") or maps

    names = None if keep == "everything" else chosen
    return twin.run_with_cache(batch, names_filter=names, return_cache_object=False)[1]


def prisma_states(cache: dict[str, Tensor], depth: int) -> Iterator[State]:
    """All states, −1 … L, from a cache."""
    yield -1, None, cache["hook_embed"]
    names = ["blocks.0.hook_resid_pre", *(f"blocks.{i}.hook_resid_post" for i in range(depth))]
    for number, name in enumerate(names):
        yield number, cache[name][:, 0], cache[name][:, 1:]


def prisma_maps(cache: dict[str, Tensor], depth: int) -> Iterator[Tensor]:
    """Every block's attention map, from a cache."""
    for i in range(depth):
        yield cache[f"blocks.{i}.attn.hook_pattern"]
