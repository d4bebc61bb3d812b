"""Are the kernels right on a GPU, and how far from what the GPU could do? At most ten minutes on one.

Each section stands alone: one that fails is recorded with its error, one that does not fit into the time is
left out and said so. Speed is given as a ratio to the floor (`gpu_floor.py`): 1 is what the machine allows.

    python benchmarks/gpu_check.py                       on a GPU; without one, the reduced form on the CPU
    PYTHONPATH=lib python benchmarks/gpu_check.py        without installation: torch, timm, numpy, pandas,
                                                         scikit-learn and safetensors are enough
    python benchmarks/gpu_check.py --sections entmax training
"""

import argparse
import importlib.util
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

import common
import torch
from gpu_sections import SECTIONS, Check


class _AnyAnnotation:
    def __class_getitem__(cls, item: object) -> type:
        return cls


def _annotation(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _AnyAnnotation


if importlib.util.find_spec("jaxtyping") is None:  # it is read in annotations alone
    module = types.ModuleType("jaxtyping")
    module.__getattr__ = _annotation  # type: ignore[method-assign]
    sys.modules["jaxtyping"] = module


def run(check: Check, chosen: list[str], write: Callable[[list[dict], str], Any]) -> tuple[list[dict], dict]:
    """All rows, and how each section ended; written after every section."""
    rows: list[dict[str, Any]] = []
    ended: dict[str, str] = {}
    for name in dict.fromkeys(["peaks", *chosen]):
        print(f"== {name}: {SECTIONS[name].__doc__}", flush=True)
        start = time.monotonic()
        if check.left() < 20 and not check.reduced:
            ended[name] = "left out: no time"
        else:
            ended[name] = "ok"
            try:
                for row in SECTIONS[name](check):
                    rows.append({"section": name, **row})
            except Exception as failure:  # whatever it is, the other sections have something to say
                where = traceback.extract_tb(failure.__traceback__)[-1]
                ended[name] = f"{type(failure).__name__}: {failure} ({where.name}, line {where.lineno})"
        ended[name] += f" ({time.monotonic() - start:.0f} s)"
        write(rows, "; ".join(f"{k}: {v}" for k, v in ended.items()))
    return rows, ended


def main(arguments: list[str] | None = None) -> int:
    """Returns the number of sections that failed and bounds that were missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--reduced", action="store_true", help="small sizes; always on a CPU")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args(arguments)
    check = Check(args.device, args.reduced or args.device == "cpu", args.minutes)
    rows, ended = run(check, args.sections, lambda rows, note: common.write("gpu_check", rows, args, note))
    missed = [row for row in rows if row["reached"] is False]
    print("\n" + "\n".join(f"{name:10s} {how}" for name, how in ended.items()))
    for row in missed:
        print(f"MISSED {row['what']} {row['setting']}: {row['ratio']['median']:.3g}, bound {row['target']:g}")
    return len(missed) + sum(not how.startswith(("ok", "left out")) for how in ended.values())


if __name__ == "__main__":
    sys.exit(min(main(), 1))
