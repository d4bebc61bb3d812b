"""The GPU check runs anywhere in its reduced form, on few packages; its floors are those by hand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from processes import environment

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ABSENT = (
    "pydantic datasets entmax jaxtyping typer pyarrow papermill nbformat matplotlib seaborn altair "
    "vitscope.runs vitscope.figures"
)
BARE = f"""
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {ABSENT.split()}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {ABSENT.split()} else find(name, *rest)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[1])
sys.argv = ["gpu_check.py", *sys.argv[2:]]
runpy.run_path(sys.path[0] + "/gpu_check.py", run_name="__main__")
"""


@pytest.fixture
def modules(monkeypatch):
    """gpu_check and gpu_floor, which lie beside their script."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_check
    import gpu_floor

    return gpu_check, gpu_floor


def test_reduced_form_passes_on_few_packages(tmp_path):
    path = tmp_path / "check.json"
    done = subprocess.run(
        [sys.executable, "-c", BARE, BENCHMARKS, "--reduced", "--device", "cpu", "--json", path],
        env=environment(), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    sections = [part.strip() for part in found["note"].split(";")]
    assert [s.partition(" (")[0] for s in sections] == [
        f"{name}: ok" for name in ("peaks", "entmax", "parity", "captures", "probes", "training")
    ]
    assert {row["section"] for row in found["rows"]} == {s.partition(":")[0] for s in sections}
    bounds = [row for row in found["rows"] if row["target"] is not None]
    assert len(bounds) >= 14
    assert all(row["reached"] for row in bounds)
    floors = [row for row in found["rows"] if row["against"] == "floor"]
    assert all(row["values"]["floor_ms"] > 0 and row["ratio"]["median"] > 0 for row in floors)


def test_a_failing_section_is_recorded_and_the_rest_goes_on(modules, monkeypatch):
    gpu_check, _ = modules
    from gpu_sections import error

    def broken(check):
        yield error("one", "another", 2.0, 1.0)
        raise RuntimeError("no such kernel")

    def fine(check):
        yield error("two", "another", 0.5, 1.0)

    for name, section in (("peaks", fine), ("entmax", broken), ("probes", fine)):
        monkeypatch.setitem(gpu_check.SECTIONS, name, section)
    written = []
    check = gpu_check.Check("cpu", True, 1)
    rows, ended = gpu_check.run(check, ["entmax", "probes"], lambda rows, note: written.append(len(rows)))
    assert [(row["section"], row["reached"]) for row in rows] == [
        ("peaks", True), ("entmax", False), ("probes", True),
    ]  # fmt: skip
    assert ended["entmax"].startswith("RuntimeError: no such kernel (broken, line ")
    assert ended["probes"].startswith("ok")
    assert written == [1, 2, 3], "each section is on disk before the next begins"
    ended = gpu_check.run(gpu_check.Check("cpu", False, 0), ["probes"], lambda rows, note: None)[1]
    assert ended["probes"].startswith("left out: no time")


def test_floors_by_hand(modules):
    """A ViT of width 4, one block, 2 heads, 4 patches of 2 × 2 pixels: T = 5, D = 4, M = 16."""
    _, floor = modules
    model = VisionTransformer(img_size=4, patch_size=2, embed_dim=4, depth=1, num_heads=2, num_classes=0)
    shape = floor.of_model(model)
    assert shape == floor.Shape(width=4, depth=1, heads=2, patches=4, patch=2)
    embed, qkv, attention, projection, mlp = 2 * 4 * 12 * 4, 480, 400, 160, 1280
    assert floor.forward_operations(shape) == embed + qkv + attention + projection + mlp == 2704
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(torch.zeros(1, 3, 4, 4))
    assert counter.get_total_flops() == 2704
    matrices = sum(p.numel() for n, p in model.named_parameters() if "weight" in n and p.ndim > 1)
    assert floor.parameters(shape) == matrices == 240
    assert floor.forward_bytes(shape, images=3, size=2) == 2 * (240 + 3 * (48 + 5 * (16 + 24 + 8 + 32)))
    assert floor.map_operations(shape) == 4 * 25 * 4 + 4 * 25 * 2
    peaks = floor.Peaks({torch.float32: 1000.0, torch.bfloat16: 4000.0}, bandwidth=100.0)
    assert peaks.floor({torch.bfloat16: 4000.0, torch.float32: 500.0}, moved=100.0) == 1.5
    assert peaks.floor({torch.bfloat16: 4000.0}, moved=300.0) == 3.0
