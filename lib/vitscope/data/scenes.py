"""Scenes: one to three emoji over a background, with exact class mask, boxes and depth.

Objects are painted from far to near. Depth follows size: an object of extent s (fraction of the canvas)
lies at depth 0.4 / s, so the largest are nearest; the background recedes from depth 2 at the bottom edge to
4 at the top.
"""

from dataclasses import replace

import numpy as np
import torch

from vitscope.data import embedded, emoji
from vitscope.data.images import Images, fingerprint
from vitscope.data.seeding import uniforms

NAMES = ("scenes", "scenes_single")
SIZE = 96
MOST_OBJECTS = 3
SCENE_SEED = 88_000_000
COUNTS = {"train": 4_000, "test": 1_000}
IGNORED_ALPHA = 0.5  # a pixel belongs to an object that covers more than half of it
_DEPTH_OF_UNIT = 0.4
_FAR = (4.0, 2.0)
_EXTENT = {"scenes": (0.30, 0.60), "scenes_single": (0.22, 0.38)}


def load_scenes(name: str, split: str, *, seed: int = 0) -> Images:
    """Scenes of seen identities (train) or held-out ones (test); `extras` hold mask, boxes and depth lazily.

    The label is the group of the nearest object. `extras["scene"]` holds the scene numbers: pass them to
    `annotations` for mask [N, 96, 96] (0 background, group + 1), boxes [N, 3, 4] (x0, y0, x1, y1 as fractions
    of the canvas; NaN where there is no object) and depth [N, 96, 96].
    `scenes_single` has one object whose box covers less than 25 % of the canvas.
    """
    if split not in COUNTS:
        raise ValueError(f"{name} has the splits {', '.join(COUNTS)}, not {split!r}")
    numbers = np.arange(COUNTS[split]) + (10**8 if split == "test" else 0)
    groups = sorted(set(emoji.identities()["group"]))
    layout = _layout(name, split, numbers, seed)
    return Images(
        name=name, split=split, labels=_groups_of(layout["identity"][:, -1]),
        ids=np.array([f"{split}-{i:09d}" for i in numbers]), classes=tuple(groups),
        digest=fingerprint(name, split, seed, numbers, emoji.RENDER_VERSION,
                           embedded.digest(f"emoji/{emoji.STYLES[0]}.parquet")),
        source={"kind": "embedded", "seed": seed, "size": SIZE, "render_version": emoji.RENDER_VERSION},
        read=lambda indices: compose(name, split, numbers[indices], seed)["image"],
        extras={"scene": numbers},
    )  # fmt: skip


def annotations(images: Images, indices: np.ndarray | None = None) -> dict[str, torch.Tensor]:
    """Exact mask, boxes and depth of scenes (a whole set, or the pictures at `indices`)."""
    if "scene" not in images.extras:
        raise ValueError(f"{images.name} is no set of scenes; use one of {', '.join(NAMES)}")
    numbers = images.extras["scene"] if indices is None else images.extras["scene"][indices]
    made = compose(images.name, images.split, numbers, images.source["seed"])
    return {key: made[key] for key in ("mask", "boxes", "depth")}


def _groups_of(numbers: np.ndarray) -> np.ndarray:
    column = emoji.identities()["group"]
    names = sorted(set(column))
    return np.array([names.index(g) for g in column.iloc[numbers]], dtype=np.int64)


def _layout(name: str, split: str, numbers: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Identity, extent and pose of every object [N, 3], sorted from far to near; extent 0 = absent."""
    u = uniforms(SCENE_SEED + seed, numbers, 1 + 6 * MOST_OBJECTS)
    held_out = emoji.identities()["held_out"].to_numpy()
    pool = np.flatnonzero(held_out if split == "test" else ~held_out)
    count = np.ones(len(numbers)) if name == "scenes_single" else 1 + np.floor(u[:, 0] * MOST_OBJECTS)
    v = u[:, 1:].reshape(len(numbers), MOST_OBJECTS, 6)
    low, high = _EXTENT[name]
    extent = low + v[..., 1] * (high - low)
    extent[np.arange(MOST_OBJECTS)[None] >= count[:, None]] = 0.0
    order = np.argsort(extent, axis=1, kind="stable")
    v = np.take_along_axis(v, order[..., None], axis=1)
    extent = np.take_along_axis(extent, order, axis=1)
    reach = (1 - extent) / 2
    return {
        "identity": pool[(v[..., 0] * len(pool)).astype(int)],
        "extent": extent,
        "cx": (2 * v[..., 2] - 1) * reach,
        "cy": (2 * v[..., 3] - 1) * reach,
        "angle": np.radians(20 * (2 * v[..., 4] - 1)),
        "mirror": np.where(v[..., 5] < 0.5, -1.0, 1.0),
    }


def compose(name: str, split: str, numbers: np.ndarray, seed: int) -> dict[str, torch.Tensor]:
    """Pictures uint8 [N, 3, 96, 96] with mask, boxes and depth of the scenes `numbers`.

    `identity` [N, 96, 96] is 0 on the background, and the number of the identity + 1 elsewhere.
    """
    layout = _layout(name, split, numbers, seed)
    recipe = replace(emoji.Recipe(), size=SIZE)
    u = uniforms(SCENE_SEED + seed + 1, numbers, 13)
    canvas = emoji.background_canvas(u[:, :7], recipe)
    shape = (len(numbers), SIZE, SIZE)
    mask, identity = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    owner = torch.full(shape, -1)
    far = torch.linspace(*_FAR, SIZE).view(1, -1, 1)
    depth = far.expand(shape).clone()
    for k in range(MOST_OBJECTS):
        pose = {key: layout[key][:, k] for key in ("cx", "cy", "angle", "mirror")}
        present = layout["extent"][:, k] > 0
        extent = np.where(present, layout["extent"][:, k], 1.0)
        pictures = emoji.sprites(emoji.STYLES[0])[torch.from_numpy(layout["identity"][:, k])]
        colour, alpha = emoji.paste(pictures, extent, size=SIZE, **pose)
        shown = torch.from_numpy(present).view(-1, 1, 1, 1)
        colour, alpha = colour * shown, alpha * shown
        canvas = canvas * (1 - alpha) + colour
        solid = alpha[:, 0] > IGNORED_ALPHA
        group = torch.from_numpy(_groups_of(layout["identity"][:, k])).view(-1, 1, 1)
        mask = torch.where(solid, group + 1, mask)
        number = torch.from_numpy(layout["identity"][:, k]).view(-1, 1, 1)
        identity = torch.where(solid, number + 1, identity)
        owner = torch.where(solid, torch.tensor(k), owner)
        near = torch.tensor((_DEPTH_OF_UNIT / extent).astype(np.float32)).view(-1, 1, 1)
        depth = torch.where(solid, near, depth)
    picture = (canvas * emoji.lighting(u[:, 7:13], recipe)).mul(255).round().clamp(0, 255).to(torch.uint8)
    return {
        "image": picture,
        "mask": mask.to(torch.uint8),
        "identity": identity.to(torch.int16),
        "boxes": _boxes(owner),
        "depth": depth,
    }


def _boxes(owner: torch.Tensor) -> torch.Tensor:
    """Tight boxes of what is visible of every object, as fractions of the canvas; NaN where nothing is."""
    boxes = torch.full((len(owner), MOST_OBJECTS, 4), float("nan"))
    for k in range(MOST_OBJECTS):
        columns, rows = (owner == k).any(dim=1), (owner == k).any(dim=2)
        seen = columns.any(dim=1)
        x0, y0 = columns.int().argmax(1), rows.int().argmax(1)
        x1 = SIZE - columns.flip(1).int().argmax(1)
        y1 = SIZE - rows.flip(1).int().argmax(1)
        found = torch.stack([x0, y0, x1, y1], dim=1) / SIZE
        boxes[seen, k] = found[seen]
    return boxes
