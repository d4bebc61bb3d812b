import copy
import json
import math

import pytest
import timm
import torch
from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import EvaAttention
from torch import nn

from helpers import FAMILIES, MORE_FAMILIES, enliven, noise, tiny, tiny_zoo_model
from vitscope import backbones
from vitscope.attention import SOFTMAX, Normalization, normalization_of, swap_attention
from vitscope.attention_maps import full_map
from vitscope.capture import capture
from vitscope.entmax import entmax15
from vitscope.errors import UnknownName
from vitscope.pretrain.zoo import FORMAT, _sorted_header, read_weights, write_weights
from vitscope.projections import UnknownAttention

ALL = [*FAMILIES, *MORE_FAMILIES]


def bisection(x):
    """entmax-1.5 in float64: the support by bisection, then τ, with its derivative, as the root it is."""
    with torch.no_grad():
        u = x.double() / 2
        low = u.amax(-1, keepdim=True) - 1
        high = u.amax(-1, keepdim=True)
        for _ in range(80):
            middle = (low + high) / 2
            below = (u - middle).clamp_min(0).square().sum(-1, keepdim=True) >= 1
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        support = u > low
    u = torch.where(support, x.double() / 2, 0.0)  # Σ (u − τ)² = 1 over the support, a quadratic in τ
    count = support.sum(-1, keepdim=True)
    mean = (u * support).sum(-1, keepdim=True) / count
    spread = ((u - mean).square() * support).sum(-1, keepdim=True)
    tau = mean - ((1 - spread) / count).sqrt()
    return torch.where(support, (u - tau).square(), 0.0)


def explicit(x, module, normalize, mask=None):
    """The forward of timm's plain `Attention`, written down once more."""
    n, t, _ = x.shape
    d = module.head_dim
    qkv = (x @ module.qkv.weight.T + module.qkv.bias).view(n, t, 3, module.num_heads, d)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    scores = module.q_norm(q) @ module.k_norm(k).mT / math.sqrt(d)
    if mask is not None:
        scores = scores + mask
    mixed = (normalize(scores).to(v.dtype) @ v).transpose(1, 2).reshape(n, t, -1)
    return mixed @ module.proj.weight.T + module.proj.bias


def plain(**options):
    """One lively attention module of timm."""
    torch.manual_seed(0)
    return enliven(Attention(32, num_heads=2, qkv_bias=True, **options)).eval()


def swapped(module, kind="entmax15", **options):
    """The module inside the smallest thing that can be swapped, swapped."""
    holder = nn.Module()
    block = nn.Module()
    block.attn = module
    holder.blocks = nn.ModuleList([block])
    return swap_attention(holder, kind, **options)


def run(backbone, images):
    with torch.inference_mode():
        return backbone.model.forward_features(images)


# --- the swap changes the normalization and nothing else --------------------------------------------------


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", ALL)
def test_a_swap_to_softmax_is_the_models_own_forward(family, fused):
    backbone = tiny(family)
    images = noise(2, backbone.transform.height)
    for block in backbone.model.blocks:
        block.attn.fused_attn = fused
    own = run(backbone, images)
    with swap_attention(backbone.model, "softmax") as swap:
        assert swap.count == backbone.depth
        torch.testing.assert_close(run(backbone, images), own, rtol=1e-4, atol=1e-5)
    with swap_attention(backbone.model, "entmax15"):
        assert float((run(backbone, images) - own).abs().max()) > 1e-2


@pytest.mark.parametrize("norms", [{"qk_norm": True}, {"scale_norm": True}, {"gated": True}])
@pytest.mark.parametrize("kind", [Attention, AttentionRope, EvaAttention])
def test_norms_and_gates_are_kept(kind, norms):
    options = {"scale_norm": False} | norms if kind is EvaAttention else norms
    module = enliven(kind(32, num_heads=2, qkv_bias=True, norm_layer=nn.LayerNorm, **options)).eval()
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    own = module(x)
    with swapped(module, "softmax"):
        torch.testing.assert_close(module(x), own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [AttentionRope, EvaAttention])
def test_projections_apart_and_shared_keys(kind):
    options = {"num_kv_heads": 2} if kind is AttentionRope else {"scale_norm": False}
    module = enliven(kind(32, num_heads=4, qkv_fused=False, **options)).eval()
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    own = module(x)
    with swapped(module, "softmax"):
        torch.testing.assert_close(module(x), own, rtol=1e-4, atol=1e-5)


MASKS = {
    "bool": {"attn_mask": torch.rand(9, 9, generator=torch.Generator().manual_seed(1)) < 0.7},
    "bool, image by image": {
        "attn_mask": torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(2)) < 0.7
    },
    "float": {"attn_mask": torch.randn(9, 9, generator=torch.Generator().manual_seed(3))},
    "causal": {"is_causal": True},
}
for _mask in MASKS.values():
    if "attn_mask" in _mask and _mask["attn_mask"].dtype == torch.bool:
        _mask["attn_mask"][..., 0] = True  # no query without a key


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("family", ["supervised", "eva02", "dinov3_rope", "siglip"])
def test_masks_are_taken_as_timms_blocks_take_them(family, mask):
    backbone = tiny(family)
    images = noise(2, backbone.transform.height)
    inputs = []
    handle = backbone.model.blocks[0].register_forward_pre_hook(
        lambda module, args, kwargs: inputs.append((args[0][:, :9], kwargs)), with_kwargs=True
    )
    run(backbone, images)
    handle.remove()
    (x, kwargs), block = inputs[0], backbone.model.blocks[0]
    options = dict(MASKS[mask])
    if kwargs.get("rope") is not None:
        options["rope"] = kwargs["rope"][: 9 - backbone.num_prefix_tokens]
    with torch.inference_mode():
        own = block(x, **options)
        free = block(x, **{k: v for k, v in options.items() if k == "rope"})
        assert not torch.allclose(own, free, atol=1e-3)
        with swap_attention(backbone.model, "softmax"):
            torch.testing.assert_close(block(x, **options), own, rtol=1e-4, atol=1e-5)
        with swap_attention(backbone.model, "entmax15"):
            if mask == "causal":  # the first query sees the first key alone
                later = x.clone()
                later[:, 1:] += 1
                torch.testing.assert_close(block(later, **options)[:, 0], block(x, **options)[:, 0])


@pytest.mark.parametrize("kind", ["softmax", "entmax15"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_outputs_and_gradients_are_those_of_an_explicit_reference(kind, temperature):
    module = plain(qk_norm=True, norm_layer=nn.LayerNorm)
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(9, 9)
    mask[:, 5] = -math.inf
    exact = {"softmax": lambda s: s.double().softmax(-1), "entmax15": bisection}[kind]
    swapped(module, kind, temperature=temperature)
    results = []
    for forward in (
        lambda z: module(z, attn_mask=mask),
        lambda z: explicit(z, module, lambda s: exact(s / temperature), mask),
    ):
        module.zero_grad()
        leaf = x.clone().requires_grad_()
        out = forward(leaf)
        out.sin().sum().backward()
        results.append({"out": out, "x": leaf.grad} | {n: p.grad for n, p in module.named_parameters()})
    for name, expected in results[1].items():
        assert float(expected.detach().abs().max()) > 1e-3 or name == "k_norm.bias", name
        torch.testing.assert_close(
            results[0][name], expected, rtol=1e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_query_without_a_key_gives_nothing_under_entmax_and_leaves_the_others_alone():
    module = plain()
    module.fused_attn = False
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mask = torch.ones(9, 9, dtype=torch.bool)
    swapped(module)
    whole = module(x, attn_mask=mask).detach()
    mixed = []
    module.proj.register_forward_pre_hook(lambda layer, args: mixed.append(args[0]))
    mask[3] = False
    out = module(x, attn_mask=mask)
    assert torch.equal(mixed[0][:, 3], torch.zeros(2, 32))
    others = [i for i in range(9) if i != 3]
    torch.testing.assert_close(out[:, others], whole[:, others])
    out.square().sum().backward()
    assert bool(x.grad.isfinite().all())


def test_dropout_of_weights_and_of_outputs_acts_in_training_alone():
    module = plain(attn_drop=0.5, proj_drop=0.25)
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    swapped(module)
    torch.testing.assert_close(
        module(x), explicit(x, module, bisection).to(torch.float32), rtol=1e-4, atol=1e-5
    )
    module.train()
    dropped = []
    module.attn_drop.register_forward_hook(lambda layer, args, output: dropped.append((args[0], output)))
    torch.manual_seed(1)
    out = module(x)
    torch.manual_seed(1)
    expected = explicit(x, module, lambda s: nn.functional.dropout(bisection(s).float(), 0.5))
    torch.testing.assert_close(out, nn.functional.dropout(expected, 0.25), rtol=1e-4, atol=1e-4)
    before, after = dropped[0]
    assert 0.3 < float((after[before > 0] == 0).float().mean()) < 0.7
    assert not torch.equal(module(x), out)


def test_autocast_trains_a_swapped_model():
    model, _ = tiny_zoo_model(attention="entmax15")
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(noise(4, 64)).float().square().mean()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert bool(parameter.grad.isfinite().all()), name
        assert float(parameter.grad.abs().max()) > 0, name


# --- it can be undone -------------------------------------------------------------------------------------


def test_parameters_names_and_hooks_stay():
    backbone = tiny("eva02")
    model = backbone.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pointers = [p.data_ptr() for p in model.parameters()]
    seen = []
    model.blocks[0].attn.register_forward_hook(lambda *_: seen.append(1))
    swap_attention(model)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.data_ptr() for p in model.parameters()] == pointers
    run(backbone, noise(1, 42))
    assert seen == [1]


@pytest.mark.parametrize("family", ["supervised", "eva02", "dinov3_rope"])
def test_restored_is_bit_for_bit_what_it_was(family):
    backbone = tiny(family)
    images = noise(2, backbone.transform.height)
    own = run(backbone, images)
    attributes = [sorted(vars(b.attn)) for b in backbone.model.blocks]
    kinds = [type(b.attn) for b in backbone.model.blocks]
    swap = swap_attention(backbone.model)
    assert not torch.allclose(run(backbone, images), own)
    swap.restore()
    swap.restore()  # nothing left to do
    assert swap.count == 0
    assert torch.equal(run(backbone, images), own)
    assert [sorted(vars(b.attn)) for b in backbone.model.blocks] == attributes
    assert [type(b.attn) for b in backbone.model.blocks] == kinds


def test_an_exception_restores_too():
    backbone = tiny("supervised")
    images = noise(2, 64)
    own = run(backbone, images)
    with pytest.raises(ZeroDivisionError), swap_attention(backbone.model):
        raise ZeroDivisionError
    assert torch.equal(run(backbone, images), own)


def test_swaps_within_swaps_are_undone_one_by_one():
    backbone = tiny("supervised")
    images = noise(2, 64)
    own = run(backbone, images)
    with swap_attention(backbone.model, "softmax", temperature=2):
        warm = run(backbone, images)
        with swap_attention(backbone.model, "entmax15", blocks=[2]):
            names = [normalization_of(b.attn).name for b in backbone.model.blocks]
            assert names == ["softmax at temperature 2", "entmax15"]
            assert not torch.allclose(run(backbone, images), warm)
        assert torch.equal(run(backbone, images), warm)
    assert torch.equal(run(backbone, images), own)
    assert all(normalization_of(b.attn) == SOFTMAX for b in backbone.model.blocks)


def test_an_earlier_swap_is_not_undone_under_a_later_one():
    backbone = tiny("supervised")
    images = noise(2, 64)
    own = run(backbone, images)
    first = swap_attention(backbone.model, "entmax15")
    second = swap_attention(backbone.model, "entmax15", blocks=[2])
    sparse = run(backbone, images)
    with pytest.raises(RuntimeError, match="after this swap to entmax15; restore the later swap first"):
        first.restore()
    assert torch.equal(run(backbone, images), sparse)
    second.restore()
    first.restore()
    assert torch.equal(run(backbone, images), own)


def test_blocks_are_chosen_by_number():
    backbone = tiny("supervised", depth=4)
    swap = swap_attention(backbone.model, "entmax15", blocks=(4, 2, 2))
    assert swap.count == 2
    kinds = [normalization_of(b.attn).kind for b in backbone.model.blocks]
    assert kinds == ["softmax", "entmax15", "softmax", "entmax15"]


def test_a_copy_of_a_swapped_model_is_swapped_and_independent():
    backbone = tiny("dinov3_rope")
    images = noise(2, 48)
    own = run(backbone, images)
    swap = swap_attention(backbone.model)
    sparse = run(backbone, images)
    twin = backbones.describe("twin", copy.deepcopy(backbone.model), backbone.transform)
    swap.restore()
    assert torch.equal(run(twin, images), sparse)
    assert torch.equal(run(backbone, images), own)
    again = swap_attention(twin.model, "softmax")
    torch.testing.assert_close(run(twin, images), own, rtol=1e-4, atol=1e-5)
    again.restore()
    assert torch.equal(run(twin, images), sparse)


def test_weights_travel_between_swapped_and_unswapped_models(tmp_path):
    one, other = tiny("supervised", seed=0), tiny("supervised", seed=1)
    swap_attention(one.model)
    torch.save(one.model.state_dict(), tmp_path / "w.pt")
    other.model.load_state_dict(torch.load(tmp_path / "w.pt"), strict=True)
    images = noise(2, 64)
    assert not torch.allclose(run(other, images), run(one, images))
    swap_attention(other.model)
    assert torch.equal(run(other, images), run(one, images))


# --- what is refused --------------------------------------------------------------------------------------


def test_an_unknown_attention_class_is_named_with_its_block_and_nothing_is_changed():
    model = tiny("supervised", depth=3).model

    class Mine(Attention):
        pass

    model.blocks[1].attn.__class__ = Mine
    for blocks in (None, [2], [2, 3]):
        with pytest.raises(UnknownAttention, match=r"VisionTransformer, block 2 \(Block\): .*Mine has no kn"):
            swap_attention(model, blocks=blocks)
        assert [type(b.attn) for b in model.blocks] == [Attention, Mine, Attention]
    assert swap_attention(model, blocks=[1, 3]).count == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "entmax1.5"}, UnknownName, r"attention 'entmax1\.5'\. Did you mean .*'entmax15'"),
        ({"temperature": 0}, ValueError, "temperature must be a positive number, got 0"),
        ({"temperature": math.inf}, ValueError, "temperature must be a positive number, got inf"),
        ({"temperature": math.nan}, ValueError, "temperature must be a positive number, got nan"),
        ({"blocks": [0, 1, 3]}, ValueError, r"blocks must be numbers from 1 to 2, got \[0, 3\]"),
        ({"blocks": []}, ValueError, "blocks must be numbers from 1 to 2, got none"),
    ],
)
def test_what_cannot_be_is_refused(options, error, message):
    model = tiny("supervised").model
    with pytest.raises(error, match=message):
        swap_attention(model, **options)
    assert all(type(b.attn) is Attention for b in model.blocks)


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ValueError, match=r"Linear has no blocks; expected a timm ViT with `model\.blocks`"):
        swap_attention(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="ResNet has no blocks"):
        swap_attention(timm.create_model("resnet18"))


def test_a_temperature_divides_the_scores():
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Normalization("softmax", 0.5)(x), (2 * x).softmax(-1))
    torch.testing.assert_close(Normalization("entmax15", 4)(x), entmax15(x / 4))
    assert Normalization("entmax15", 0.25).name == "entmax15 at temperature 0.25"


# --- capture and the zoo read the swap --------------------------------------------------------------------


@pytest.mark.parametrize("family", ["supervised", "dinov2_registers", "siglip", "eva02", "dinov3_rope"])
def test_capture_measures_the_maps_of_the_swapped_model(family):
    backbone = tiny(family)
    images = noise(3, backbone.transform.height)
    softmax = capture(backbone, images, norm="none", attention=True).attention
    swap_attention(backbone.model)
    maps, used = [], []
    for block in backbone.model.blocks:
        block.attn.register_forward_pre_hook(
            lambda module, args, kwargs: maps.append(full_map(module, args[0], kwargs.get("rope"))),
            with_kwargs=True,
        )
        block.attn.attn_drop.register_forward_hook(lambda layer, args, output: used.append(output))
    run(backbone, images)
    a = torch.stack(maps).double()
    torch.testing.assert_close(torch.stack(used), torch.stack(maps), rtol=1e-4, atol=1e-5)
    assert float((a.sum(-1) - 1).abs().max()) < 1e-5
    assert float((a == 0).double().mean()) > 0.05
    found = capture(backbone, images, norm="none", attention=True, batch_size=2).attention
    entropy = -torch.special.xlogy(a, a).sum(-1).mean(-1)
    torch.testing.assert_close(found["entropy"].double(), entropy, rtol=1e-4, atol=1e-5)
    assert bool((found["entropy"] < softmax["entropy"]).all(-1).any())
    prefix = backbone.num_prefix_tokens
    rows, columns = (torch.arange(n) for n in backbone.grid)
    places = torch.cartesian_prod(rows, columns).double()
    to_patches = a[..., prefix:, prefix:]
    moved = (to_patches * torch.cdist(places, places)).sum(-1) / to_patches.sum(-1).clamp_min(1e-30)
    torch.testing.assert_close(found["distance"].double(), moved.mean(-1), rtol=1e-4, atol=1e-4)
    if backbone.has_cls:
        torch.testing.assert_close(found["cls_incoming"].double(), a[..., 0].mean(-1), rtol=1e-4, atol=1e-6)
        share = a[..., 0, prefix:].sum(-1)
        torch.testing.assert_close(found["cls_to_patches"].double(), share, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "changes", [{}, {"attention": "entmax15"}, {"reg_tokens": 4}, {"attention": "entmax15", "reg_tokens": 4}]
)
def test_a_model_survives_its_file_with_its_attention(tmp_path, changes):
    model, architecture = tiny_zoo_model(**changes)
    path = tmp_path / "own.safetensors"
    write_weights(path, model, architecture)
    again, found = read_weights(path)
    assert found == architecture
    kind = changes.get("attention", "softmax")
    assert {normalization_of(b.attn).kind for b in again.blocks} == {kind}
    assert again.num_prefix_tokens == 1 + changes.get("reg_tokens", 0)
    with torch.inference_mode():
        assert torch.equal(again(noise(2, 64)), model.half().float()(noise(2, 64)))
    backbone = backbones.load(str(path), device="cpu")
    assert backbone.attention == kind
    assert backbone.num_registers == changes.get("reg_tokens", 0)


def test_a_file_written_before_there_was_a_choice_is_softmax(tmp_path):
    model, architecture = tiny_zoo_model()
    path = tmp_path / "old.safetensors"
    write_weights(path, model, architecture)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    shape = json.loads(header["__metadata__"]["architecture"])
    del shape["attention"], shape["specialized"]
    header["__metadata__"] = {"format": FORMAT, "architecture": json.dumps(shape)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(_sorted_header(len(text).to_bytes(8, "little") + text + content[8 + length :]))
    again, found = read_weights(path)
    assert found == architecture
    assert all(type(b.attn) is Attention for b in again.blocks)
    assert backbones.load(str(path), device="cpu").attention == "softmax"
