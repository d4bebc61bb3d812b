"""What each block costs: floating-point operations and parameters exactly, milliseconds as measured here.

State 0 costs what comes before the first block (patch embedding, position embedding, norms); state ℓ adds
block ℓ. What comes after the last block (norm, head) is no part of any state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import accumulate, takewhile

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitscope.backbones import Backbone


def layer_costs(backbone: Backbone) -> pd.DataFrame:
    """Operations and parameters of each state for one picture of the backbone's own size.

    A multiply–add counts as two operations; only matrix products and convolutions count, as is usual
    (`torch.utils.flop_counter`), softmax, norms and activations do not. With T tokens, width D and an MLP of
    M hidden units, a block of a plain ViT takes

        2·T·D·3D (q, k, v) + 2·2·T²·D (scores, values) + 2·T·D·D (projection) + 2·2·T·D·M (MLP).

    Columns: state (0…L); gflops, 10⁹ operations of this state alone; gflops_total, of all up to it; share,
    gflops over those of all states; params, parameters of this state alone; params_total, of all up to it.
    The numbers depend on the architecture alone, not on weights or machine.

    >>> from vitscope import backbones
    >>> costs = layer_costs(backbones.load("twin_s", device="cpu"))
    >>> costs.round(4).iloc[[0, 1, -1]]
        state  gflops  gflops_total   share  params  params_total
    0       0  0.0024        0.0024  0.0121   24864         24864
    1       1  0.0160        0.0184  0.0823  111840        136704
    12     12  0.0160        0.1944  0.0823  111840       1366944
    """
    counter = FlopCounterMode(display=False)
    # plain attention: the counter does not know every fused kernel, and which one runs depends on the machine
    with counter, sdpa_kernel(SDPBackend.MATH):
        totals = _marks(backbone, _pictures(backbone, 1), counter.get_total_flops)
    alone = np.diff(totals)
    params = _parameters(backbone)
    return pd.DataFrame(
        {
            "state": range(backbone.depth + 1),
            "gflops": alone / 1e9,
            "gflops_total": np.array(totals[1:]) / 1e9,
            "share": alone / totals[-1],
            "params": params,
            "params_total": list(accumulate(params)),
        }
    )


def layer_milliseconds(backbone: Backbone, *, batch: int = 16, rounds: int = 7) -> pd.DataFrame:
    """Milliseconds a picture spends in each state, here and now: medians over `rounds` batches of `batch`.

    One more round warms up. Times depend on machine, load, threads and batch: they are no result, and belong
    in no record. Columns: state (0…L); milliseconds, of this state alone; milliseconds_total, of all up to it
    (the sum of medians).

    Raises ValueError for a batch or a number of rounds below one.
    """
    if batch < 1 or rounds < 1:
        raise ValueError(f"batch and rounds must be at least 1, got batch={batch} and rounds={rounds}")
    pictures = _pictures(backbone, batch)
    spent = [np.diff(_marks(backbone, pictures, lambda: _now(backbone.device))) for _ in range(rounds + 1)]
    milliseconds = 1e3 * np.median(spent[1:], axis=0) / batch
    return pd.DataFrame(
        {
            "state": range(backbone.depth + 1),
            "milliseconds": milliseconds,
            "milliseconds_total": milliseconds.cumsum(),
        }
    )


def _marks(backbone: Backbone, pictures: Tensor, read: Callable[[], float]) -> list[float]:
    """What `read` says before one forward pass, on entering the first block, and after each block."""
    marks: list[float] = []

    def mark(*_: object) -> None:
        marks.append(read())

    model = backbone.model
    with ExitStack() as hooks, torch.inference_mode():
        hooks.callback(model.blocks[0].register_forward_pre_hook(mark).remove)
        for block in model.blocks:
            hooks.callback(block.register_forward_hook(mark).remove)
        mark()
        model.forward_features(pictures)
    return marks


def _pictures(backbone: Backbone, count: int) -> Tensor:
    """Grey pictures of the model's own size: neither costs nor times depend on what they show."""
    shape = (count, 3, backbone.transform.height, backbone.transform.width)
    return torch.zeros(shape, device=backbone.device, dtype=next(backbone.model.parameters()).dtype)


def _now(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)  # the clock must not run ahead of the kernels
    return time.perf_counter()


def _parameters(backbone: Backbone) -> list[int]:
    """Parameters of each state; timm registers what runs before the blocks ahead of them."""
    model = backbone.model
    before: list[nn.Module] = [module for _, module in takewhile(_not_blocks, model.named_children())]
    tokens_and_positions = model.parameters(recurse=False)
    first = _count(tokens_and_positions) + sum(_count(module.parameters()) for module in before)
    return [first, *(_count(block.parameters()) for block in model.blocks)]


def _not_blocks(child: tuple[str, nn.Module]) -> bool:
    return child[0] != "blocks"


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters)
