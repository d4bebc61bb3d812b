"""Attention statistics against timm's own unfused softmax, reduced by plain loops in float64."""

import copy
import math

import pytest
import timm
import torch

from helpers import FAMILIES, MORE_FAMILIES, enliven, noise, tiny
from vitscope import attention_maps
from vitscope.attention_maps import Geometry, UnknownAttention, full_map, statistics
from vitscope.capture import capture

ALL = [*FAMILIES, *MORE_FAMILIES]


def timm_maps(backbone, images: torch.Tensor) -> torch.Tensor:
    """What timm itself computes, in float64: [L, N, H, T, T] as seen by the dropout after its softmax."""
    model = copy.deepcopy(backbone.model).double()
    maps = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, args, output: maps.append(output))
    with torch.inference_mode():
        model.forward_features(images.double())
    return torch.stack(maps)


def slow_statistics(
    maps: torch.Tensor, grid: tuple[int, int], prefix: int, has_cls: bool
) -> dict[str, torch.Tensor]:
    """[L, N, H] by definition, one query at a time."""
    tokens = maps.shape[-1]
    places = [(r, c) for r in range(grid[0]) for c in range(grid[1])]
    found: dict[str, list] = {"entropy": [], "distance": []}
    flat = maps.reshape(-1, tokens, tokens).tolist()
    for rows in flat:
        entropies = [-sum(a * math.log(a) for a in row if a > 0) for row in rows]
        found["entropy"].append(sum(entropies) / tokens)
        distances = []
        for (y, x), row in zip(places, rows[prefix:], strict=True):
            to_patches = row[prefix:]
            moved = sum(a * math.hypot(y - j, x - i) for a, (j, i) in zip(to_patches, places, strict=True))
            distances.append(moved / sum(to_patches) if sum(to_patches) > 0 else 0.0)
        found["distance"].append(sum(distances) / len(distances))
        if has_cls:
            found.setdefault("cls_incoming", []).append(sum(row[0] for row in rows) / tokens)
            found.setdefault("cls_to_patches", []).append(sum(rows[0][prefix:]))
    return {k: torch.tensor(v, dtype=torch.float64).reshape(maps.shape[:3]) for k, v in found.items()}


@pytest.mark.parametrize("family", ALL)
def test_statistics_equal_those_of_timms_unfused_map(family):
    backbone = tiny(family)
    images = noise(2, backbone.transform.height)
    maps = timm_maps(backbone, images)
    assert len(maps) == backbone.depth
    expected = slow_statistics(maps, backbone.grid, backbone.num_prefix_tokens, backbone.has_cls)
    found = capture(backbone, images, norm="none", attention=True).attention
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name].double(), value, rtol=1e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    # the weights are lively: heads and images differ, so that a mix-up of axes would show
    assert float(expected["entropy"].flatten(1).std(1).min()) > 1e-3


@pytest.mark.parametrize("family", ALL)
def test_full_map_equals_timms_and_its_rows_sum_to_one(family):
    backbone = tiny(family)
    images = noise(2, backbone.transform.height)
    expected = timm_maps(backbone, images)
    seen = []
    handles = [
        block.attn.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(full_map(module, args[0], kwargs.get("rope"))),
            with_kwargs=True,
        )
        for block in backbone.model.blocks
    ]
    with torch.inference_mode():
        backbone.model.forward_features(images)
    for handle in handles:
        handle.remove()
    found = torch.stack(seen)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)
    assert float((found.sum(-1) - 1).abs().max()) < 1e-5


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 30.0, 1000.0])
def test_entropy_from_flat_to_one_hot(sharpness):
    """logsumexp − q·Σ a k cancels where logits are large; the result must stay right to about 1e-4 nats."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, 10, 8, generator=generator) for _ in range(2))
    geometry = Geometry((3, 3), 1, True, torch.device("cpu"))
    found = statistics(sharpness * q, k, geometry)
    maps = torch.softmax((sharpness * q).double() @ k.double().transpose(-2, -1), -1)
    expected = slow_statistics(maps.unsqueeze(0), (3, 3), 1, True)
    if sharpness == 1000:  # rounding of the logits themselves moves the rest
        expected = {"entropy": expected["entropy"]}
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name].double(), value[0], rtol=1e-4, atol=1e-4 * max(1.0, sharpness / 30)
        )
    assert float(found["entropy"].min()) >= -1e-3
    assert float(found["entropy"].max()) <= math.log(10) + 1e-5


def test_uniform_attention_has_known_statistics():
    q = torch.zeros(1, 1, 9, 4)
    found = statistics(q, torch.randn(1, 1, 9, 4), Geometry((2, 2), 5, True, torch.device("cpu")))
    assert float(found["entropy"]) == pytest.approx(math.log(9), rel=1e-6)
    assert float(found["cls_incoming"]) == pytest.approx(1 / 9, rel=1e-6)
    assert float(found["cls_to_patches"]) == pytest.approx(4 / 9, rel=1e-6)
    assert float(found["distance"]) == pytest.approx((0 + 1 + 1 + math.sqrt(2)) / 4, rel=1e-6)


def test_attention_that_never_reaches_a_patch_is_finite():
    """All mass on CLS: the distance between patches has nothing to average and must not be NaN."""
    q, k = torch.ones(1, 1, 5, 2) * 300, torch.zeros(1, 1, 5, 2)
    k[:, :, 0] = 1
    found = statistics(q, k, Geometry((2, 2), 1, True, torch.device("cpu")))
    assert all(torch.isfinite(v).all() for v in found.values())
    assert float(found["cls_incoming"]) == pytest.approx(1)


@pytest.mark.parametrize("grid", [(2, 3), (1, 4), (7, 6)])
def test_distances_are_those_of_the_grid(grid):
    distance = Geometry(grid, 0, False, torch.device("cpu")).distance
    places = [(r, c) for r in range(grid[0]) for c in range(grid[1])]
    expected = torch.tensor([[math.hypot(a - c, b - d) for c, d in places] for a, b in places])
    torch.testing.assert_close(distance, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_softmax_is_taken_in_float32(dtype):
    generator = torch.Generator().manual_seed(0)
    q, k = ((20 * torch.randn(1, 2, 6, 4, generator=generator)).to(dtype) for _ in range(2))
    geometry = Geometry((2, 2), 2, True, torch.device("cpu"))
    found, exact = statistics(q, k, geometry), statistics(q.float(), k.float(), geometry)
    for name, value in found.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, exact[name])


# --- what is not understood -------------------------------------------------------------------------------

OTHERS = {
    "beit_base_patch16_224": "beit.Attention",
    "cait_xxs24_224": "TalkingHeadAttn",
    "vit_relpos_small_patch16_224": "RelPosAttention",
}


def stranger(name: str):
    from vitscope.backbones import describe

    options = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 48, "num_classes": 0}
    model = enliven(timm.create_model(name, pretrained=False, **options))
    return describe(name, model, tiny("supervised", size=48).transform)


@pytest.mark.parametrize("name", OTHERS)
def test_other_attention_classes_are_refused_by_name(name):
    with pytest.raises(
        UnknownAttention, match=rf"{name}, block 1 \(\w+\): attention class .*{OTHERS[name]} has no"
    ):
        capture(stranger(name), noise(1, 48), norm="none", attention=True)


@pytest.mark.parametrize("name", ["beit_base_patch16_224", "vit_relpos_small_patch16_224"])
def test_token_reductions_still_work_for_them(name):
    backbone = stranger(name)
    images = noise(2, 48)
    result = capture(backbone, images, norm="none")
    last = backbone.model.forward_intermediates(
        images, indices=1, norm=False, output_fmt="NLC", intermediates_only=True
    )
    torch.testing.assert_close(result.patch_mean[-1], last[-1].mean(1), rtol=1e-5, atol=1e-6)


def test_tokens_that_do_not_fill_the_grid_are_named():
    """CaiT adds its CLS token after the blocks: its tokens there are not prefix + patches."""
    with pytest.raises(
        ValueError, match=r"cait_xxs24_224: 9 tokens less 1 prefix tokens are not the 9 patches of its 3 × 3"
    ):
        capture(stranger("cait_xxs24_224"), noise(1, 48), norm="none")


def test_a_subclass_is_not_taken_for_its_parent():
    """Its arithmetic may differ in any line."""
    backbone = tiny("supervised")

    class Mine(type(backbone.model.blocks[1].attn)):
        pass

    backbone.model.blocks[1].attn.__class__ = Mine
    with pytest.raises(UnknownAttention, match=r"supervised, block 2 \(Block\): .*Mine"):
        capture(backbone, noise(1, 64), norm="none", attention=True)


@pytest.mark.parametrize("masked", [{"attn_mask": torch.zeros(17, 17)}, {"is_causal": True}])
def test_masked_attention_is_refused(masked):
    attention = tiny("supervised").model.blocks[0].attn
    handles = list(attention_maps.tap(attention, lambda q, k, normalization: None))
    x = torch.randn(1, 17, 32)
    attention(x)
    with pytest.raises(UnknownAttention, match="called with a mask"):
        attention(x, **masked)
    for handle in handles:
        handle.remove()


def test_grouped_and_separate_projections():
    """Fewer key heads than query heads, q and k projected apart (AttentionRope's other form)."""
    from timm.layers.attention import AttentionRope

    module = AttentionRope(
        32, num_heads=4, num_kv_heads=2, qkv_fused=False, qk_norm=True, norm_layer=torch.nn.LayerNorm
    )
    enliven(module)
    module.fused_attn = False
    seen = []
    module.attn_drop.register_forward_hook(lambda m, a, output: seen.append(output))
    x = torch.randn(2, 7, 32)
    module.eval()(x)
    torch.testing.assert_close(full_map(module, x), seen[0], rtol=1e-4, atol=1e-6)
