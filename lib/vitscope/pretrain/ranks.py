"""Several processes that train one model: who am I, what all of us have, and what if one is gone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from vitscope.pretrain.failures import TrainingError

PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others; more than the first one needs to monitor and to save."""

_VARIABLES = ("RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """This process among `world` equal ones; alone, every operation leaves its input as it is."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @classmethod
    def read(cls) -> "Ranks":
        """From the variables that `torchrun` and `accelerate launch` set. Nobody is waited for.

        Errors: `TrainingError` where some of them are missing.
        """
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        if missing := [name for name in _VARIABLES if name not in os.environ]:
            raise TrainingError(
                f"WORLD_SIZE is {world}, but {', '.join(missing)} is not set: start the processes with "
                "torchrun, or unset WORLD_SIZE to train in this one alone"
            )
        return cls(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", "0")))

    def meet(self, device: torch.device) -> None:
        """Wait until all are there (gloo on CPU, nccl on GPUs); `device` is this one's own."""
        if self.world == 1 or distributed.is_initialized():
            return
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with self._answered():
            store, *_ = next(distributed.rendezvous("env://", timeout=PATIENCE))
            # after a restart torchrun's store still holds the addresses of the processes before
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            distributed.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                timeout=PATIENCE,
                store=distributed.PrefixStore(f"attempt {attempt}", store),
                rank=self.rank,
                world_size=self.world,
            )

    def leave(self) -> None:
        """Take leave of the others at the end of the work."""
        if self.world > 1 and distributed.is_initialized():
            distributed.destroy_process_group()

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def device(self, device: str) -> torch.device:
        """Each process its own GPU of its machine. Errors: `TrainingError` where it has none."""
        if self.world == 1 or not device.startswith("cuda"):
            return torch.device(device)
        if device != "cuda":
            raise TrainingError(
                f"{self.world} processes cannot share {device}: give cuda, and each takes a GPU of its own"
            )
        if self.local >= torch.cuda.device_count():
            raise TrainingError(
                f"process {self.local} of this machine needs a GPU of its own, and there are "
                f"{torch.cuda.device_count()}: start as many processes as there are GPUs"
            )
        return torch.device("cuda", self.local)

    def share(self, batch: int) -> tuple[int, int]:
        """First place and number of this process's samples in a batch of `batch`.

        Errors: `TrainingError` for a batch that is no multiple of the number of processes.
        """
        if batch % self.world:
            near = [n for n in range(1, self.world) if batch % n == 0]
            raise TrainingError(
                f"a batch of {batch} cannot be dealt to {self.world} processes evenly; start {near[-1]} of "
                f"them, or choose a batch that is a multiple of {self.world}"
            )
        each = batch // self.world
        return self.rank * each, each

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Say what it means where the others are not heard any more."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise TrainingError(
                f"another of the {self.world} processes ended, or did not answer within {PATIENCE.seconds} s "
                f"({str(error).partition(chr(10))[0]}); the last checkpoint is intact, and the same command "
                "continues from it"
            ) from error

    def mean(self, values: Tensor) -> Tensor:
        """Element-wise mean over the processes; the input is overwritten."""
        if self.world > 1:
            with self._answered():
                distributed.all_reduce(values)
            values /= self.world
        return values

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in order. Gradients go back to whose rows they are, summed over all."""
        if self.world == 1:
            return rows
        return _Gather.apply(rows, self)

    def average(self, parameters: list[torch.nn.Parameter]) -> None:
        """Replace the gradients by their means over the processes, in one message."""
        if self.world == 1:
            return
        grads = [p.grad for p in parameters if p.grad is not None]
        flat = self.mean(torch.cat([g.flatten() for g in grads]))
        for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(mean.view_as(grad))

    def first_says(self, word: bool, device: torch.device) -> bool:
        """What the first process says, in all of them."""
        if self.world == 1:
            return word
        said = torch.tensor(int(word), device=device)
        with self._answered():
            distributed.broadcast(said, src=0)
        return bool(said)

    def agree(self, what: str, found: str | int) -> None:
        """Errors: `TrainingError` in every process where they have not all found the same."""
        if self.world == 1:
            return
        every: list[Any] = [None] * self.world
        with self._answered():
            distributed.all_gather_object(every, found)
        if len(set(every)) > 1:
            raise TrainingError(
                f"the processes found different {what} ({', '.join(map(str, every))}); give all the same "
                "command, and a folder that all of them see"
            )

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.world > 1:
            with self._answered():
                distributed.barrier()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks, ctx.count = ranks, len(rows)
        parts = [torch.empty_like(rows) for _ in range(ranks.world)]
        with ranks._answered():
            distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total, ranks = grads[0].clone(memory_format=torch.contiguous_format), ctx.ranks
        with ranks._answered():
            distributed.all_reduce(total)
        start = ranks.rank * ctx.count
        return total[start : start + ctx.count], None
