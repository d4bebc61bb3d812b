"""The fusion heads against what one would write without them, and the seconds of all ten on one dataset.

    python benchmarks/heads.py                        10,000 images, 12 states of width 128, 10 classes
    python benchmarks/heads.py --images 1000 --steps 60

Peers take turns with ours in one process, with the same number of threads, on the same features, splits and
numbers of updates:

- VFusion and AttentiveLayerFusion: their settings one after the other as plain modules with AdamW (a loop
  over batches), then the refit of the best. Ours trains the settings side by side.
- SuperLearner: scikit-learn's `StackingClassifier` of one logistic regression per state, five folds, at one
  strength; ours chooses among four strengths per state as well. --no-stacking leaves this slowest part out.

Features are those of `probes.py`: Gaussian around class means, ill-conditioned, clearer with depth.
"""

import time
from collections.abc import Callable
from typing import Any

import common
import torch
from probes import middle, planted
from threadpoolctl import threadpool_limits
from torch import Tensor

from vitscope import rivals
from vitscope.fusion import AttentiveLayerFusion, Head, SelectionBudget, SuperLearner, VFusion, out_of_fold

import heads_peers as peers  # isort: skip

Fitted = dict[str, Any]
PLAIN = "plain loop over its settings"


def compare(
    ours: tuple[str, Callable[[], Any]],
    other: tuple[str, Callable[[], Any]],
    score: tuple[Callable[[Any], float], Callable[[Any], float]],
    setting: str,
    rounds: int,
) -> dict[str, Any]:
    """One row: how many times as long the other takes, and both accuracies in %."""
    kept: Fitted = {}
    runs = {name: (lambda n=name, f=fit: kept.update({n: f()})) for name, fit in (ours, other)}
    seconds = common.alternate(runs, rounds, warm_up=False)
    (own, _), (peer, _) = ours, other
    return common.row(
        own, peer, common.ratio(seconds, peer, own), setting=setting, seconds=middle(seconds[own]),
        **{"seconds of the other": middle(seconds[peer]),
           "accuracy %": round(100 * score[0](kept[own]), 1),
           "accuracy % of the other": round(100 * score[1](kept[peer]), 1)},
    )  # fmt: skip


def all_heads(x: Tensor, labels: Tensor, test: Tensor, truth: Tensor, setting: str, **budget: int) -> list:
    """Seconds of the members and of each head that the chapters compare, as shares of the sum; once each."""
    spent: dict[str, tuple[float, float | None]] = {}

    def timed(name: str, work: Callable[[], Any], score: Callable[[], float] | None = None) -> Any:
        begin = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - begin
        spent[name] = seconds, None if score is None else round(100 * score(), 1)
        return result

    members = timed("members, out of fold (shared)", lambda: out_of_fold(x, labels))
    logits = members.probes.logits(test)
    for name, head in rivals.heads(**budget).items():
        fitted, seen = (members.logits, logits) if head.uses_logits else (None, None)
        timed(
            name,
            lambda h=head, m=fitted: h.fit(x, m, labels),
            lambda h=head, m=seen: float(h.accuracy(test, m, truth)["accuracy"]),
        )
    total = sum(seconds for seconds, _ in spent.values())
    rows = []
    for name, (seconds, accuracy) in spent.items():
        values: dict[str, Any] = {"seconds": middle([seconds])}
        if accuracy is not None:
            values["accuracy %"] = accuracy
        share = common.spread([seconds / total])
        rows.append(
            common.row(name, "all ten, members included", share, setting=setting, better="lower", **values)
        )
    return rows


def right(model: torch.nn.Module, x: Tensor, truth: Tensor) -> float:
    with torch.no_grad():
        return (model(x).argmax(1) == truth).float().mean().item()


def main() -> None:
    sizes = {"states": 12, "images": 10_000, "width": 128, "classes": 10, "rounds": 3, "threads": 2}
    sizes |= {"configurations": 4, "steps": 300, "hidden": 256, "latent": 64, "seed": 0, "test": 2000}
    parser = common.parser(__doc__, **sizes)
    parser.add_argument("--no-stacking", dest="stacking", action="store_false")
    quick = {"states": 2, "images": 60, "test": 50, "width": 8, "classes": 3, "rounds": 1, "threads": 1}
    quick |= {"configurations": 1, "steps": 4, "hidden": 8, "latent": 4}
    args = common.parse(parser, **quick)
    x, labels = planted(args.states, args.images + args.test, args.width, args.classes, args.seed)
    test, truth = x[:, args.images :].contiguous(), labels[args.images :]
    x, labels = x[:, : args.images].contiguous(), labels[: args.images]
    budget = {k: getattr(args, k) for k in ("configurations", "steps", "hidden", "latent")}
    setting = f"{args.images} images, {args.states} states of width {args.width}, {args.classes} classes, "
    setting += f"{args.configurations} settings of {args.steps} updates or more, {args.threads} threads"
    own = SelectionBudget(args.configurations, steps=args.steps)
    vfusion, attentive = (
        VFusion(hidden=args.hidden, latent=args.latent, budget=own),
        AttentiveLayerFusion(budget=own),
    )
    tokens = torch.nn.functional.normalize(test, dim=2).transpose(0, 1)

    def accuracy(head: Head) -> float:
        return float(head.accuracy(test, None, truth)["accuracy"])

    with threadpool_limits(args.threads or None):
        rows = [
            compare(
                ("VFusion", lambda: vfusion.fit(x, None, labels)),
                (PLAIN, lambda: peers.vfusion(vfusion, x, labels)),
                (accuracy, lambda model: right(model, peers.stacked(test), truth)), setting, args.rounds,
            ),
            compare(
                ("AttentiveLayerFusion", lambda: attentive.fit(x, None, labels)),
                (PLAIN + ", fused attention", lambda: peers.attentive(attentive, x, labels)),
                (accuracy, lambda model: right(model, tokens, truth)), setting, args.rounds,
            ),
        ]  # fmt: skip
        if args.stacking:
            flat = test.transpose(0, 1).flatten(1).numpy()
            row = compare(
                ("SuperLearner", lambda: SuperLearner().fit(x, None, labels)),
                ("scikit-learn StackingClassifier, one strength", lambda: peers.stacking(x, labels, 1e-3)),
                (accuracy, lambda model: model.score(flat, truth.numpy())), setting, args.rounds,
            )  # fmt: skip
            rows.append(row)
        rows += all_heads(x, labels, test, truth, setting, **budget)
    common.write("heads", rows, args)


if __name__ == "__main__":
    main()
