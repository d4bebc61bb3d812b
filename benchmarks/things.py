"""thingsvision's extraction of all blocks against a bare forward of the same model, in its own environment.

    make peers-things                       once: 7 GB, because it pins torchvision 0.15.2, and so torch 2.0.1
    python benchmarks/things.py             ViT-S/16 at 224 px; then peak memory at 208 and 416 images

It cannot be installed beside our torch, so it never meets `capture` in one process. What can be compared is
how much of a bare forward's speed is left, each to its own: the same timm model, the same reductions (CLS and
mean of the patches of the blocks' outputs), the same machine. It returns the tokens of all images.
"""

import argparse
import contextlib
import io
import json
import resource
import sys
from collections.abc import Callable
from typing import Any

import common
import torch
from torch import Tensor

WHAT = "thingsvision extract_features of all blocks, CLS and patch mean"
BARE = "timm's bare forward_features, in its environment"
HOW_TO_GET = "thingsvision is not installed; `make peers-things` gives it an environment of its own (7 GB)"
_UNIT = 2**20 if sys.platform == "darwin" else 2**10


def found() -> bool:
    """Whether this interpreter has thingsvision."""
    try:
        import thingsvision  # noqa: F401
    except ImportError:
        return False
    return True


def extraction() -> tuple[Any, Callable[[list[Tensor]], Any]]:
    """The model, and a function that extracts and reduces all batches."""
    from thingsvision import get_extractor

    extractor = get_extractor(
        model_name="vit_small_patch16_224", source="timm", device="cpu", pretrained=False
    )  # fmt: skip
    extractor.model.eval()
    names = [f"blocks.{i}" for i in range(len(extractor.model.blocks))]

    def run(batches: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            kept = extractor.extract_features(
                batches=batches, module_names=names, flatten_acts=False, output_type="tensor"
            )
        return [(kept[name][:, 0], kept[name][:, 1:].mean(1)) for name in names]

    return extractor.model, run


def random_batches(args: argparse.Namespace, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(args.batch, 3, 224, 224, generator=generator) for _ in range(count)]


def speed(args: argparse.Namespace) -> dict[str, Any]:
    model, run = extraction()
    batches = random_batches(args, args.batches)

    @torch.inference_mode()
    def bare() -> None:
        for batch in batches:
            model.forward_features(batch)

    seconds = common.alternate({BARE: bare, WHAT: lambda: run(batches)}, args.rounds)
    setting = f"ViT-S/16, 224 px, 12 blocks, batches of {args.batch}, torch {torch.__version__}"
    return common.row(WHAT, BARE, common.ratio(seconds, BARE, WHAT), setting=setting)


def memory(args: argparse.Namespace, images: int) -> float:
    """Peak MiB of a pass over so many images; this process does nothing else."""
    _, run = extraction()
    one = random_batches(args, 1)[0]
    run([one] * (images // args.batch))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _UNIT


def main() -> None:
    parser = common.parser(__doc__, batch=16, batches=2, rounds=7, threads=0, few=208, many=416)
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="stay in this environment")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = common.parse(parser, batch=1, batches=1, rounds=2, few=1, many=2)
    if args.peers:
        common.under("things")
    if args.child:
        print(json.dumps({"peak": memory(args, args.child)}))
        return
    if not found():
        common.write("things", [common.absent(WHAT, BARE, HOW_TO_GET)], args)
        return
    rows = [speed(args)]
    same = [f"--{name}={getattr(args, name)}" for name in ("batch", "threads")]
    few, many = (common.child(__file__, "--child", n, *same)["peak"] for n in (args.few, args.many))
    rows.append(
        common.row(
            f"thingsvision: peak memory at {args.many} images", f"at {args.few} images",
            common.spread([many / few]), better="lower", setting=rows[0]["setting"],
            **{"MiB": round(many), "MiB of the other": round(few)},
        )
    )  # fmt: skip
    common.write("things", rows, args)


if __name__ == "__main__":
    main()
