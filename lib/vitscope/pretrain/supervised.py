"""Supervised training of a twin: seeded, resumable at any moment, with a time budget.

The learning rate depends on the position in the recipe, never on the budget: a run cut into ten pieces ends
with the same weights as one run (bit-equal on one machine at one thread count). Under `torchrun` each process
takes its part of the same global batch, so the numbers stay those of one process up to rounding, and a run
may go on with another number of processes than it began with.
"""

import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from vitscope.data import emoji
from vitscope.pretrain import checkpoint, log
from vitscope.pretrain.failures import TrainingError
from vitscope.pretrain.ranks import Ranks
from vitscope.pretrain.stream import IdentityStream
from vitscope.pretrain.zoo import SupervisedRecipe, read_weights, write_weights

CHECKPOINT_EVERY = 60.0  # seconds
_COMPILE = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,TRITON,ATEN"}


def normalise(pictures: torch.Tensor) -> torch.Tensor:
    """uint8 [0, 255] to float [−1, 1], the zoo's own transform."""
    return pictures.to(torch.float32).div(127.5).sub(1)


class Trainer:
    """One run of a recipe in a folder: `checkpoint.pt`, `train.jsonl`, `snapshots/`.

    `compiled` lets torch.compile choose the kernels of the blocks by timing them: faster, the same arithmetic
    up to rounding, but then bit-equality between two runs is not promised.
    """

    def __init__(
        self,
        recipe: SupervisedRecipe,
        folder: Path,
        *,
        seed: int,
        device: str = "cpu",
        compiled: bool = False,
    ) -> None:
        self.recipe, self.folder, self.seed, self.compiled = recipe, folder, seed, compiled
        self._join(device)
        render = emoji.Recipe(background_part="train", scale=recipe.scale)
        self.stream = IdentityStream(style=recipe.style, seed=seed, recipe=render)
        self.check()
        self._warn_of_slow_arithmetic()
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(seed)
        self.model = self.build().to(self.device)
        block: Any  # torch types every attribute of a module as Tensor | Module
        for block in self.backbone.blocks:
            if self.device.type == "cpu":
                # the bf16 backward of fused attention is four times slower than explicit attention on CPU
                block.attn.fused_attn = False
            if compiled:  # block by block: one graph serves all blocks of a model
                block.compile(dynamic=False, options=_COMPILE)
        self.optimizers = _optimizers(self.model, self.backbone, recipe)
        self.base_rates = [group["lr"] for o in self.optimizers for group in o.param_groups]
        self.step, self.seconds = 0, 0.0
        self._resume()

    def _join(self, device: str) -> None:
        """Find this process's device and its part of every batch, then the other processes."""
        self.ranks = Ranks.read()
        self.place, self.count = self.ranks.share(self.recipe.batch)
        self.device = self.ranks.device(device)
        self.ranks.meet(self.device)
        wanted = json.dumps(self.recipe.describe(), sort_keys=True) + f" with seed {self.seed}"
        self.ranks.agree("recipes", wanted)

    # --- the objective: what another kind of training replaces ---

    def check(self) -> None:
        """Refuse a recipe that does not fit the data."""
        if self.recipe.architecture.num_classes != self.stream.num_classes:
            raise TrainingError(
                f"the recipe has {self.recipe.architecture.num_classes} classes, "
                f"the data {self.stream.num_classes}"
            )

    def build(self) -> nn.Module:
        """Everything that learns."""
        return self.recipe.architecture.build()

    @property
    def backbone(self) -> Any:
        """The part that is published as a model of the zoo, a `VisionTransformer`."""
        return self.model

    def objective(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and which of its pictures are named right. Runs under autocast."""
        logits = self.model(inputs)
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=self.recipe.label_smoothing)
        return loss, logits.argmax(1) == labels

    def publish(self, folder: Path, name: str) -> Path:
        """Write the finished model for the zoo; returns its weight file."""
        path = folder / f"{name}.safetensors"
        write_weights(path, self.backbone, self.recipe.architecture)
        return path

    def classifier(self, weights: Path) -> nn.Module:
        """Pictures to scores of the seen identities, from the published file."""
        return read_weights(weights)[0]

    # --- state ---

    def _warn_of_slow_arithmetic(self) -> None:
        """bf16 that the CPU has to imitate takes several times as long as fp32, and compiled many times."""
        native = torch.cpu.get_capabilities().get("avx512_bf16", True)  # other architectures do not say
        if self.device.type == "cpu" and self.recipe.precision == "bf16" and not native:
            warnings.warn(
                "this CPU has no bf16 instructions: the recipe runs many times slower than where they are "
                "(AVX512-BF16, AMX, a GPU); train elsewhere, and leave out --compile here",
                stacklevel=3,
            )

    def _resume(self) -> None:
        path = self.folder / "checkpoint.pt"
        if path.exists():
            self._read(path)
        self.ranks.agree("checkpoints, at steps", self.step)

    def _read(self, path: Path) -> None:
        state = checkpoint.load(path)
        if state["recipe"] != json.dumps(self.recipe.describe()) or state["seed"] != self.seed:
            raise TrainingError(
                f"{path} belongs to another recipe or seed; choose another folder or remove this one"
            )
        self.model.load_state_dict(state["model"], strict=True)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        checkpoint.save(
            self.folder / "checkpoint.pt",
            {
                "recipe": json.dumps(self.recipe.describe()),
                "seed": self.seed,
                "model": self.model.state_dict(),
                "optimizers": [o.state_dict() for o in self.optimizers],
                "step": self.step,
                "seconds": self.seconds,
            },
        )

    @property
    def writes(self) -> bool:
        """Whether this process writes the results; of several that train together one does."""
        return self.ranks.first

    @property
    def finished(self) -> bool:
        return self.step >= self.recipe.steps

    # --- work ---

    def _rate(self, step: int) -> float:
        """Share of the base rate: linear warm-up, then a cosine to zero."""
        warm = max(1, round(self.recipe.warmup * self.recipe.steps))
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.recipe.steps - warm)))

    def train_step(self) -> tuple[float, float]:
        """One batch. Returns loss and training accuracy, over all processes."""
        recipe = self.recipe
        pictures, labels = self.stream.batch(self.step * recipe.batch + self.place, self.count)
        inputs, labels = normalise(pictures.to(self.device)), labels.to(self.device)
        groups = (group for o in self.optimizers for group in o.param_groups)
        for group, base in zip(groups, self.base_rates, strict=True):
            group["lr"] = base * self._rate(self.step)
        self.model.train()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            loss, right = self.objective(inputs, labels)
        numbers = self.ranks.mean(torch.stack([loss.detach(), right.float().mean()])).tolist()
        if not math.isfinite(numbers[0]):
            raise TrainingError(f"loss is {numbers[0]} at step {self.step}; the last checkpoint is intact")
        loss.backward()
        self.ranks.average(list(self.model.parameters()))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return numbers[0], numbers[1]

    def run(self, *, minutes: float | None = None, progress: bool | None = None) -> bool:
        """Train until the recipe ends (True) or the budget does (False, resumable)."""
        try:
            return self._run(minutes, progress if self.writes else False)
        except OSError as error:
            raise TrainingError(
                f"{error} at step {self.step}; the last checkpoint is intact, and the same command continues "
                "from it"
            ) from error

    def _run(self, minutes: float | None, progress: bool | None) -> bool:
        start, last_save = time.monotonic(), time.monotonic()
        before = self.seconds
        bar = tqdm(
            total=self.recipe.images, initial=self.step * self.recipe.batch, unit="img",
            disable=None if progress is None else not progress,
        )  # fmt: skip
        window: list[tuple[float, float]] = []
        with bar:
            while not self.finished:
                if self.writes:
                    self._snapshot()
                window.append(self.train_step())
                bar.update(self.recipe.batch)
                now = time.monotonic()
                self.seconds = before + now - start
                if self.step % 50 == 0 or self.finished:
                    if self.writes:
                        self._log(window)
                    bar.set_postfix(loss=f"{window[-1][0]:.3f}")
                    window = []
                if now - last_save > CHECKPOINT_EVERY and self.writes:
                    self.save()
                    last_save = now
                # one clock, the first process's, or some would stop and the others wait for them
                if minutes is not None and self.ranks.first_says(now - start > 60 * minutes, self.device):
                    break
        if self.writes:
            self.save()
        self.ranks.wait()
        return self.finished

    def _log(self, window: list[tuple[float, float]]) -> None:
        loss, accuracy = (sum(column) / len(window) for column in zip(*window, strict=True))
        entry = {
            "step": self.step,
            "images": self.step * self.recipe.batch,
            "loss": round(loss, 5),
            "train_top1": round(accuracy, 5),
            "rate": round(self._rate(self.step - 1), 6),
            "seconds": round(self.seconds, 1),
        }
        log.append(self.folder, entry)

    def _snapshot(self) -> None:
        images = self.step * self.recipe.batch
        path = self.folder / "snapshots" / f"{images:07d}.safetensors"
        if images in self.recipe.snapshots and not path.exists():
            write_weights(path, self.backbone, self.recipe.architecture)


def _optimizers(
    model: nn.Module, backbone: VisionTransformer, recipe: SupervisedRecipe
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the backbone's blocks; AdamW for everything else."""
    hidden = [p for p in backbone.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in hidden}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    decayed = [p for p in rest if p.ndim >= 2]
    plain = [p for p in rest if p.ndim < 2]
    muon = torch.optim.Muon(
        hidden, lr=recipe.lr_muon, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": recipe.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=recipe.lr_adamw,
        betas=(0.9, 0.99),
    )
    return [muon, adamw]
