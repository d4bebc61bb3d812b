"""Tables and figures of chapter 00: a picture cut into patches, shapes, answers, maps, and what breaks."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, UInt8
from matplotlib.figure import Figure as Canvas
from torch import Tensor
from torch.nn import functional as F

from vitscope import gallery, plotting
from vitscope.alt_text import describe_categories
from vitscope.figures import Figure
from vitscope.first_look_measures import Placed, right
from vitscope.intervals import bootstrap_mean
from vitscope.pictures import picture_rows, shades
from vitscope.vit80 import ViT

PICTURE_SIDE = 320  # pixels of an enlarged picture
_GAP = 5

# --- the model --------------------------------------------------------------------------------------------


def listing(module: ModuleType) -> str:
    """A module's source as HTML, coloured by the page's own classes."""
    from pygments import highlight  # type: ignore[import-untyped]
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
    from pygments.lexers import PythonLexer  # type: ignore[import-untyped]

    code = highlight(inspect.getsource(module), PythonLexer(), HtmlFormatter(cssclass="highlight"))
    return f'<div class="vitscope-listing" style="overflow-x:auto;font-size:.85em">{code}</div>'


def code_lines(module: ModuleType) -> int:
    """Lines of a module that are neither blank nor part of a docstring."""
    source = inspect.getsource(module)
    described: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            described |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return sum(bool(line.strip()) for n, line in enumerate(source.splitlines(), 1) if n not in described)


@torch.inference_mode()
def shapes_table(model: ViT, picture: Float[Tensor, "1 3 s s"]) -> pd.DataFrame:
    """What one picture is on its way through a model: a row a step, shapes as they come out of it."""
    patch = model.patch_embed.proj.kernel_size[0]
    cut = F.unfold(picture, patch, stride=patch).transpose(1, 2)
    seen = model(picture, return_all=True)
    last, depth = seen.states[-1], len(model.blocks)
    heads, tokens = seen.attention[0].shape[1:3]
    steps = {
        "the picture": picture.shape[1:],
        "cut into patches, each written as one row": cut.shape[1:],
        "tokens: each row × one matrix (state −1)": seen.states[0].shape[1:],
        "CLS in front, positions added (state 0)": seen.states[1].shape[1:],
        "queries of block 1; as many keys, as many values": (heads, tokens, last.shape[2] // heads),
        "attention map of block 1": seen.attention[0].shape[1:],
        "tokens after block 1 (state 1)": seen.states[2].shape[1:],
        f"tokens after block {depth} (state {depth})": last.shape[1:],
        "CLS after the last norm": model.norm(last)[0, 0].shape,
        "a score for each class": seen.logits.shape[1:],
    }
    rows = [(name, " × ".join(map(str, shape)), shape.numel()) for name, shape in _sizes(steps).items()]
    return pd.DataFrame(rows, columns=["step", "shape", "numbers"])


def _sizes(steps: Mapping[str, Sequence[int]]) -> dict[str, torch.Size]:
    return {name: torch.Size(shape) for name, shape in steps.items()}


def weights_table(model: ViT) -> pd.DataFrame:
    """Where the weights are: a row a part of the model, blocks together."""
    parts = {
        "patch embedding": ("patch_embed",),
        "CLS and positions": ("cls_token", "pos_embed"),
        "attention, all blocks": (".attn.",),
        "MLP, all blocks": (".mlp.",),
        "norms": ("norm",),
        "classifier": ("head.",),
    }
    sizes = {name: tensor.numel() for name, tensor in model.state_dict().items()}
    rows = [(part, sum(n for k, n in sizes.items() if any(m in k for m in marks)))
            for part, marks in parts.items()]  # fmt: skip
    table = pd.DataFrame(rows, columns=["part", "weights"])
    return table.assign(**{"share (%)": 100 * table["weights"] / sum(sizes.values())})


def hand_table(columns: Mapping[str, Tensor]) -> pd.DataFrame:
    """A row a token; the rows of each tensor [T, n] as text, rounded to two digits, under its name.

    >>> hand_table({"query": torch.tensor([[1.0, 0.126]])})["query"].tolist()
    ['1, 0.13']
    """
    rounded = {name: tensor.double().round(decimals=2).tolist() for name, tensor in columns.items()}
    texts = {name: [", ".join(f"{v:g}" for v in row) for row in rows] for name, rows in rounded.items()}
    count = len(next(iter(texts.values())))
    return pd.DataFrame({"number": range(1, count + 1), **texts})


# --- pictures ---------------------------------------------------------------------------------------------


def patches_figure(picture: UInt8[np.ndarray, "s s 3"], patch: int) -> Figure:
    """A picture as it is, and cut into its patches."""
    side, rows = len(picture), len(picture) // patch
    zoom = max(1, PICTURE_SIDE // side)
    large = picture.repeat(zoom, 0).repeat(zoom, 1)
    step = patch * zoom
    tall = len(large) + _GAP * (rows - 1)
    canvas = np.full((tall, len(large) + 8 * _GAP + tall, 3), 255, np.uint8)
    top = (tall - len(large)) // 2
    canvas[top : top + len(large), : len(large)] = large
    found = []
    for i in range(rows * rows):
        row, column = divmod(i, rows)
        y, x = row * (step + _GAP), len(large) + 8 * _GAP + column * (step + _GAP)
        piece = large[row * step : (row + 1) * step, column * step : (column + 1) * step]
        canvas[y : y + step, x : x + step] = piece
        found.append((i + 1, row + 1, column + 1, *piece.reshape(-1, 3).mean(0).round(1).tolist()))
    table = pd.DataFrame(found, columns=["patch", "row", "column", "red", "green", "blue"])
    light = table[["red", "green", "blue"]].mean(axis=1)
    alt = (
        f"One picture of {side} × {side} pixels, and cut into {rows} × {rows} = {rows * rows} patches "
        f"of {patch} × {patch} pixels; brightest is patch {light.argmax() + 1} (mean {light.max():.0f} "
        f"of 255), darkest patch {light.argmin() + 1} ({light.min():.0f})."
    )
    return picture_rows([canvas], labels=["whole, cut"], name="patches", data=table, alt=alt)


def answers_figure(
    pictures: UInt8[np.ndarray, "N s s 3"],
    logits: Float[Tensor, "N C"],
    labels: np.ndarray,
    classes: Sequence[str],
    *,
    top: int = 3,
) -> Figure:
    """Each picture beside the classes a model finds most probable; the right one is green."""
    best = logits.softmax(1).topk(min(top, len(classes)))
    rows = [
        (n + 1, classes[labels[n]], k + 1, classes[c], float(p), c == labels[n])
        for n in range(len(pictures))
        for k, (p, c) in enumerate(zip(best.values[n].tolist(), best.indices[n].tolist(), strict=True))
    ]
    columns = ["picture", "shown", "rank", "answer", "probability", "right"]
    table = pd.DataFrame(rows, columns=columns)
    with plotting.style():
        fig = Canvas(figsize=(6.4, 0.95 * len(pictures) + 0.1), layout="constrained")
        axes = fig.subplots(len(pictures), 2, squeeze=False, width_ratios=[1, 5])
        for n, (left, beside) in enumerate(axes):
            left.set_axis_off()
            left.imshow(pictures[n], interpolation="nearest")
            part = table[table["picture"] == n + 1]
            colours = ["#8FD1BC" if ok else "#D9D9D9" for ok in part["right"]]
            beside.barh(part["rank"], part["probability"], color=colours, height=0.86)
            for rank, answer, p in zip(part["rank"], part["answer"], part["probability"], strict=True):
                beside.text(0.01, rank, f"{answer}  {100 * p:.1f} %", va="center", fontsize=8)
            beside.set(xlim=(0, 1), ylim=(top + 0.5, 0.5), xticks=[], yticks=[])
            beside.set_title(f"shown: {classes[labels[n]]}", fontsize=8)
            beside.spines[:].set_visible(False)
    said = "; ".join(
        f"picture {n}, {part['shown'].iloc[0]}: "
        + ", ".join(f"{a} {100 * p:.1f} %" for a, p in zip(part["answer"], part["probability"], strict=True))
        for n, part in table.groupby("picture")
    )
    alt = f"{len(pictures)} pictures and the {top} most probable answers. {said}."
    return Figure(fig, table, alt, "answers")


def maps_figure(
    pictures: UInt8[np.ndarray, "N s s 3"],
    maps: Mapping[str, Float[Tensor, "N P"]],
    share: Float[Tensor, "N P"],
    grid: tuple[int, int],
    *,
    what: str,
    name: str,
    every: Mapping[str, Float[Tensor, "L N P"]] | None = None,
) -> Figure:
    """A row of pictures, and a row of maps for each name, each map from its own lowest (bright) to highest.

    `share` is the share of each patch that is emoji; the table and the alt text give means over both sides.
    `every` are maps of blocks 1, 2 … by name, which readers explore.
    """
    rows, strips = [], [gallery.strip(pictures)]
    for label, values in maps.items():
        low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
        scaled = ((values - low) / (high - low).clamp_min(1e-12)).numpy().reshape(-1, *grid)
        strips.append(gallery.strip(np.stack([shades(one) for one in scaled])))
        ends = zip(low[:, 0].tolist(), high[:, 0].tolist(), *both_sides(values, share), strict=True)
        rows += [(label, n, *found) for n, found in enumerate(ends, start=1)]
    table = pd.DataFrame(rows, columns=["map", "picture", "lowest", "highest", "on the emoji", "background"])
    means = table.groupby("map", sort=False)[["on the emoji", "background"]].mean()
    said = "; ".join(f"{m.Index} {m[1]:.3g} and {m[2]:.3g}" for m in means.itertuples())
    alt = f"{len(pictures)} pictures and {what}; means over patches of the emoji and of background: {said}."
    figure = picture_rows(strips, labels=["picture", *maps], name=name, data=table, alt=alt)
    if every is None:
        return figure
    from vitscope.explore_gallery import by_block  # brings altair

    explorer = by_block(
        pictures,
        {label: values.numpy() for label, values in every.items()},
        grid,
        title="where CLS looks, and which patches are like it, block by block",
        what="what CLS attends to in a block, and how alike patches are to CLS after it (dark: most)",
        note=lambda m: "{:.3g} and {:.3g}".format(*(v.mean() for v in both_sides(torch.tensor(m), share))),
        head=("map", "mean on the emoji and on the background"),
    )
    return replace(figure, explorer=explorer)


def both_sides(values: Float[Tensor, "*S N P"], share: Float[Tensor, "N P"]) -> tuple[np.ndarray, np.ndarray]:
    """Means of maps over the emoji and over the background [..., N], patches weighted by their share."""
    inside, outside = share.clamp_min(1e-9), (1 - share).clamp_min(1e-9)
    return (
        ((values * inside).sum(-1) / inside.sum(-1)).numpy(),
        ((values * outside).sum(-1) / outside.sum(-1)).numpy(),
    )


# --- numbers ----------------------------------------------------------------------------------------------


def curves(
    by_name: Mapping[str, Tensor | np.ndarray],
    emoji: np.ndarray,
    *,
    y: str,
    hue: str = "model",
    x: str = "state",
    first: int = 0,
) -> pd.DataFrame:
    """Means `y` of values [K, N] of each name, with 95 % intervals, over `x` = `first`, `first` + 1 …"""
    parts = []
    for name, values in by_name.items():
        mean, low, high = bootstrap_mean(np.asarray(values), clusters=emoji)
        along = np.arange(first, first + len(mean))
        parts.append(pd.DataFrame({x: along, y: mean, "low": low, "high": high, hue: name}))
    return pd.concat(parts, ignore_index=True)


def accuracy_table(
    answers: Mapping[str, Bool[np.ndarray, " N"]], whole: Bool[np.ndarray, " N"], emoji: np.ndarray
) -> pd.DataFrame:
    """Accuracy and the loss against `whole`, in percent and points, a row a change, with 95 % intervals.

    The loss is taken picture by picture; `clear` says whether its interval lies above 0.
    """
    rows = []
    for name, found in answers.items():
        accuracy = bootstrap_mean(100.0 * found, clusters=emoji)
        loss = bootstrap_mean(100.0 * (whole.astype(float) - found), clusters=emoji)
        rows.append((name, *map(float, accuracy), *map(float, loss), bool(loss.low > 0)))
    columns = ["change", "accuracy", "low", "high", "loss", "loss low", "loss high", "clear"]
    return pd.DataFrame(rows, columns=columns)


def accuracy_figure(table: pd.DataFrame, whole: float, *, xlabel: str, title: str, name: str) -> Figure:
    """A bar a change, with the accuracy of the unchanged model as a dashed line."""
    shown = table.rename(columns={"change": xlabel})
    drawn = plotting.category_bars(
        shown, x=xlabel, y="accuracy", band=("low", "high"), reference=(whole, "unchanged"),
        ylabel="accuracy (%)", title=title, name=name,
        alt=lambda t: describe_categories(t, xlabel, "accuracy", None, list(t[xlabel]))
        + f" With nothing changed it is {whole:.1f}.",
    )  # fmt: skip
    drawn.fig.set_size_inches(7.5, 3.2)  # 24 blocks have to fit a page as well
    return drawn


def accuracy_row(table: pd.DataFrame, row: int = 0) -> dict:
    """A row of `accuracy_table` as arguments of `run.report`: the accuracy and its interval."""
    value, low, high = (float(table[column].iloc[row]) for column in ("accuracy", "low", "high"))
    return {"value": value, "spread": (low, high), "text": f"{value:.1f} % ({low:.1f} to {high:.1f})"}


def costs(table: pd.DataFrame) -> dict[str, dict]:
    """Of `accuracy_table`, for `run.report`: the costliest change, and how many have no clear cost."""
    worst, free = table.loc[table["loss"].idxmax()], int((~table["clear"]).sum())
    return {
        "costliest": {
            "value": float(worst["loss"]),
            "spread": (float(worst["loss low"]), float(worst["loss high"])),
            "text": f"{worst['change']} ({worst['accuracy']:.1f} % right)",
        },
        "free": {"value": free, "n": len(table), "text": f"{free} of {len(table)}"},
    }


def place_table(found: Mapping[str, Placed], labels: np.ndarray, emoji: np.ndarray) -> pd.DataFrame:
    """Accuracy with and without position embedding, patches in place and shuffled; losses as above."""
    whole = right(found["with"].in_place.argmax(1), labels)
    parts = []
    for name, scores in found.items():
        answers = {
            "in place": right(scores.in_place.argmax(1), labels),
            "shuffled": right(scores.shuffled.argmax(1), labels),
        }
        part = accuracy_table(answers, whole, emoji).rename(columns={"change": "patches"})
        parts.append(part.assign(**{"position embedding": name}))
    return pd.concat(parts, ignore_index=True)
