"""What ISI costs: seconds per 1,000 images and states, and its ridges against a loop of scikit-learn's Ridge.

    python benchmarks/scrambling.py                                 # a minute or two on one core
    python benchmarks/scrambling.py --images 1000 --states 14 --repeats 1

Both sides of the ratio get the same columns of the arms `linear` and `self`, the same penalties (17 λ, and
for the extra columns of `self` three ρ beside leaving them out), fit on the same images, choose on the same
validation images and score the same test images; they take turns in one process. RidgeCV is no contestant:
it leaves out rows, not images. Pictures and backbone are the embedded ones.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits

from vitscope import backbones, data
from vitscope.capture import capture
from vitscope.metrics.held_out import RATIOS, Columns, Parts, fit_whitening
from vitscope.metrics.reconstruction import Reconstruction, random_features
from vitscope.metrics.scrambling import GRID, isi_reconstruction

T = TypeVar("T")


def batched(problem: Reconstruction, z: Parts, extra: Parts) -> list[float]:
    """R² of both arms on test images, the library's way."""
    alone, scores = Columns(problem.targets, [z]), []
    for columns in (alone, alone.joined(extra)):
        left = columns.residual("test", columns.ridge(GRID).weight)
        scores.append(1 - float(left.square().sum() / problem.total.sum()))
    return scores


def loop(problem: Reconstruction, z: Parts, extra: Parts) -> list[float]:
    """The usual way: one estimator per penalty."""
    y = Parts(*(part.flatten(0, 1).numpy() for part in problem.targets))
    own, more = (Parts(*(part.flatten(0, 1).numpy() for part in x)) for x in (z, extra))
    unit = np.sqrt(np.square(more.train).mean(0))
    candidates = [_fits(own, y)]
    for ratio in RATIOS[:-1]:
        scaled = [x / (unit * ratio**0.5) for x in more]
        columns = Parts(*(np.hstack(pair) for pair in zip(own, scaled, strict=True)))
        candidates.append(_fits(columns, y))
    return [1 - min(found)[1] / np.square(y.test).sum() for found in (candidates[0], chain(*candidates))]


def _fits(x: Parts, y: Parts) -> list[tuple[float, float]]:
    """Squared error on validation and on test images for each λ."""
    results = []
    for l2 in GRID:
        model = Ridge(alpha=l2 * len(x.train), fit_intercept=False).fit(x.train, y.train)
        results.append(
            tuple(
                float(np.square(model.predict(a) - b).sum())
                for a, b in ((x.validation, y.validation), (x.test, y.test))
            )
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="twin_s")
    for name, value in (("images", 1000), ("states", 4), ("repeats", 3), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    backbone = backbones.load(args.backbone)
    images = data.load("emoji_group", "test", limit=args.images)
    begin = time.perf_counter()
    kept = capture(
        backbone, images, norm="none", reductions=[], keep_tokens=len(images), progress=False
    ).tokens
    captured = time.perf_counter() - begin
    assert kept is not None
    rows = sorted({0, *np.linspace(1, len(kept) - 1, args.states).round().astype(int).tolist()})
    tokens = kept[:, :, backbone.num_prefix_tokens :]
    names = [backbone.states[row] for row in rows]

    seconds: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    with threadpool_limits(args.threads):
        for _ in range(args.repeats):
            _timed(seconds, lambda: isi_reconstruction(tokens[rows], tokens[0], states=names))
        problem = Reconstruction(tokens[0], np.arange(len(images)), pca=64, maps=3, l2=GRID, seed=0)
        z = problem.parts(tokens[rows[-1]])
        whitening = fit_whitening(z.train)
        z = Parts(*(whitening.scores(part) for part in z))
        extra = random_features(z, 3 * min(64, z.train.shape[2]), seed=0)
        for _ in range(args.repeats):
            scores = _timed(ours, lambda: batched(problem, z, extra))
            usual = _timed(theirs, lambda: loop(problem, z, extra))

    thousands = len(images) / 1000
    spent = statistics.median(seconds) / len(rows) / thousands
    print(
        f"{args.backbone}, {len(images)} images of {tokens.shape[2]} patches, {tokens.shape[3]} wide, ",
        end="",
    )
    print(f"{args.threads} threads, median of {args.repeats}; seconds per 1,000 images:")
    print(f"capture of all {len(kept)} states {captured / thousands:.1f}; ISI {spent:.2f} a state, ", end="")
    print(f"{spent * len(kept):.1f} for all")
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(
        f"ridges of `linear` and `self` at state {names[-1]}: batched {mine:.2f} s, loop {other:.2f} s: ",
        end="",
    )
    print(f"{other / mine:.1f} times faster; R² {_shown(scores)} and {_shown(usual)}")


def _shown(scores: list[float]) -> str:
    return ", ".join(f"{score:.4f}" for score in scores)


def _timed(seconds: list[float], work: Callable[[], T]) -> T:
    begin = time.perf_counter()
    result = work()
    seconds.append(time.perf_counter() - begin)
    return result


if __name__ == "__main__":
    main()
