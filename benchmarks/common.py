"""What every benchmark shares: contestants in turn, medians with their range, and results as JSON.

A result is a list of rows. A row says `what` was measured, `against` which contestant, in which `setting`,
and gives `ratio` (median, min, max over the rounds; above 1 is in our favour unless `better` is "lower"), the
`target` it was meant to reach, if any, and `values`: seconds, images per second or MiB behind the ratio. A
contestant that was not there has a row too, without a ratio, which says in `absent` how to get it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "timm", "numpy", "scikit-learn", "entmax", "torchvision", "vit-prisma", "thingsvision")
_STARTED_BY = "VITSCOPE_BENCHMARK_UNDER"


def parser(doc: str | None, **sizes: int) -> argparse.ArgumentParser:
    """Options that are numbers, by name and default, and those that every script has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in sizes.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    made.add_argument("--quick", action="store_true", help="sizes for a test; written only with --json")
    made.add_argument("--json", help="write the results here, not to benchmarks/results")
    return made


def parse(made: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """Read the command line; with --quick, the defaults are those given here."""
    if "--quick" in sys.argv[1:]:
        made.set_defaults(**quick)
    args = made.parse_args()
    if getattr(args, "threads", 0):
        torch.set_num_threads(args.threads)
    return args


def under(environment: str) -> None:
    """Go on as the same command in `.venv-NAME`, where that environment exists."""
    folder = ROOT / f".venv-{environment}"
    python = folder / "bin" / "python"
    if python.exists() and Path(sys.prefix).resolve() != folder.resolve() and _STARTED_BY not in os.environ:
        os.environ[_STARTED_BY] = environment
        sys.stdout.flush()
        os.execv(python, [str(python), *sys.argv])


def child(script: str, *arguments: object) -> dict[str, Any]:
    """What a script prints as its last line, JSON, when it is run with these arguments as a process."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


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
    reached, goal = None, ""
    if target is not None:
        reached = ratio["median"] >= target if better == "higher" else ratio["median"] <= target
        goal = f"{'≥' if better == 'higher' else '≤'} {target:g}: {'reached' if reached else 'missed'}"
    print(
        f"{what} : {against}  {ratio['median']:.4g} × ({ratio['min']:.4g}–{ratio['max']:.4g})  "
        f"{goal}  {setting}  " + ", ".join(f"{k} {v}" for k, v in values.items()),
        flush=True,
    )
    return {"what": what, "against": against, "setting": setting, "ratio": ratio, "better": better,
            "target": target, "reached": reached, "values": values}  # fmt: skip


def absent(what: str, against: str, why: str, *, setting: str = "", target: float | None = None) -> dict:
    """The line of a contestant that was not there: no ratio, and a target that is neither met nor missed."""
    print(f"{what} : {against}  not measured: {why}", flush=True)
    return {"what": what, "against": against, "setting": setting, "ratio": None, "better": "higher",
            "target": target, "reached": None, "values": {}, "absent": why}  # fmt: skip


def machine() -> dict[str, Any]:
    """Where a result was measured."""
    found: dict[str, Any] = {
        "cpu": _cpu(),
        "instructions": _instructions(),
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


def _instructions() -> str:
    capability = getattr(torch.backends.cpu, "get_cpu_capability", None)  # torch 2.0 has none
    return capability() if capability else ""


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next(
        (x.partition(":")[2].strip() for x in lines if x.startswith("model name")), platform.machine()
    )


def write(name: str, rows: list[dict[str, Any]], args: argparse.Namespace, note: str = "") -> Path | None:
    """`results/NAME.json`, or the file that `--json` names; --quick alone writes nothing."""
    named = getattr(args, "json", None)
    if getattr(args, "quick", False) and not named:
        print("--quick: nothing is written")
        return None
    path = Path(named or RESULTS / f"{name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = [x for x in sys.argv[1:] if not named or (x not in ("--json", named) and x != f"--json={named}")]
    document = {
        "name": name,
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *shown]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "note": note,
        "rows": rows,
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
