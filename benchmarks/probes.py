"""The batched probes against loops of scikit-learn's estimators, and paths of ridge strengths.

    python benchmarks/probes.py                                   13 states, 2,000 images, 8 and 40 classes
    python benchmarks/probes.py --images 500 --classes 8 --rounds 1 --paths 7

Both sides follow one protocol on the same numbers: same split, standardised, the same strengths, the same
choice on validation, a refit of the chosen one. They take turns in one process with the same number of
threads, to which threadpoolctl holds both. The loops run in float32 as users run them, and logistic
regression once in float64 with a hundredth of its default tolerance: on features as ill-conditioned as these
the default stops early, and only the tight loop tells how accurate the probe's solution is.

A ridge path is many strengths from one eigendecomposition. RidgeClassifierCV has that, too: it chooses by
leaving out rows, which needs neither validation images nor a refit, so its accuracy can differ.

Features are Gaussian around class means, with a spectrum that decays as 1/rank, ill-conditioned as a ViT's
states are, and a signal that grows with depth. The benchmark fails where accuracies differ by more than
`MOST_APART` from the converged loop.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import common
import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier, RidgeClassifierCV
from threadpoolctl import threadpool_limits

from vitscope.probes import GRID, ProbeSet, fit_probes, fit_ridge
from vitscope.splits import stratified

Estimator = LogisticRegression | RidgeClassifier
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
MOST_APART = 1.0  # points of accuracy, at any state


def planted(
    states: int, images: int, width: int, classes: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [S, N, D] of growing separability, and labels [N]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, images)
    spectrum = 1.0 / np.arange(1, width + 1)
    features = np.empty((states, images, width), dtype=np.float32)
    centres = rng.normal(size=(classes, width)) * spectrum
    for s in range(states):
        rotation = np.linalg.qr(rng.normal(size=(width, width)))[0]
        signal = 0.1 + 0.25 * s / max(1, states - 1)
        noise = rng.normal(size=(images, width)) * spectrum
        features[s] = (noise + signal * centres[labels]) @ rotation
    return torch.from_numpy(features), torch.from_numpy(labels)


def logistic(l2: float, images: int, tight: bool) -> Estimator:
    return LogisticRegression(C=1 / (l2 * images), max_iter=20_000, tol=1e-6 if tight else 1e-4)


def ridge(l2: float, images: int, tight: bool) -> Estimator:
    # its targets are −1 and 1 where ours are 0 and 1: twice the scores, the same order of classes
    return RidgeClassifier(alpha=l2 * images)


def loop(
    make: Callable[[float, int, bool], Estimator],
    parts: Parts,
    strengths: Sequence[float] = GRID,
    *,
    tight: bool = False,
) -> np.ndarray:
    """The usual way: one estimator per state and strength. Test accuracy per state."""
    features, labels, test, truth = parts
    dtype = np.float64 if tight else np.float32
    train, held = (part.numpy() for part in stratified(labels, 0.2, seed=0))
    y, scores = labels.numpy(), []
    for x, x_test in zip(features.numpy(), test.numpy(), strict=True):
        a, b = _standard(x[train], (x[train], x[held]), dtype)
        right = [make(value, len(a), tight).fit(a, y[train]).score(b, y[held]) for value in strengths]
        a, b = _standard(x, (x, x_test), dtype)
        final = make(strengths[int(np.argmax(right))], len(a), tight).fit(a, y)
        scores.append(final.score(b, truth.numpy()))
    return np.array(scores)


def by_leaving_out(parts: Parts, strengths: Sequence[float]) -> np.ndarray:
    """RidgeClassifierCV of every state: all strengths from one decomposition, chosen by leaving out rows."""
    features, labels, test, truth = parts
    scores = []
    for x, x_test in zip(features.numpy(), test.numpy(), strict=True):
        a, b = _standard(x, (x, x_test), np.float32)
        model = RidgeClassifierCV(alphas=[value * len(a) for value in strengths]).fit(a, labels.numpy())
        scores.append(model.score(b, truth.numpy()))
    return np.array(scores)


def _standard(reference: np.ndarray, parts: tuple[np.ndarray, ...], dtype: type) -> list[np.ndarray]:
    mean, scale = reference.mean(0, dtype=np.float64), reference.std(0, dtype=np.float64)
    return [((part - mean) / scale).astype(dtype) for part in parts]


def batched(fit: Callable[..., ProbeSet], parts: Parts, strengths: Sequence[float] = GRID) -> np.ndarray:
    """Our way: all states and strengths as one problem. Test accuracy per state."""
    features, labels, test, truth = parts
    return fit(features, labels, l2=strengths).accuracy(test, truth)["accuracy"].numpy()


def halves(args: argparse.Namespace, width: int, classes: int) -> Parts:
    """Training and test features and labels."""
    features, labels = planted(args.states, 2 * args.images, width, classes, args.seed)
    n = args.images
    return (
        features[:, :n].contiguous(), labels[:n].contiguous(),
        features[:, n:].contiguous(), labels[n:].contiguous(),
    )  # fmt: skip


def turns(runs: dict[str, Callable[[], np.ndarray]], rounds: int) -> tuple[dict, dict]:
    """Seconds and the last accuracies of each. A first call of ours opens threads, which is no one's time."""
    found: dict[str, np.ndarray] = {}

    def keep(name: str) -> Callable[[], None]:
        return lambda: found.update({name: runs[name]()})

    runs["ours"]()
    return common.alternate({name: keep(name) for name in runs}, rounds, warm_up=False), found


def gap(one: np.ndarray, other: np.ndarray) -> float:
    return round(100 * float(np.abs(one - other).max()), 2)


def must_agree(points: float, what: str) -> None:
    if points > MOST_APART:
        raise SystemExit(f"{what}: accuracies are {points} points apart, more than {MOST_APART}")


def middle(seconds: list[float]) -> float:
    return float(f"{statistics.median(seconds):.4g}")


def compare_logistic(classes: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All strengths of the grid, against the loop as it is and against the converged one."""
    parts = halves(args, args.width, classes)
    setting = f"{args.states} states × {len(GRID)} strengths, {args.images} images, width {args.width}, "
    setting += f"{classes} classes, {args.threads} threads"
    seconds, found = turns(
        {"ours": lambda: batched(fit_probes, parts), "loop": lambda: loop(logistic, parts)}, args.rounds
    )
    begin = time.perf_counter()
    exact = loop(logistic, parts, tight=True)
    tight = time.perf_counter() - begin
    apart, ours = gap(found["ours"], exact), middle(seconds["ours"])
    must_agree(apart, f"fit_probes, {classes} classes")
    return [
        common.row(
            "fit_probes", "loop of LogisticRegression", common.ratio(seconds, "loop", "ours"),
            setting=setting, target=4, seconds=ours, **{"seconds of the other": middle(seconds["loop"]),
            "largest gap in points": gap(found["ours"], found["loop"])},
        ),
        common.row(
            "fit_probes", "loop of LogisticRegression, converged (float64, tolerance 1e-6, once)",
            common.spread([tight / s for s in seconds["ours"]]),
            setting=setting, seconds=ours, **{"seconds of the other": middle([tight]),
            "largest gap in points": apart},
        ),
    ]  # fmt: skip


def compare_path(strengths: int, width: int, classes: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A path of ridge strengths against a loop, and against scikit-learn's own path."""
    parts = halves(args, width, classes)
    path = GRID if strengths == len(GRID) else tuple(np.logspace(1, -5, strengths).tolist())
    setting = f"{args.states} states × {strengths} strengths, {args.images} images, width {width}, "
    setting += f"{classes} classes, {args.threads} threads"
    runs = {
        "ours": lambda: batched(fit_ridge, parts, path),
        "loop": lambda: loop(ridge, parts, path),
        "path": lambda: by_leaving_out(parts, path),
    }
    seconds, found = turns(runs, args.rounds)
    apart = gap(found["ours"], found["loop"])
    must_agree(apart, f"fit_ridge, {strengths} strengths, width {width}")

    def line(other: str, name: str, target: float | None, points: float) -> dict[str, Any]:
        return common.row(
            "fit_ridge", name, common.ratio(seconds, other, "ours"), setting=setting, target=target,
            seconds=middle(seconds["ours"]), **{"seconds of the other": middle(seconds[other]),
            "largest gap in points": points},
        )  # fmt: skip

    return [
        line("loop", "loop of RidgeClassifier", 40, apart),
        line("path", "RidgeClassifierCV, leaving out rows", None, gap(found["ours"], found["path"])),
    ]


def main() -> None:
    parser = common.parser(__doc__, states=13, images=2000, width=128, rounds=3, threads=1, seed=0)
    parser.add_argument("--classes", type=int, nargs="+", default=[8, 40], help="one run for each")
    parser.add_argument("--paths", type=int, nargs="+", default=[7, 25, 100], help="strengths of ridge paths")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 384], help="widths of ridge paths")
    args = common.parse(parser, states=2, images=300, width=8, rounds=2, classes=[3], paths=[7, 10],
                        widths=[8])  # fmt: skip
    if min(args.classes) < 3:
        parser.error("--classes from 3 on: for two, scikit-learn fits one weight vector, at another penalty")
    with threadpool_limits(args.threads or None):
        rows = [row for classes in args.classes for row in compare_logistic(classes, args)]
        for width in args.widths:
            for strengths in args.paths:
                rows += compare_path(strengths, width, args.classes[0], args)
    common.write("probes", rows, args)


if __name__ == "__main__":
    main()
