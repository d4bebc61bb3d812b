"""The batched probes against loops of scikit-learn's LogisticRegression and RidgeClassifier.

    python benchmarks/probes.py                                   13 states, 2,000 images, 8 and 40 classes
    python benchmarks/probes.py --images 500 --classes 8 --rounds 1

Both sides follow one protocol on the same numbers: same split, standardised, the same strengths, the same
choice on validation, a refit of the chosen one. They take turns in one process with the same number of
threads, to which threadpoolctl holds both; each ratio is the median over the rounds. The loops run in
float32 as users run them, and once in float64, logistic regression with a hundredth of its default
tolerance: on features as ill-conditioned as these the default stops early, and only the tight loop tells
how accurate the probe's solution is. Features are Gaussian around class means, with a spectrum that decays
as 1/rank, ill-conditioned as a ViT's states are, and a signal that grows with depth.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from threadpoolctl import threadpool_limits

from vitscope.probes import GRID, ProbeSet, fit_probes, fit_ridge
from vitscope.splits import stratified

T = TypeVar("T")
Estimator = LogisticRegression | RidgeClassifier


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


KINDS = {
    "LogisticRegression": (fit_probes, logistic),
    "RidgeClassifier": (fit_ridge, ridge),
}


def loop(
    make: Callable[[float, int, bool], Estimator],
    features: torch.Tensor,
    labels: torch.Tensor,
    test: torch.Tensor,
    truth: torch.Tensor,
    *,
    tight: bool = False,
) -> np.ndarray:
    """The usual way: one estimator per state and strength. Test accuracy per state."""
    dtype = np.float64 if tight else np.float32
    train, held = (part.numpy() for part in stratified(labels, 0.2, seed=0))
    y, scores = labels.numpy(), []
    for x, x_test in zip(features.numpy(), test.numpy(), strict=True):
        a, b = _standard(x[train], (x[train], x[held]), dtype)
        right = [make(value, len(a), tight).fit(a, y[train]).score(b, y[held]) for value in GRID]
        a, b = _standard(x, (x, x_test), dtype)
        final = make(GRID[int(np.argmax(right))], len(a), tight).fit(a, y)
        scores.append(final.score(b, truth.numpy()))
    return np.array(scores)


def _standard(reference: np.ndarray, parts: tuple[np.ndarray, ...], dtype: type) -> list[np.ndarray]:
    mean, scale = reference.mean(0, dtype=np.float64), reference.std(0, dtype=np.float64)
    return [((part - mean) / scale).astype(dtype) for part in parts]


def batched(
    fit: Callable[..., ProbeSet],
    train: torch.Tensor,
    labels: torch.Tensor,
    test: torch.Tensor,
    truth: torch.Tensor,
) -> tuple[ProbeSet, np.ndarray]:
    """Our way: all states and strengths as one problem. The probes, and test accuracy per state."""
    probes = fit(train, labels)
    return probes, probes.accuracy(test, truth)["accuracy"].numpy()


def compare(kind: str, classes: int, args: argparse.Namespace) -> str:
    """Let both sides take turns; print accuracies state by state, return the line that sums up."""
    fit, make = KINDS[kind]
    features, labels = planted(args.states, 2 * args.images, args.width, classes, args.seed)
    parts = [
        *(part.contiguous() for part in (features[:, : args.images], labels[: args.images])),
        *(part.contiguous() for part in (features[:, args.images :], labels[args.images :])),
    ]
    ours: list[float] = []
    theirs: list[float] = []
    exactly: list[float] = []
    with threadpool_limits(args.threads):
        for _ in range(args.rounds):
            probes, accuracy = timed(ours, lambda: batched(fit, *parts))
            usual = timed(theirs, lambda: loop(make, *parts))
        exact = timed(exactly, lambda: loop(make, *parts, tight=True))

    print(f"\n{kind}, {classes} classes: accuracy in %, and by how many points the batched probe differs")
    print(f"{'state':>5} {'l2':>8} {'batched':>8} {'loop':>8} {'gap':>6} {'tight loop':>11} {'gap':>6}")
    for s in range(args.states):
        own, one, other = (100 * a[s] for a in (accuracy, usual, exact))
        print(f"{s:>5} {probes.chosen_l2[s].item():>8g} {own:>8.2f} {one:>8.2f} {own - one:>6.2f} ", end="")
        print(f"{other:>11.2f} {own - other:>6.2f}")
    if not probes.converged.all():
        print(f"not converged: {int((~probes.converged).sum())} states")
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    tight_ratio = exactly[0] / statistics.median(ours)
    gaps = [100 * np.abs(accuracy - a).max() for a in (usual, exact)]
    return (
        f"{kind:<18} {classes:>7} {statistics.median(ours):>9.2f} {statistics.median(theirs):>7.2f} "
        f"{statistics.median(ratios):>7.1f} ({min(ratios):.1f}–{max(ratios):.1f}) {gaps[0]:>6.2f} "
        f"{tight_ratio:>11.1f} {gaps[1]:>6.2f}"
    )


def timed(seconds: list[float], work: Callable[[], T]) -> T:
    begin = time.perf_counter()
    result = work()
    seconds.append(time.perf_counter() - begin)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("states", 13), ("images", 2000), ("width", 128), ("rounds", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--classes", type=int, nargs="+", default=[8, 40], help="one run for each")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if min(args.classes) < 3:
        parser.error("--classes from 3 on: for two, scikit-learn fits one weight vector, at another penalty")
    torch.set_num_threads(args.threads)

    lines = [compare(kind, classes, args) for classes in args.classes for kind in KINDS]
    print(
        f"\n{args.states} states x {len(GRID)} strengths, {args.images} images, width {args.width}, ", end=""
    )
    print(f"{args.threads} threads, median of {args.rounds} (smallest to largest); tight loop once")
    print(f"{'':<18} {'classes':>7} {'batched s':>9} {'loop s':>7} {'ratio':>7} {'':>9} {'gap':>6} ", end="")
    print(f"{'tight ratio':>11} {'gap':>6}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
