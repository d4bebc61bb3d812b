"""Information scrambling: how much of a patch is still in its own token, and how much has moved to others.

Two indices of this name, kept apart. `isi_reconstruction` is paper A's: two reconstruction scores and their
difference. `isi_attention` is the one that a summary of the paper describes. Paper A does not say in what we
could read which regressor and normalisation it uses: values of `isi_reconstruction` can be compared in sign
and shape with the paper's, not in size.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from vitscope.intervals import Interval
from vitscope.metrics.held_out import SHARES
from vitscope.metrics.reconstruction import ARMS, Reconstruction, each_state, require_finite

GRID: tuple[float, ...] = tuple(10.0 ** (e / 2) for e in range(-10, 7))
"""Ridge penalties on columns of unit variance, 1e-5 … 1e3; the strongest leaves nothing of a weight."""

REGIMES = ("collapse", "consensus", "diffusion")

_LEAST_REFERENCE = 0.01  # R² at the reference state below which dividing by it says nothing
_FEWEST_IDS = 10  # 3, 3, 2 and 2 of them in the four parts


@dataclass(frozen=True)
class Scrambling:
    """What `isi_reconstruction` found; every array has one entry per state.

    `r2_…`: share of the targets' variance that each arm reconstructs on test images, as measured (it may be
    negative). `normalised_…`: clipped at 0 and divided by the arm's value at the state `reference`.
    `isi` = normalised_all − normalised_self, `isi_raw` the same before the division, `isi_control` and
    `isi_shuffled` with the context of another image and of permuted patches in place of the own context.

    `l2`: for each arm the penalties [S, 2] on the token and on the extra columns (∞: not used); `columns`:
    how many it had [S]. `intervals`: bootstrap intervals over test images of all the measures above, by name.
    `images`: how many images each part had.
    """

    states: list[int]
    reference: int
    r2_self: np.ndarray
    r2_all: np.ndarray
    r2_other: np.ndarray
    r2_shuffled: np.ndarray
    r2_linear: np.ndarray
    normalised_self: np.ndarray
    normalised_all: np.ndarray
    isi: np.ndarray
    isi_raw: np.ndarray
    isi_control: np.ndarray
    isi_shuffled: np.ndarray
    l2: dict[str, np.ndarray]
    columns: dict[str, np.ndarray]
    intervals: dict[str, Interval]
    images: dict[str, int]

    @property
    def stats(self) -> pd.DataFrame:
        """Tidy table: state, measure, value, low, high."""
        rows = [
            (state, name, *map(float, numbers))
            for name, interval in self.intervals.items()
            for state, *numbers in zip(self.states, *interval, strict=True)
        ]
        return pd.DataFrame(rows, columns=["state", "measure", "value", "low", "high"])


def isi_reconstruction(
    tokens: Tensor | Iterable[Tensor] | Callable[[int], Tensor],
    targets: Float[Tensor, "N P E"],
    *,
    states: Sequence[int],
    ids: Sequence[str] | Sequence[int] | np.ndarray | None = None,
    reference: int = 0,
    pca: int = 64,
    maps: int = 3,
    l2: Sequence[float] = GRID,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Scrambling:
    """Information Scrambling Index of each state: what the other tokens add to reconstructing a patch.

        ISI(ℓ) = R̃²_all(ℓ) − R̃²_self(ℓ),    R̃²(ℓ) = max(R²(ℓ), 0) / R²(reference)

    Targets y_i are the patch embeddings before the position embedding. `self` reconstructs them from the
    token x_i, `all` from x_i and what M = `maps` spatial maps pool from the other tokens of the image,
    reduced to `pca` principal components. Both are ridge regressions with one W for all places and the same
    number of columns (`self` gets as many random features tanh(R x_i)), fitted, tuned and scored on
    different images; tokens and targets lose their mean at each place. `metrics.reconstruction` has the
    details. ISI > 0: the image's other tokens hold something of patch i that its own token has lost. Beside
    it are the controls: the context of another image, which should give about 0 or less, and that of the own
    image with patches permuted, which leaves what needs no layout. What the equal number of columns does not
    count are the maps themselves, which `all` and both controls learn on images of their own.

    `tokens`: patch tokens [S, N, P, D], or one state [N, P, D] at a time, from an iterable in the order of
    `states` or a function of the state; then one state is held at a time. `states`: names of the states, such
    as `Capture.states`. `ids` [N]: images with the same id stay in one part and are resampled together; with
    ids the split does not depend on the order of the images. Intervals are percentile bootstraps of `draws`
    resamples. The same seed gives the same result. Cost: on one core about 1 s a state for 1,000 images of 64
    patches, 96 wide.

    Errors: `ValueError` for shapes that do not fit, fewer than two patches, too few images (says how many are
    needed), targets that do not vary, or a reference state that reconstructs nothing; `FloatingPointError`
    naming the state for NaN or infinity.

    Source: Mechanisms of Non-Monotonic Scaling in Vision Transformers (2511.21635), as a difference of two
    normalised reconstruction scores; the estimator, its controls and the normalisation are ours.

    >>> patches = torch.randn(60, 4, 3, generator=torch.Generator().manual_seed(0))
    >>> moved = patches.roll(1, dims=1)  # each token now holds its neighbour's patch
    >>> found = isi_reconstruction([patches, moved], patches, states=[0, 1])
    >>> found.isi.round(1)
    array([0., 1.])
    """
    names = np.arange(len(targets)) if ids is None else np.asarray(ids)
    _check(targets, names, states, reference, pca, maps, l2, draws, level)
    problem, results = None, []
    for x in each_state(tokens, targets, states):
        if problem is None:
            _check_images(len(targets), len(np.unique(names)), targets.shape[1], x.shape[2], pca, maps)
            problem = Reconstruction(targets.float(), names, pca=pca, maps=maps, l2=l2, seed=seed)
        results.append(problem.fit(x))
    assert problem is not None  # there is at least the reference state
    test = names[problem.split.test.cpu().numpy()]
    errors = np.stack([np.stack([r.error[arm].double().cpu().numpy() for arm in ARMS]) for r in results])
    total = problem.total.double().cpu().numpy()
    row = list(states).index(reference)
    found = _measures(errors.sum(-1), total.sum(-1, keepdims=True), row)
    for arm in ("self", "all"):
        reached = found[f"r2_{arm}"][row]
        if not reached > _LEAST_REFERENCE:
            raise ValueError(
                f"at the reference state {reference} the {arm} arm reconstructs {reached:.3f} of the "
                f"targets' variance, which is too little to normalise by; name a state with more than "
                f"{_LEAST_REFERENCE}"
            )
    return Scrambling(
        states=list(states),
        reference=reference,
        **found,
        l2={arm: np.array([r.l2[arm] for r in results]) for arm in ARMS},
        columns={arm: np.array([r.columns[arm] for r in results]) for arm in ARMS},
        intervals=_intervals(found, errors, total, row, test, draws, level, seed),
        images={part: len(where) for part, where in problem.split._asdict().items()},
    )


def _measures(errors: np.ndarray, total: np.ndarray, row: int) -> dict[str, np.ndarray]:
    """All measures from sums of squares: errors [S, A, …] and total give results [S, …]."""
    r2 = dict(zip(ARMS, np.moveaxis(1 - errors / total, 1, 0), strict=True))
    raw = {arm: values.clip(0) for arm, values in r2.items()}
    norm = {arm: values / values[row].clip(_LEAST_REFERENCE) for arm, values in raw.items()}
    return {f"r2_{arm}": values for arm, values in r2.items()} | {
        "normalised_self": norm["self"],
        "normalised_all": norm["all"],
        "isi": norm["all"] - norm["self"],
        "isi_raw": raw["all"] - raw["self"],
        "isi_control": norm["other"] - norm["self"],
        "isi_shuffled": norm["shuffled"] - norm["self"],
    }


def _intervals(
    found: dict[str, np.ndarray],
    errors: np.ndarray,
    total: np.ndarray,
    row: int,
    ids: np.ndarray,
    draws: int,
    level: float,
    seed: int,
) -> dict[str, Interval]:
    """Percentile intervals: test images are drawn by id, their sums of squares added, the measures taken."""
    names, member = np.unique(ids, return_inverse=True)
    grouped = np.zeros((len(ids), len(names)))
    grouped[np.arange(len(ids)), member] = 1
    weights = np.random.default_rng(seed).multinomial(
        len(names), np.full(len(names), 1 / len(names)), size=draws
    )
    counts = grouped @ weights.T  # how often each image is in each draw
    drawn = _measures(errors @ counts, total @ counts, row)
    tail = (1 - level) / 2
    ends = {name: np.quantile(values, [tail, 1 - tail], axis=-1) for name, values in drawn.items()}
    return {name: Interval(found[name], *ends[name]) for name in found}


def _check(
    targets: Tensor,
    ids: np.ndarray,
    states: Sequence[int],
    reference: int,
    pca: int,
    maps: int,
    l2: Sequence[float],
    draws: int,
    level: float,
) -> None:
    if targets.ndim != 3 or targets.shape[1] < 2:
        raise ValueError(f"ISI needs targets [N, P, E] with P >= 2 patches, got {tuple(targets.shape)}")
    if len(set(states)) != len(states) or reference not in states:
        raise ValueError(f"states must differ and hold the reference {reference}, got {list(states)}")
    if pca < 1 or maps < 1 or draws < 1 or not 0 < level < 1:
        raise ValueError(
            "pca, maps and draws must be at least 1 and the level inside (0, 1), got "
            f"pca={pca}, maps={maps}, draws={draws}, level={level}"
        )
    if not len(l2) or not all(math.isfinite(value) and value > 0 for value in l2):
        raise ValueError(f"l2 must hold positive penalties, got {list(l2)}")
    if ids.shape != (len(targets),):
        raise ValueError(f"one id per image is needed: {ids.shape} for {len(targets)} images")
    require_finite(targets, "the targets")
    if (targets == targets[:1]).all():
        raise ValueError("the targets are the same for all images: there is nothing to reconstruct")


def _check_images(count: int, ids: int, patches: int, width: int, pca: int, maps: int) -> None:
    columns = width + maps * min(pca, width)
    fitted = 1 + math.ceil(columns / patches)
    needed = max(_FEWEST_IDS, math.ceil((fitted + 1) / SHARES[1]))
    if count < needed:
        raise ValueError(
            f"ISI needs at least {needed} images for a ridge with {columns} columns, fitted on {patches} "
            f"patches of {SHARES[1]:.0%} of the images; got {count}"
        )
    if ids < _FEWEST_IDS:
        raise ValueError(f"ISI needs images of at least {_FEWEST_IDS} different ids, got {ids}")


def isi_attention(
    before: Float[Tensor, "*S N T D"],
    after: Float[Tensor, "*S N T D"],
    attention_entropy: Float[Tensor, "*S N H"],
) -> Float[Tensor, "*S N"]:
    """Attention-based index of each image: mean cosine of tokens across attention, over attention's entropy.

        (1/T) Σ_i cos(before_i, after_i) / mean_h H_h

    This is the definition given by the summary of paper A from which this project started; the paper's own
    is `isi_reconstruction`. The summary calls a high value strong mixing. Its formula says the reverse:
    tokens that attention leaves alone have cosine 1, and attention that mixes many tokens has high entropy,
    so that mixing makes the value fall. Nothing is turned round here.

    `before` and `after`: tokens as they enter and leave attention; with or without the residual added to
    `after` is for the caller to choose and record. `attention_entropy`: mean entropy over queries per head,
    in nats, as `Capture.attention["entropy"]` holds it. A token of norm zero has cosine 0. NaN stays NaN.
    Raises ValueError for an entropy that is zero (attention to one token) or negative: nothing to divide by.

    >>> before = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> after = torch.tensor([[[1.0, 1.0], [1.0, 1.0]]])
    >>> isi_attention(before, after, torch.tensor([[0.5, 0.5]]))  # cos 45° / 0.5
    tensor([1.4142])
    """
    if before.shape != after.shape:
        raise ValueError(f"tokens before {tuple(before.shape)} and after {tuple(after.shape)} must match")
    entropy = attention_entropy.float().mean(-1)
    if entropy.shape != before.shape[:-2]:
        raise ValueError(
            f"attention entropy {tuple(attention_entropy.shape)} must be [..., N, H] for tokens "
            f"{tuple(before.shape)}"
        )
    if (entropy <= 0).any():
        raise ValueError(
            f"attention entropy must be positive, but {int((entropy <= 0).sum())} of {entropy.numel()} "
            "values are not"
        )
    return torch.cosine_similarity(before.float(), after.float(), dim=-1, eps=1e-12).mean(-1) / entropy


def regimes(isi: Sequence[float] | np.ndarray, band: float) -> list[str]:
    """The regime of each state: "collapse" for ISI ≤ 0, "consensus" up to `band`, "diffusion" above it.

    The cut-offs are ours; `band` is the 0.9 quantile of the ISI of the ViT-B of the comparison, and where it
    is not positive no state is in consensus. The names are paper A's, which gives 0.004 to 0.009 for ViT-B,
    in a normalisation of its own. Raises ValueError for NaN.

    >>> regimes([-0.01, 0.0, 0.004, 0.02], band=0.009)
    ['collapse', 'collapse', 'consensus', 'diffusion']
    """
    values = np.asarray(isi, dtype=np.float64)
    if values.ndim != 1 or np.isnan(values).any() or math.isnan(band):
        raise ValueError(f"regimes need one ISI per state and a band, without NaN, got {values} and {band}")
    collapse, consensus, diffusion = REGIMES
    return [collapse if v <= 0 else consensus if v <= band else diffusion for v in values.tolist()]
