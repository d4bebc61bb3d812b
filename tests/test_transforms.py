"""Preprocessing equals timm's own for the same config, and each backbone brings its own."""

import numpy as np
import pytest
import timm
import torch
from timm.data import create_transform, resolve_data_config
from timm.data.transforms_factory import transforms_imagenet_eval

from helpers import photo
from vitscope import backbones
from vitscope.transforms import Transform

# small pixel sizes keep this fast; every config differs from the others in at least one field
CONFIGS = {
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": 64,
    "vit_small_patch14_dinov2.lvd142m": 70,
    "vit_base_patch16_clip_224.openai": 64,
    "vit_base_patch16_siglip_224.webli": 64,
    "vit_small_patch16_dinov3.lvd1689m": 64,
    "vit_small_patch16_224.dino": 64,
    "vit_base_patch16_clip_384.openai_ft_in12k_in1k": 64,  # squashes instead of cropping
    "deit3_small_patch16_224.fb_in1k": 64,
}
SIZES = [(90, 60), (60, 90), (300, 200), (40, 40), (1, 1), (500, 9)]


def as_tensor(picture) -> torch.Tensor:
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)


def config_of(name: str) -> dict:
    probe = torch.nn.Module()
    probe.pretrained_cfg = timm.get_pretrained_cfg(name).to_dict()
    return resolve_data_config({}, model=probe)


@pytest.fixture
def shallow(monkeypatch):
    """Let `backbones.load` build 32-wide models of 1 block: only the preprocessing is looked at."""
    real = timm.create_model
    monkeypatch.setattr(
        timm,
        "create_model",
        lambda name, **o: real(name, **{"embed_dim": 32, "depth": 1, "num_heads": 2, **o}),
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_timm_for_this_config(name, shallow):
    side = CONFIGS[name]
    transform = backbones.load(name, weights="random", img_size=side, device="cpu").transform
    theirs = create_transform(**{**config_of(name), "input_size": (3, side, side)}, is_training=False)
    for number, size in enumerate(SIZES):
        picture = photo(*size, seed=number)
        torch.testing.assert_close(transform([as_tensor(picture)])[0], theirs(picture), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_fields_come_from_the_config(name, shallow):
    transform, config = (
        backbones.load(name, weights="random", img_size=CONFIGS[name]).transform,
        config_of(name),
    )
    described = transform.describe()
    for key in ("mean", "std", "interpolation", "crop_pct"):
        assert described[key] == config[key]
    # a grey picture shows mean and std without any resampling
    grey = transform(torch.full((1, 3, 64, 64), 128, dtype=torch.uint8))[0, :, 9, 9]
    expected = (128 / 255 - torch.tensor(config["mean"])) / torch.tensor(config["std"])
    torch.testing.assert_close(grey, expected)


def test_size_of_the_model_itself_is_the_default(shallow):
    assert (backbones.load("vit_small_patch14_dinov2.lvd142m", weights="random").transform.height) == 518


def test_families_do_not_share_one_preprocessing(shallow):
    found = {
        str({**backbones.load(n, weights="random", img_size=s).transform.describe(), "height": 0, "width": 0})
        for n, s in CONFIGS.items()
    }
    assert len(found) >= 5


@pytest.mark.parametrize("size", [(28, 42), (42, 28)])
def test_target_that_is_not_square(size):
    """timm resizes until both sides are covered and then crops; nothing is padded with black."""
    transform = Transform(*size, (0.0,) * 3, (1.0,) * 3, "bicubic", 0.9)
    theirs = transforms_imagenet_eval(
        img_size=size, crop_pct=0.9, interpolation="bicubic", mean=(0.0,) * 3, std=(1.0,) * 3
    )
    for picture in (photo(90, 60), photo(20, 20), photo(200, 30)):
        torch.testing.assert_close(transform([as_tensor(picture)])[0], theirs(picture), rtol=0, atol=1e-6)


def test_pictures_of_the_right_size_are_only_normalised():
    transform = Transform(8, 8, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "bicubic", 0.875)
    pixels = torch.randint(0, 256, (3, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    mean, std = (
        torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (transform.mean, transform.std)
    )
    expected = (pixels.double() / 255 - mean) / std
    torch.testing.assert_close(transform(pixels).double(), expected, rtol=1e-6, atol=1e-6)


def test_lists_of_one_or_several_sizes_and_batches_agree():
    transform = Transform(16, 16, (0.5,) * 3, (0.5,) * 3, "bicubic", 0.9)
    pictures = [as_tensor(photo(30, 20, seed=i)) for i in range(3)]
    together = transform(torch.stack(pictures))
    assert tuple(together.shape) == (3, 3, 16, 16)
    assert torch.equal(together, transform(pictures))
    assert torch.equal(together, torch.cat([transform([p]) for p in pictures]))
    mixed = transform([pictures[0], as_tensor(photo(9, 40)), pictures[2]])
    assert torch.equal(mixed[[0, 2]], together[[0, 2]])


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(1, 3, 8, 8),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(1, 1, 8, 8, dtype=torch.uint8),
    ],
    ids=["float", "no batch", "one channel"],
)
def test_other_inputs_are_refused_with_what_was_found(wrong):
    with pytest.raises(
        ValueError, match=r"expected uint8 pictures \[N, 3, h, w\], got torch.*already transformed"
    ):
        Transform(8, 8, (0.5,) * 3, (0.5,) * 3)(wrong)
