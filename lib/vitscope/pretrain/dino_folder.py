"""DINO's views of a folder of pictures, such as ImageNet's: read, cropped and resized in threads.

Classes are not needed, so every picture below the training folder counts. Decoding follows `data.images`.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from vitscope.data.files import ENDINGS, split_folders
from vitscope.data.images import decode
from vitscope.pretrain.dino_recipe import DinoRecipe
from vitscope.pretrain.multicrop import boxes, recolour, view_numbers


class FolderViews:
    """Crops of the pictures below `folder`, or below its part `train` where there is one.

    Every epoch shows each picture once, in an order of its own; sample i is a function of (seed, i). All
    crops of a sample are cut from one picture. `batch(start, count)` gives two global crops [N, 3, G, G] and
    `local_crops` local ones [N, 3, L, L], float in [−1, 1].

    Raises `ValueError` where there is no folder or no picture in it, `DecodeError` with the file's name where
    a picture cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        recipe: DinoRecipe,
        seed: int,
        *,
        device: torch.device | str = "cpu",
        workers: int = 8,
    ) -> None:
        if not folder.is_dir():
            raise ValueError(f"no such folder of pictures: {folder}")
        self.recipe, self.seed, self.device = recipe, seed, device
        root = split_folders(folder).get("train", folder)
        self.files = sorted(
            f for f in root.rglob("*")
            if f.suffix.lower() in ENDINGS and not f.name.startswith(".") and f.is_file()
        )  # fmt: skip
        if not self.files:
            raise ValueError(f"no pictures below {root}; endings read: {', '.join(sorted(ENDINGS))}")
        names = "\n".join(str(f.relative_to(root)) for f in self.files)
        self._digest = hashlib.sha256(names.encode()).hexdigest()
        self._pool = ThreadPoolExecutor(workers)

    def describe(self) -> dict:
        """Number of pictures and the digest of their names; contents are not read for it."""
        return {"pictures": len(self.files), "names_sha256": self._digest}

    def places(self, start: int, count: int) -> list[int]:
        """Which files stand at these positions of the stream."""
        total = len(self.files)
        return [int(_order(self.seed, p // total, total)[p % total]) for p in range(start, start + count)]

    def batch(self, start: int, count: int) -> list[Float[Tensor, "N 3 _ _"]]:
        recipe, first = self.recipe, self.recipe.global_crops
        u = view_numbers(recipe, self.seed, np.arange(start, start + count))
        cut = list(self._pool.map(self._cut, self.places(start, count), u.transpose(1, 0, 2)))
        wide = torch.stack([one[:first] for one, _ in cut], 1).flatten(0, 1)
        views = [*recolour(self._float(wide), u[:first], recipe, local=False)]
        if recipe.local_crops:
            narrow = torch.stack([two for _, two in cut], 1).flatten(0, 1)
            views += [*recolour(self._float(narrow), u[first:], recipe, local=True)]
        return views

    def _float(self, pictures: Tensor) -> Tensor:
        return pictures.to(self.device).float().div_(255)

    def _cut(self, place: int, u: np.ndarray) -> tuple[UInt8[Tensor, "G 3 S S"], UInt8[Tensor, "L 3 s s"]]:
        """All crops of one file."""
        recipe, first = self.recipe, self.recipe.global_crops
        picture = decode(self.files[place], str(self.files[place]))
        wide = resized(picture, u[:first], recipe.global_scale, recipe.global_pixels, recipe.flip)
        if not recipe.local_crops:
            return wide, wide[:0]
        return wide, resized(picture, u[first:], recipe.local_scale, recipe.local_size, recipe.flip)


def resized(
    picture: UInt8[Tensor, "3 H W"], u: np.ndarray, scale: tuple[float, float], size: int, flip: float
) -> UInt8[Tensor, "V 3 S S"]:
    """Random crops of one picture at whole pixels, resized (bilinear, antialiased) and perhaps mirrored."""
    high, wide = picture.shape[-2:]
    crops = []
    for row, *box in zip(u, *boxes(u, scale, wide / high), strict=True):
        left, top, width, height = box
        x, y = int(left * wide), int(top * high)
        part = picture[:, y : y + max(1, round(height * high)), x : x + max(1, round(width * wide))]
        part = F.interpolate(part[None], size=(size, size), mode="bilinear", antialias=True)[0]
        crops.append(part.flip(-1) if row[4] < flip else part)
    return torch.stack(crops)


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, total: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(total)
