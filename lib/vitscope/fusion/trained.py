"""Heads that are networks: configurations trained side by side, the best of them fitted again."""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitscope.fusion.base import Fitted, Head, Problem
from vitscope.fusion.checks import Blocks, share_right
from vitscope.fusion.training import Configuration, Network, Tensors, evaluate, train


class TrainedHead(Head):
    """A head that is a network: configurations are trained side by side, the best one is refitted."""

    @abstractmethod
    def configurations(self) -> list[Configuration]:
        """What may be tried, in the order of preference."""

    @abstractmethod
    def _statistics(self, problem: Problem, part: Tensor) -> Tensors:
        """What the inputs are normalised with, from the images `part` alone."""

    @abstractmethod
    def _inputs(self, statistics: Tensors, blocks: Blocks, logits: Tensor | None) -> tuple[Tensor, ...]:
        """Inputs of the network, images first."""

    @abstractmethod
    def _network(self, blocks: list[list[int]], classes: int) -> Network:
        """The network for [K, D] of every block."""

    def _lesson(self, problem: Problem, part: Tensor) -> Tensor:
        """The images of a part that the network learns from: all, unless a method keeps some apart."""
        return part

    def _train(
        self,
        network: Network,
        inputs: tuple[Tensor, ...],
        codes: Tensor,
        tried: list[Configuration],
        seed: int,
    ) -> list[Tensors]:
        return train(network, inputs, codes, tried, self.budget.schedule(len(codes)), seed=seed)

    def _fit(self, problem: Problem) -> tuple[Tensors, dict[str, Any]]:
        network = self._network([[len(b), b.shape[2]] for b in problem.blocks], len(problem.classes))
        tried = self.configurations()[: self.budget.configurations]
        statistics, trained = self._fit_part(network, problem, problem.train, tried)
        inputs = self._inputs(statistics, problem.blocks, problem.logits)
        held, truth = [x[problem.held] for x in inputs], problem.codes[problem.held]
        balanced = self.criterion == "balanced accuracy"
        right = [share_right(evaluate(network, t, held), truth, balanced=balanced) for t in trained]
        best = self._choose(tried, right)
        final = trained[best]
        if self.budget.refit:
            everything = torch.arange(len(problem.codes), device=problem.codes.device)
            statistics, trained = self._fit_part(network, problem, everything, [tried[best]])
            final = trained[0]
        if not all(v.isfinite().all() for v in final.values()):
            raise ValueError(
                f"training diverged at {tried[best]}: pass a smaller learning rate or check scales"
            )
        self.report["parameters"] = sum(v.numel() for k, v in final.items() if k not in network.buffers())
        return {f"normal.{k}": v for k, v in statistics.items()} | final, {}

    def _fit_part(
        self, network: Network, problem: Problem, part: Tensor, tried: list[Configuration]
    ) -> tuple[Tensors, list[Tensors]]:
        statistics = self._statistics(problem, part)
        inputs = self._inputs(statistics, problem.blocks, problem.logits)
        lesson = self._lesson(problem, part)
        chosen = tuple(x[lesson] for x in inputs)
        return statistics, self._train(network, chosen, problem.codes[lesson], tried, problem.seed)

    def _predict(self, fitted: Fitted, blocks: Blocks, logits: Tensor | None) -> Float[Tensor, "N C"]:
        network = self._network(fitted.sizes["blocks"], fitted.sizes["classes"])
        statistics = {
            k.removeprefix("normal."): v for k, v in fitted.tensors.items() if k.startswith("normal.")
        }
        own = {
            k: v.to(blocks[0].device)
            for k, v in fitted.tensors.items()
            if not k.startswith(("normal.", "probes."))
        }
        moved = {k: v.to(blocks[0].device) for k, v in statistics.items()}
        return evaluate(network, own, self._inputs(moved, blocks, logits))
