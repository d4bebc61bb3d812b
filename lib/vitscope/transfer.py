"""Batches and results on their way: the next batch is made ready while the model works on this one.

On a GPU a thread decodes and transforms the next batch and copies it from pinned memory on a stream of its
own; results return to pinned memory while the next batch is computed. On a CPU nothing is copied, and the
thread runs on request. Neither changes a number.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from vitscope.source import Source


class Feed:
    """Batches of a source on the model's device; a context manager that leaves no thread behind.

    `ahead`: prepare the batch that follows in a thread; None does so where pictures must be brought to a GPU.
    An error of the thread is raised by the `take` that asks for its batch, as it would have been without one.
    """

    def __init__(self, source: Source, ahead: bool | None = None) -> None:
        self.source, self.device = source, source.backbone.device
        self._to_gpu = self.device.type == "cuda" and not source.on_device
        self._pool = ThreadPoolExecutor(1) if (self._to_gpu if ahead is None else ahead) else None
        self._stream = torch.cuda.Stream(self.device) if self._to_gpu else None
        self._next: tuple[tuple[int, int], Future] | None = None

    def take(self, start: int, size: int) -> Tensor:
        """The `size` pictures from `start` on."""
        if self._next is not None and self._next[0] == (start, size):
            (_, future), self._next = self._next, None
            batch, copied = future.result()
        else:
            self.drop()
            batch, copied = self._prepare(start, size)
        if self._pool is not None and start + size < len(self.source):
            following = (start + size, size)
            self._next = (following, self._pool.submit(self._prepare, *following))
        if copied is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(copied)
            batch.record_stream(stream)  # its memory is not given away before this stream is done with it
        return batch

    @torch.inference_mode()
    def _prepare(self, start: int, size: int) -> tuple[Tensor, Any]:
        batch = self.source.transformed(start, size)
        if self._stream is None:
            return batch.to(self.device), None
        with torch.cuda.stream(self._stream):
            batch = batch.pin_memory().to(self.device, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return batch, copied

    def drop(self) -> None:
        """Forget the batch that was prepared, and free its memory."""
        if self._next is not None and not self._next[1].cancel():
            self._next[1].exception()  # waits; whatever failed there was never asked for
        self._next = None

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *exc: object) -> None:
        self.drop()
        if self._pool is not None:
            self._pool.shutdown()


class Arrival:
    """Results on their way to the CPU; `get` waits for them. On the CPU they are there."""

    def __init__(self, results: dict[str, Tensor]) -> None:
        self._results = results
        self._copied: Any = None
        on_gpu = {name: value for name, value in results.items() if value.device.type == "cuda"}
        if on_gpu:
            # in the order of the stream, so that what is copied cannot be overwritten before
            pinned = {n: torch.empty(v.shape, dtype=v.dtype, pin_memory=True) for n, v in on_gpu.items()}
            self._results = results | {n: p.copy_(on_gpu[n], non_blocking=True) for n, p in pinned.items()}
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(next(iter(on_gpu.values())).device))

    def get(self) -> dict[str, Tensor]:
        """The results, on the CPU."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._results
