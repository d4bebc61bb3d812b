"""The embedded classification tasks: emoji rendered as photographs, Fashion-MNIST, digits.

Each emoji task takes one art style, by name: `emoji_group` is Noto, `emoji_group@twemoji` the other style.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from vitscope.data import backgrounds, embedded, emoji
from vitscope.data.files import load_parquet
from vitscope.data.images import Images, Pixels, fingerprint
from vitscope.data.seeding import uniforms
from vitscope.errors import unknown

TASK_SEED = 77_000_000  # keeps task renders apart from every pretraining stream
SPLITS = ("train", "test")

# renders of each identity by task and split: about 5,000 to train on and 2,500 to test on
RENDERS = {
    "emoji_identity": {"train": 4, "test": 2},
    "emoji_group": {"train": 4, "test": 8},
    "emoji_subgroup": {"train": 4, "test": 8},
    "emoji_novel": {"train": 5, "test": 8},
}
PLACES = "emoji_places"
PLACE_SEED = 66_000_000  # keeps these renders apart from those of the other tasks and of pretraining
PLACE_RENDERS = 8
ALIGNED = 0.95  # share of training pictures whose background is that of their class, as in Waterbirds
SIDES = {
    "living things and food": ("Animals & Nature", "Food & Drink"),
    "objects and activities": ("Objects", "Activities"),
}
DESCRIPTIONS = {
    "emoji_identity": "which seen emoji is it; fresh renders of the identities that pretraining knows",
    "emoji_group": "8 Unicode groups; train on seen identities, test on held-out ones",
    "emoji_subgroup": "Unicode subgroups; train on seen identities, test on held-out ones",
    "emoji_novel": "name the held-out identities from five renders each",
    "fashion_mnist": "Fashion-MNIST, 1,000 training pictures a class and the whole test part",
    "digits": "scikit-learn's 8 × 8 digits, upsampled",
}


def load_task(name: str, split: str, *, seed: int = 0) -> Images:
    """One split of an embedded task, whole."""
    base, _, style = name.partition("@")
    if split not in SPLITS:
        raise ValueError(f"{name} has the splits {', '.join(SPLITS)}, not {split!r}")
    if base in RENDERS:
        return _emoji_task(base, split, style=style or emoji.STYLES[0], seed=seed)
    if style:
        raise ValueError(f"{base} is drawn in one style only; write {base!r}")
    return _PLAIN[base](split)


def _members(task: str, split: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Identity numbers of a split, their labels, and the class names."""
    table = emoji.identities()
    held_out = table["held_out"].to_numpy()
    if task in ("emoji_identity", "emoji_novel"):
        chosen = np.flatnonzero(held_out if task == "emoji_novel" else ~held_out)
        return chosen, np.arange(len(chosen)), table["name"].iloc[chosen].tolist()
    column = table["group"] if task == "emoji_group" else table["group"] + " / " + table["subgroup"]
    classes = sorted(set(column[held_out]) & set(column[~held_out]))
    labels = np.array([classes.index(c) if c in classes else -1 for c in column])
    chosen = np.flatnonzero((held_out == (split == "test")) & (labels >= 0))
    return chosen, labels[chosen], classes


def load_identity(split: str, *, scale: tuple[float, float], seed: int = 0) -> Images:
    """A split of "emoji_identity" whose emoji take a share `scale` of the canvas, as a model was taught."""
    return _emoji_task("emoji_identity", split, style=emoji.STYLES[0], seed=seed, scale=scale)


def _emoji_task(
    task: str, split: str, *, style: str, seed: int, scale: tuple[float, float] = emoji.Recipe.scale
) -> Images:
    if style not in emoji.STYLES:
        raise unknown("emoji style", style, emoji.STYLES)
    chosen, classes_of, classes = _members(task, split)
    renders = RENDERS[task][split]
    numbers = np.tile(chosen, renders)
    # the id says split, render and identity; the seed chooses another family of renders
    ids = np.arange(len(numbers)) // len(chosen) * 10_000 + numbers + (10**8 if split == "test" else 0)
    recipe = emoji.Recipe(background_part="test", scale=scale)
    render_seed = TASK_SEED + seed

    def read(indices: np.ndarray) -> Pixels:
        return emoji.render(numbers[indices], ids[indices], style=style, seed=render_seed, recipe=recipe)

    return Images(
        name=task if style == emoji.STYLES[0] else f"{task}@{style}",
        split=split,
        labels=np.tile(classes_of, renders),
        ids=np.array([f"{split}-{i:09d}" for i in ids]),
        classes=tuple(classes),
        digest=fingerprint(task, split, style, render_seed, recipe.describe(), numbers, ids,
                           embedded.digest(f"emoji/{style}.parquet")),
        source={"kind": "embedded", "style": style, "renders_per_identity": renders, "seed": seed,
                "render": recipe.describe(), "identities": len(chosen)},
        read=read,
        extras={"identity": numbers},
    )  # fmt: skip


def load_places(split: str, *, seed: int = 0) -> Images:
    """Two classes over two kinds of background: in training 95 % of a class has its own kind.

    Test pictures are pairs: the same held-out identity, pose and light over a photograph and over a texture,
    so groups differ in the background alone. `extras`: `identity`, `place` (0 photograph, 1 texture) and
    `group` = 2·label + place, with the groups' names in `source["groups"]`.

    Design: Sagawa et al., "Distributionally robust neural networks for group shifts" (ICLR 2020).
    """
    if split not in SPLITS:
        raise ValueError(f"{PLACES} has the splits {', '.join(SPLITS)}, not {split!r}")
    table = emoji.identities()
    side = np.full(len(table), -1)
    for k, groups in enumerate(SIDES.values()):
        side[table["group"].isin(groups).to_numpy()] = k
    chosen = np.flatnonzero((table["held_out"].to_numpy() == (split == "test")) & (side >= 0))
    numbers = np.tile(chosen, PLACE_RENDERS)
    ids = np.arange(len(numbers)) // len(chosen) * 10_000 + numbers + (10**8 if split == "test" else 0)
    render_seed = PLACE_SEED + seed
    if split == "test":
        numbers, ids = numbers.repeat(2), ids.repeat(2)
        place = np.arange(len(numbers)) % 2
    else:
        # a render uses 18 numbers of its stream, so the 19th is independent of the picture
        place = _misleading(side[numbers], uniforms(render_seed, ids, 19)[:, 18])
    labels, style, recipe = side[numbers], emoji.STYLES[0], emoji.Recipe(background_part="test")

    def read(indices: np.ndarray) -> Pixels:
        out = torch.empty(len(indices), 3, recipe.size, recipe.size, dtype=torch.uint8)
        for k, kind in enumerate(backgrounds.KINDS):
            here = np.flatnonzero(place[indices] == k)
            if len(here):
                which = indices[here]
                out[torch.from_numpy(here)] = emoji.render(
                    numbers[which], ids[which], style=style, seed=render_seed,
                    recipe=replace(recipe, background_kind=kind),
                )  # fmt: skip
        return out

    return Images(
        name=PLACES, split=split, labels=labels, classes=tuple(SIDES),
        ids=np.array([f"{split}-{i:09d}-{backgrounds.KINDS[k]}" for i, k in zip(ids, place, strict=True)]),
        digest=fingerprint(PLACES, split, style, render_seed, recipe.describe(), numbers, ids, place,
                           embedded.digest(f"emoji/{style}.parquet")),
        source={"kind": "embedded", "style": style, "seed": seed, "render": recipe.describe(),
                "aligned": ALIGNED if split == "train" else 0.5, "identities": len(chosen),
                "groups": [f"{c}, {kind}" for c in SIDES for kind in backgrounds.KINDS]},
        read=read,
        extras={"identity": numbers, "place": place, "group": 2 * labels + place},
    )  # fmt: skip


def _misleading(labels: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Place = label but for the share 1 − `ALIGNED` of each class with the smallest `u`."""
    place = labels.copy()
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        few = members[np.argsort(u[members], kind="stable")][: round((1 - ALIGNED) * len(members))]
        place[few] = 1 - c
    return place


def _fashion(split: str) -> Images:
    images = load_parquet(embedded.verified(f"fashion_mnist/{split}.parquet"), split)
    return _renamed(images, "fashion_mnist", split)


def _digits(split: str) -> Images:
    """1,797 digits, the fixed last 30 % for the test, each pixel repeated 4 × 4 times."""
    from sklearn.datasets import load_digits  # slow import

    bunch = load_digits()
    cut = int(0.7 * len(bunch.target))
    part = slice(0, cut) if split == "train" else slice(cut, None)
    grey = np.rint(bunch.images[part] * (255 / 16)).astype(np.uint8)
    big = torch.from_numpy(grey.repeat(4, axis=1).repeat(4, axis=2)).unsqueeze(1)
    labels = bunch.target[part].astype(np.int64)
    return Images(
        name="digits", split=split, labels=labels,
        ids=np.array([f"{split}-{i:04d}" for i in range(len(labels))]),
        classes=tuple(str(c) for c in range(10)), digest=fingerprint("digits", split, grey, labels),
        source={"kind": "scikit-learn", "licence": "BSD-3-Clause"},
        read=lambda indices: big[torch.from_numpy(indices)].expand(-1, 3, -1, -1),
    )  # fmt: skip


def _renamed(images: Images, name: str, split: str) -> Images:
    ids = np.array([f"{split}-{i}" for i in images.ids])
    return replace(images, name=name, ids=ids, source={**images.source, "kind": "embedded"})


_PLAIN: dict[str, Callable[[str], Images]] = {"fashion_mnist": _fashion, "digits": _digits}
NAMES = (*RENDERS, *_PLAIN)
