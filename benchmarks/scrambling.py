"""What ISI costs: seconds per 1,000 images and states, and its ridges against a loop of scikit-learn's Ridge.

    python benchmarks/scrambling.py                                 a minute or two on one core
    python benchmarks/scrambling.py --images 1000 --states 14 --rounds 1

Both sides of the ratio get the same columns of the arms `linear` and `self`, the same penalties (17 λ, and
for the extra columns of `self` three ρ beside leaving them out), fit on the same images, choose on the same
validation images and score the same test images; they take turns in one process. RidgeCV is no contestant:
it leaves out rows, not images. Pictures and backbone are the embedded ones.
"""

import statistics
import time
from itertools import chain

import common
import numpy as np
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits

from vitscope import backbones, data
from vitscope.capture import capture
from vitscope.metrics.held_out import RATIOS, Columns, Parts, fit_whitening
from vitscope.metrics.reconstruction import Reconstruction, random_features
from vitscope.metrics.scrambling import GRID, isi_reconstruction


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
    parser = common.parser(__doc__, images=1000, states=4, rounds=3, threads=1)
    parser.add_argument("--backbone", default="twin_s")
    args = common.parse(parser, images=60, states=1, rounds=1)

    backbone = backbones.load(args.backbone, device="cpu")
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

    problem = Reconstruction(tokens[0], np.arange(len(images)), pca=64, maps=3, l2=GRID, seed=0)
    z = problem.parts(tokens[rows[-1]])
    whitening = fit_whitening(z.train)
    z = Parts(*(whitening.scores(part) for part in z))
    extra = random_features(z, 3 * min(64, z.train.shape[2]), seed=0)
    scores: dict[str, list[float]] = {}
    with threadpool_limits(args.threads or None):
        whole = common.alternate(
            {"isi": lambda: isi_reconstruction(tokens[rows], tokens[0], states=names)},
            args.rounds,
            warm_up=False,
        )["isi"]
        seconds = common.alternate(
            {
                "ours": lambda: scores.update(ours=batched(problem, z, extra)),
                "loop": lambda: scores.update(loop=loop(problem, z, extra)),
            },
            args.rounds, warm_up=False,
        )  # fmt: skip
    per_state = [one / len(rows) * 1000 / len(images) for one in whole]
    first = captured * 1000 / len(images)
    setting = f"{args.backbone}, {len(images)} images of {tokens.shape[2]} patches, {tokens.shape[3]} wide, "
    setting += f"{args.threads} threads"
    compared = {
        "seconds": _short(seconds["ours"]),
        "seconds of the other": _short(seconds["loop"]),
        "R²": ", ".join(f"{score:.4f}" for score in scores["ours"]),
        "R² of the other": ", ".join(f"{score:.4f}" for score in scores["loop"]),
    }
    result = [
        common.row(
            "ridges of both arms at the last state", "loop of Ridge", common.ratio(seconds, "loop", "ours"),
            setting=setting, **compared,
        ),
        common.row(
            "ISI of one state", "capture of all states with their tokens",
            common.spread([one / first for one in per_state]), setting=setting, better="lower",
            **{"seconds per 1,000 images": _short(per_state), "of capture": _short([first]),
            "of ISI for all states": _short([one * len(kept) for one in per_state])},
        ),
    ]  # fmt: skip
    common.write("scrambling", result, args)


def _short(seconds: list[float]) -> float:
    return float(f"{statistics.median(seconds):.4g}")


if __name__ == "__main__":
    main()
