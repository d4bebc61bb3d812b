"""What larger work costs: exponents of planted growth, and arithmetic against numbers worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from vitscope import backbones, information, scale
from vitscope.cost import layer_costs
from vitscope.growth import exponent, exponents
from vitscope.scale import BILLION, IMAGENET_1K, VITS, Site, UnitCosts, Vit

SMALL, BASE, LARGE = VITS
MEASURED = UnitCosts(seconds_per_gflop=0.02, decode_seconds=0.01, probe_seconds=1e-9, probe_memory=5.0)


# --- growth ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_planted_exponents_come_back_through_noise(power):
    rng = np.random.default_rng(0)
    sizes = [100, 200, 400, 800, 1600]
    rounds = {n: 3e-4 * n**power * rng.lognormal(0, 0.05, 25) for n in sizes}
    found = exponents(rounds)
    assert len(found) == 25
    # the slope's deviation is 0.05 / √Σ(log n − mean)² = 0.05 / (log 2 · √10)
    assert np.median(found) == pytest.approx(power, abs=3 * 0.05 / (np.log(2) * np.sqrt(10 * 25)) * 1.3)
    assert np.std(found) == pytest.approx(0.05 / (np.log(2) * np.sqrt(10)), rel=0.5)


def test_a_fixed_cost_lowers_the_exponent_and_the_largest_sizes_show_less_of_it():
    rounds = {n: [1.0 + 0.01 * n] for n in (10, 100, 1000, 10_000)}
    whole, end = exponents(rounds)[0], exponents(rounds, last=2)[0]
    assert 0 < whole < end < 1
    assert end == pytest.approx(np.log10(101 / 11))


def test_the_order_of_the_sizes_does_not_matter():
    assert exponents({100: [9.0], 1: [3.0], 10: [1.0]}, last=2) == [pytest.approx(np.log10(9.0))]


@pytest.mark.parametrize(
    ("sizes", "costs", "message"),
    [
        ([1, 2], [1.0], "2 sizes and 1 costs"),
        ([2, 2], [1.0, 2.0], "two different sizes"),
        ([0, 1], [1.0, 2.0], "sizes must be above 0"),
        ([1, 2], [0.0, 2.0], "costs must be above 0"),
        ([1, 2], [float("nan"), 2.0], "costs must be above 0"),
    ],
)
def test_what_has_no_exponent_is_refused(sizes, costs, message):
    with pytest.raises(ValueError, match=message):
        exponent(sizes, costs)


# --- operations ------------------------------------------------------------------------------------------


def test_operations_of_vit_b_by_hand():
    patches = 196 * 768 * (3 * 16 * 16)  # 115,605,504
    qkv, projection = 197 * 768 * 2304, 197 * 768 * 768
    attention = 2 * 197 * 197 * 768  # scores, then values
    mlp = 2 * 197 * 768 * 3072
    assert patches + 12 * (qkv + projection + attention + mlp) == 17_563_060_224
    assert BASE.macs == 17_563_060_224  # the "17.6 GFLOPs" of papers
    assert BASE.flops == 35_126_120_448


def test_operations_of_the_others():
    assert [round(v.macs / 1e9, 2) for v in VITS] == [4.60, 17.56, 61.55]
    assert [v.states for v in VITS] == [14, 14, 26]
    assert Vit("x", 8, 1, patch=14, size=28).tokens == 5


def test_the_count_is_that_of_the_counter():
    """`vitscope.cost` runs the model under torch's counter."""
    model = backbones.load("vit_small_patch16_224", weights="random", device="cpu")
    assert layer_costs(model)["gflops"].sum() * 1e9 == pytest.approx(SMALL.flops, abs=1)


# --- bytes -----------------------------------------------------------------------------------------------


def test_bytes_of_an_image_by_hand():
    assert BASE.bytes_kept("vectors", 2) == 14 * 2 * 768 * 2 == 43_008
    assert BASE.bytes_kept("vectors", 4) == 86_016
    assert BASE.bytes_kept("tokens", 2) == 14 * 197 * 768 * 2 == 4_236_288
    # ImageNet-1k: 55 GB of vectors, 5.4 TB of tokens in float16
    assert IMAGENET_1K.images * BASE.bytes_kept("vectors", 2) == 55_100_430_336
    assert IMAGENET_1K.images * BASE.bytes_kept("tokens", 2) == 5_427_392_388_096


def test_moments_do_not_grow_with_images():
    assert scale.gram_bytes(BASE, 1000) == 8 * 14 * (768 * 768 + 768 * 1000 + 768 + 1000)
    assert scale.gram_flops(BASE, 2) == 2 * scale.gram_flops(BASE, 1)
    assert scale.gram_flops(BASE, 1) < 0.001 * BASE.flops


def test_probes_need_their_features_several_times_and_the_labels_one_hot():
    features = 14 * 768 * 4
    assert scale.probe_bytes(BASE, 1000, MEASURED) == 5 * features + 12_000
    assert scale.probe_bytes(BASE, 1000, UnitCosts()) == 2 * features + 12_000


# --- plans -----------------------------------------------------------------------------------------------


def test_hours_by_hand():
    found = scale.estimate(IMAGENET_1K, BASE, Site(gpu_peak=100e12, utilisation=(0.25, 0.5)), MEASURED)
    assert found.flops == pytest.approx(1_281_167 * 35_126_120_448)
    assert found.gpu_hours == pytest.approx((4.50024e16 / 25e12 / 3600, 4.50024e16 / 50e12 / 3600), rel=1e-4)
    assert not found.gpu_measured
    assert found.gpu_hours_float32[1] == pytest.approx(4.50024e16 / (0.5 * 19.5e12) / 3600, rel=1e-4)
    assert found.cpu_core_hours == pytest.approx(1_281_167 * 35.126120448 * 0.02 / 3600)  # 250 core-hours
    assert found.decode_core_hours == pytest.approx(1_281_167 * 0.01 / 3600)
    assert found.probe_core_hours == pytest.approx(1_281_167 * 14 * 1000 * 768 * 1e-9 / 3600)
    assert found.image_bytes == pytest.approx(1_281_167 * 115e3)


def test_a_measured_gpu_takes_the_place_of_the_assumption():
    units = dataclasses.replace(MEASURED, gpu_images_per_s={"ViT-B/16": 1000.0})
    found = scale.estimate(BILLION, BASE, Site(), units)
    assert found.gpu_measured
    assert found.gpu_hours == pytest.approx((1e6 / 3600, 1e6 / 3600))
    assert not scale.estimate(BILLION, SMALL, Site(), units).gpu_measured


def test_what_was_not_measured_is_not_estimated():
    found = scale.estimate(IMAGENET_1K, BASE, Site(), UnitCosts())
    assert (found.cpu_core_hours, found.decode_core_hours, found.probe_core_hours) == (None, None, None)
    assert scale.feed(BASE, Site(), UnitCosts()).decode_cores is None


def test_further_passes_cost_operations_and_no_pictures():
    more = dataclasses.replace(IMAGENET_1K, more_passes=IMAGENET_1K.images)
    one, two = (scale.estimate(c, BASE, Site(), MEASURED) for c in (IMAGENET_1K, more))
    assert two.flops == 2 * one.flops
    assert two.image_bytes == one.image_bytes
    assert two.probe_core_hours == one.probe_core_hours


def test_passes_of_the_index():
    assert scale.TOKEN_BUDGET == information.BUDGET
    # 100 images of ViT-B: 100 · 196 · 768 · 4 = 60,211,200 bytes a state, so 17 states fit into 1 GiB
    assert scale.scrambling_passes(BASE, 100) == 200
    # 5,000 images: 3 GB a state, more than the budget, so each state has its pass
    assert scale.scrambling_passes(BASE, 5000) == 5000 * 15


def test_limits_by_hand_and_in_order():
    site = Site(memory=86_016e6, disk=43_008e6, cores=10, files=3e6)
    found = scale.limits(BASE, site, MEASURED, 1000)
    by_key = {limit.key: limit.images for limit in found}
    assert by_key["capture"] == pytest.approx(1e6)
    assert by_key["vectors"] == pytest.approx(1e6)
    assert by_key["tokens"] == pytest.approx(43_008e6 / 4_236_288)
    assert by_key["probes"] == pytest.approx(86_016e6 / (5 * 43_008 + 12_000))
    assert by_key["files"] == 3e6
    assert by_key["cpu_day"] == pytest.approx(10 * 86_400 / (0.02 * 35.126120448))
    assert by_key["probe_day"] == pytest.approx(10 * 86_400 / (1e-9 * 14 * 1000 * 768))
    assert by_key["gpu_day"] == pytest.approx(86_400 * 0.3 * 312e12 / 35_126_120_448)
    assert by_key["failure"] == pytest.approx(by_key["gpu_day"] / 24 * 50_000)
    assert [limit.images for limit in found] == sorted(by_key.values())
    assert set(by_key) == set(scale.LIMITS)
    assert "cpu_day" not in {limit.key for limit in scale.limits(BASE, site, UnitCosts(), 1000)}


def test_a_gpu_asks_for_more_decoding_than_the_cores_beside_it():
    site = Site(gpu_peak=35_126_120_448 * 2000.0, utilisation=(0.25, 0.5), network=115e6)
    found = scale.feed(BASE, site, MEASURED)
    assert found.images_per_s == pytest.approx(1000)
    assert found.decode_cores == pytest.approx(10)
    assert found.read_bytes_per_s == pytest.approx(115e6)
    assert found.gpus_per_link == pytest.approx(1)
    assert found.written_bytes_per_s == pytest.approx(1000 * 43_008)
