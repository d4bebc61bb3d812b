"""What the embedded data looks like: sample sheets, counts and provenance, for the data appendix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from vitscope import data, pictures, plotting
from vitscope.data import embedded, emoji, scenes
from vitscope.data.images import Images, stratified

Sets = Mapping[tuple[str, str], Images]
TILE = 64  # pixels of one picture on a sheet


def overview(sets: Sets) -> pd.DataFrame:
    """One row per task and part: pictures, classes, smallest and largest class, size in pixels."""
    rows = []
    for (name, split), images in sets.items():
        counts = images.counts[images.counts > 0]
        first = images.pixels(slice(0, 1))[0]
        rows.append(
            {
                "task": name,
                "part": split,
                "pictures": len(images),
                "classes": len(counts),
                "smallest class": int(counts.min()),
                "largest class": int(counts.max()),
                "pixels": f"{first.shape[1]} × {first.shape[2]}",
                "digest": images.digest[:12],
            }
        )
    return pd.DataFrame(rows)


def _square(picture: torch.Tensor, side: int = TILE) -> np.ndarray:
    """A picture as uint8 [side, side, 3]; nearest pixel, so that small pictures stay what they are."""
    resized = F.interpolate(picture.unsqueeze(0).float(), size=(side, side), mode="nearest-exact")[0]
    return resized.to(torch.uint8).permute(1, 2, 0).numpy()


def _strip(tiles: list[np.ndarray]) -> np.ndarray:
    """Pictures of one size side by side, with a white line between."""
    gap = np.full((tiles[0].shape[0], 2, 3), 255, dtype=np.uint8)
    parts = [part for tile in tiles for part in (tile, gap)]
    return np.concatenate(parts[:-1], axis=1)


def sheet(sets: Sets, examples: int, *, seed: int) -> plotting.Figure:
    """Rows of pictures: one task a row, training pictures left, test pictures right."""
    names = list(dict.fromkeys(name for name, _ in sets))
    half = max(1, examples // 2)
    rows, listed = [], []
    for name in names:
        strips = []
        for split in ("train", "test"):
            images = sets[name, split]
            chosen = np.sort(np.random.default_rng(seed).permutation(stratified(images.labels, half, seed)))
            strips.append(_strip([_square(x) for x in images.pixels(chosen)]))
            listed += [
                {"task": name, "part": split, "id": images.ids[i], "class": images.classes[images.labels[i]]}
                for i in chosen
            ]
        middle = np.full((TILE, 10, 3), 255, dtype=np.uint8)
        rows.append(np.concatenate([strips[0], middle, strips[1]], axis=1))
    shown = pd.DataFrame(listed)
    alt = (
        f"Sample sheet of {len(names)} tasks ({', '.join(names)}): {len(shown)} pictures, "
        "training pictures in the left half and test pictures in the right half; "
        f"e.g. {shown['task'].iloc[0]} shows {shown['class'].iloc[0]}."
    )
    return pictures.picture_rows(rows, labels=names, name="sample_sheet", data=shown, alt=alt)


def scene_sheet(*, seed: int, count: int = 8) -> plotting.Figure:
    """Scenes with their exact mask, boxes and depth, one scene a column."""
    images = data.load("scenes", "test", limit=count, seed=seed)
    exact = scenes.annotations(images)
    shots = [_square(x, scenes.SIZE).copy() for x in images.pixels()]
    for picture, boxes in zip(shots, exact["boxes"], strict=True):
        for x0, y0, x1, y1 in (boxes[~boxes.isnan().any(1)] * scenes.SIZE).int().tolist():
            picture[y0, x0:x1] = picture[y1 - 1, x0:x1] = (255, 40, 40)
            picture[y0:y1, x0] = picture[y0:y1, x1 - 1] = (255, 40, 40)
    masks = [pictures.class_colours(m.numpy(), len(images.classes) + 1) for m in exact["mask"]]
    far = float(exact["depth"].max())
    depths = [pictures.shades(d.numpy() / far) for d in exact["depth"]]
    objects = (~exact["boxes"].isnan().any(-1)).sum(1)
    covered = (exact["mask"] > 0).float().mean((1, 2))
    table = pd.DataFrame(
        {
            "id": images.ids,
            "visible objects": objects.numpy(),
            "covered share": covered.numpy().round(4),
            "nearest depth": exact["depth"].amin((1, 2)).numpy().round(4),
        }
    )
    alt = (
        f"{len(images)} scenes in columns: picture with boxes, class mask, depth map. "
        f"{int(objects.sum())} objects are visible; "
        f"they cover {100 * float(covered.mean()):.0f} % of the pixels on average; "
        f"depth runs from {float(exact['depth'].min()):.2f} to {far:.2f}."
    )
    rows = [_strip(shots), _strip(masks), _strip(depths)]
    return pictures.picture_rows(
        rows, labels=["picture", "mask", "depth"], name="scenes", data=table, alt=alt
    )


def style_sheet(*, seed: int, count: int = 12) -> plotting.Figure:
    """The same renders in each art style, one emoji a column."""
    table = emoji.identities()
    chosen = np.sort(np.random.default_rng(seed).permutation(len(table))[:count])
    recipe = replace(emoji.Recipe(), rotation=0.0, flip=0.0)
    rows = []
    for style in emoji.STYLES:
        drawn = emoji.render(chosen, np.arange(count), style=style, seed=seed, recipe=recipe)
        rows.append(_strip([_square(x) for x in drawn]))
    shown = table.iloc[chosen][["code", "name", "group", "held_out"]].reset_index(drop=True)
    alt = (
        f"{count} emoji, each drawn by {len(emoji.STYLES)} art styles ({', '.join(emoji.STYLES)}) "
        f"in the same pose over the same background: {', '.join(shown['name'][:4])} and {count - 4} more."
    )
    return pictures.picture_rows(rows, labels=list(emoji.STYLES), name="styles", data=shown, alt=alt)


def held_out_table() -> pd.DataFrame:
    """Emoji per Unicode group: seen and held out, and the number of subgroups."""
    table = emoji.identities()
    grouped = table.groupby("group", sort=True)
    held = grouped["held_out"].sum().astype(int)
    return pd.DataFrame(
        {
            "group": held.index,
            "subgroups": grouped["subgroup"].nunique().to_numpy(),
            "seen": (grouped.size() - held).to_numpy(),
            "held out": held.to_numpy(),
        }
    )


def file_table() -> pd.DataFrame:
    """Every embedded file: size, licence, source, checksum, and the command that restores it."""
    rows = [
        {
            "file": f"data/{path}",
            "MB": round(entry["bytes"] / 1e6, 2),
            "licence": entry["licence"],
            "source": entry["source"],
            "SHA-256": entry["sha256"][:12],
            "restore": entry["restore"],
        }
        for path, entry in embedded.manifest().items()
    ]
    return pd.DataFrame(rows)
