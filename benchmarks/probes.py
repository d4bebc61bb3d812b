"""The batched probe against a loop of scikit-learn's LogisticRegression: seconds and accuracy.

    python benchmarks/probes.py                                   # about a minute on two cores
    python benchmarks/probes.py --states 14 --images 4000 --repeats 5

Both follow one protocol on the same numbers: same split, standardised, the same strengths, the same choice
on validation, a refit of the chosen one. They take turns in one process with the same number of threads;
the ratio is that of the median seconds. The loop runs with scikit-learn's default tolerance, and once with
a hundredth of it in float64: on features as ill-conditioned as these the default stops early, and only the
tight loop tells how accurate the probe's solution is. Features are Gaussian around class means, with a
spectrum that decays as 1/rank, ill-conditioned as a ViT's states are, and a signal that grows with depth.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from vitscope.probes import GRID, ProbeSet, fit_probes
from vitscope.splits import stratified

T = TypeVar("T")


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


def loop(
    features: torch.Tensor,
    labels: torch.Tensor,
    test: torch.Tensor,
    truth: np.ndarray,
    *,
    tight: bool = False,
) -> np.ndarray:
    """The usual way: one estimator per state and strength. Test accuracy per state."""
    dtype = np.float64 if tight else np.float32
    train, held = (part.numpy() for part in stratified(labels, 0.2, seed=0))
    y, scores = labels.numpy(), []
    for x, x_test in zip(features.numpy(), test.numpy(), strict=True):
        a, b = _standard(x[train], (x[train], x[held]), dtype)
        right = [_regression(value, len(a), tight).fit(a, y[train]).score(b, y[held]) for value in GRID]
        a, b = _standard(x, (x, x_test), dtype)
        final = _regression(GRID[int(np.argmax(right))], len(a), tight).fit(a, y)
        scores.append(final.score(b, truth))
    return np.array(scores)


def _regression(l2: float, images: int, tight: bool) -> LogisticRegression:
    return LogisticRegression(C=1 / (l2 * images), max_iter=20_000, tol=1e-6 if tight else 1e-4)


def _standard(reference: np.ndarray, parts: tuple[np.ndarray, ...], dtype: type) -> list[np.ndarray]:
    mean, scale = reference.mean(0, dtype=np.float64), reference.std(0, dtype=np.float64)
    return [((part - mean) / scale).astype(dtype) for part in parts]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("states", 6), ("images", 2000), ("width", 128), ("classes", 8), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    total = 2 * args.images
    features, labels = planted(args.states, total, args.width, args.classes, args.seed)
    train, test = features[:, : args.images].contiguous(), features[:, args.images :].contiguous()
    y, truth = labels[: args.images], labels[args.images :]

    ours: list[float] = []
    theirs: list[float] = []
    with threadpool_limits(args.threads):
        for _ in range(args.repeats):
            probes, accuracy = timed(ours, lambda: _batched(train, y, test, truth))
            usual = timed(theirs, lambda: loop(train, y, test, truth.numpy()))
        tight_seconds: list[float] = []
        exact = timed(tight_seconds, lambda: loop(train, y, test, truth.numpy(), tight=True))

    print(f"{args.states} states x {len(GRID)} strengths, {args.images} images, width {args.width}, ", end="")
    print(f"{args.classes} classes, {args.threads} threads, median of {args.repeats}")
    print(f"{'state':>5} {'l2':>8} {'batched %':>10} {'loop %':>8} {'tight loop %':>13}")
    for s in range(args.states):
        shares = [f"{100 * a[s]:.2f}" for a in (accuracy, usual, exact)]
        print(f"{s:>5} {probes.chosen_l2[s].item():>8g} {shares[0]:>10} {shares[1]:>8} {shares[2]:>13}")
    gaps = [100 * np.abs(accuracy - other).max() for other in (usual, exact)]
    print(f"converged: {bool(probes.converged.all())}; largest gap in points: ", end="")
    print(f"{gaps[0]:.2f} to the loop, {gaps[1]:.2f} to the tight loop")
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(f"batched {mine:.2f} s, loop {other:.2f} s: {other / mine:.1f} times faster ", end="")
    print(f"(tight loop, once: {tight_seconds[0]:.2f} s, {tight_seconds[0] / mine:.1f} times)")


def timed(seconds: list[float], work: Callable[[], T]) -> T:
    begin = time.perf_counter()
    result = work()
    seconds.append(time.perf_counter() - begin)
    return result


def _batched(
    train: torch.Tensor, labels: torch.Tensor, test: torch.Tensor, truth: torch.Tensor
) -> tuple[ProbeSet, np.ndarray]:
    probes = fit_probes(train, labels)
    return probes, probes.accuracy(test, truth)["accuracy"].numpy()


if __name__ == "__main__":
    main()
