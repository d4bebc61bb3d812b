"""What every benchmark shares: contestants in turn, medians with their range, and results as JSON.

A result is a list of rows. A row says `what` was measured, `against` which contestant, in which `setting`, and
gives `ratio` (median, min, max over the rounds; above 1 is in our favour unless `better` is "lower"), the
`target` it was meant to reach, if any, and `values`: seconds, images per second or MiB behind the ratio.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "timm", "numpy", "scikit-learn", "entmax", "torchvision", "vit-prisma", "thingsvision")


def alternate(
    runs: Mapping[str, Callable[[], Any]], rounds: int, *, warm_up: bool = True, device: str = "cpu"
) -> dict[str, list[float]]:
    """Seconds of every contestant in every round; each round begins with another one."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    if warm_up:
        for run in runs.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            wait()
            begin = time.perf_counter()
            runs[name]()
            wait()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest, to four digits."""
    numbers = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def ratio(seconds: Mapping[str, list[float]], slower: str, faster: str) -> dict[str, float]:
    """How many times as long `slower` takes as `faster`, round by round."""
    return spread([a / b for a, b in zip(seconds[slower], seconds[faster], strict=True)])


def row(
    what: str,
    against: str,
    ratio: dict[str, float],
    *,
    setting: str = "",
    target: float | None = None,
    better: str = "higher",
    **values: float | str | None,
) -> dict[str, Any]:
    """One line of a result, printed as it is made."""
    reached = None if target is None else (ratio["median"] >= target) == (better == "higher")
    if target is not None and ratio["median"] == target:
        reached = True
    line = {"what": what, "against": against, "setting": setting, "ratio": ratio, "better": better,
            "target": target, "reached": reached, "values": values}  # fmt: skip
    goal = (
        ""
        if target is None
        else f"  {'≥' if better == 'higher' else '≤'} {target:g}: {'reached' if reached else 'missed'}"
    )
    print(f"{what} : {against}  {ratio['median']:.4g} × ({ratio['min']:.4g}–{ratio['max']:.4g}){goal}  "
          + ", ".join(f"{k} {v}" for k, v in values.items()), flush=True)  # fmt: skip
    return line


def machine() -> dict[str, Any]:
    """Where a result was measured."""
    found: dict[str, Any] = {
        "cpu": _cpu(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next(
        (x.partition(":")[2].strip() for x in lines if x.startswith("model name")), platform.machine()
    )


def write(name: str, rows: list[dict[str, Any]], args: argparse.Namespace, note: str = "") -> Path:
    """`results/NAME.json`, or the file that `--json` names."""
    path = Path(getattr(args, "json", None) or RESULTS / f"{name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "name": name,
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "note": note,
        "rows": rows,
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
