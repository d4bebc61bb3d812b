"""Several processes that train one model: who am I, and means over all of us."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Ranks:
    """This process among `world` equal ones; alone, every operation leaves its input as it is."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @classmethod
    def join(cls, device: str) -> "Ranks":
        """Read the variables that `torchrun` sets and meet the others (gloo on CPU, nccl on GPUs)."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        return cls(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", "0")))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def device(self, device: str) -> torch.device:
        """Each process its own GPU, where a bare "cuda" was asked for."""
        return torch.device(f"cuda:{self.local}" if device == "cuda" and self.world > 1 else device)

    def share(self, batch: int) -> tuple[int, int]:
        """First place and number of this process's samples in a batch of `batch`."""
        if batch % self.world:
            raise ValueError(
                f"a batch of {batch} cannot be dealt to {self.world} processes; "
                f"choose a multiple of {self.world}"
            )
        each = batch // self.world
        return self.rank * each, each

    def mean(self, values: Tensor) -> Tensor:
        """Element-wise mean over the processes; the input is overwritten."""
        if self.world > 1:
            distributed.all_reduce(values)
            values /= self.world
        return values

    def average(self, parameters: list[torch.nn.Parameter]) -> None:
        """Replace the gradients by their means over the processes, in one message."""
        if self.world == 1:
            return
        grads = [p.grad for p in parameters if p.grad is not None]
        flat = self.mean(torch.cat([g.flatten() for g in grads]))
        for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(mean.view_as(grad))

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.world > 1:
            distributed.barrier()
