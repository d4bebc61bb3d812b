"""DINO: a student learns to give the answers of its own slow average on other views of the same thing.

Caron et al. 2021. The outside is that of the supervised `Trainer`: seeded, resumable at any moment, with a
time budget, in one process or several.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitscope.data import emoji
from vitscope.pretrain import log
from vitscope.pretrain.dino_alarm import Alarm, Step
from vitscope.pretrain.dino_head import Dino, dino_loss, sinkhorn
from vitscope.pretrain.dino_monitor import knn_identity, nearest_renders
from vitscope.pretrain.dino_optimizers import make_optimizers
from vitscope.pretrain.dino_recipe import DinoRecipe
from vitscope.pretrain.drop_path import share_drop_path
from vitscope.pretrain.failures import TrainingError
from vitscope.pretrain.multicrop import Ahead, RenderViews, Views
from vitscope.pretrain.stream import IdentityStream
from vitscope.pretrain.supervised import Trainer
from vitscope.pretrain.zoo import read_weights

_COMPILE = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,TRITON,ATEN"}


class DinoTrainer(Trainer):
    """One DINO run in a folder: `checkpoint.pt`, `train.jsonl`, `snapshots/` (the teacher's backbone).

    `views` replaces the rendered emoji by another source of crops, such as `dino_folder.FolderViews`.
    Raises `TrainingError` where the loss is not finite or the training collapses.
    """

    recipe: DinoRecipe
    model: Dino

    def __init__(
        self,
        recipe: DinoRecipe,
        folder: Path,
        *,
        seed: int,
        device: str = "cpu",
        compiled: bool = False,
        views: Views | None = None,
    ) -> None:
        self.recipe, self.folder, self.seed, self.compiled = recipe, folder, seed, compiled
        self._join(device)
        if views is None and recipe.source != "emoji":
            raise TrainingError(
                f"a recipe of source {recipe.source!r} needs its pictures: give views=FolderViews(folder, …)"
            )
        self.views: Views = views or RenderViews(recipe, seed, self.device)
        if self.device.type == "cuda":  # draw the next crops while the GPU works on these
            self.views = Ahead(self.views, stride=recipe.batch)
        look = emoji.Recipe(background_part="train", scale=recipe.scale)
        self.stream = IdentityStream(style=recipe.style, seed=seed, recipe=look)
        self._warn_of_slow_arithmetic()
        folder.mkdir(parents=True, exist_ok=True)
        self._same_views()
        torch.manual_seed(seed)
        self.model = Dino(recipe).to(self.device)
        share_drop_path(self.model.student, batch=recipe.batch, place=self.place, count=self.count)
        for backbone in (self.model.student, self.model.teacher):
            self._prepare(backbone)
        self.optimizers = make_optimizers(self.model, recipe)
        self.base_rates = [group["lr"] for o in self.optimizers for group in o.param_groups]
        self.alarm = Alarm(recipe)
        self.step, self.seconds = 0, 0.0
        self._resume()

    def _prepare(self, backbone: nn.Module) -> None:
        block: Any
        for block in backbone.blocks:  # type: ignore[union-attr]
            if self.device.type == "cpu":
                block.attn.fused_attn = False  # its bf16 backward is four times slower
            if self.compiled:
                block.compile(dynamic=False, options=_COMPILE)

    def _same_views(self) -> None:
        """A folder whose pictures changed would go on as another training: refuse it."""
        self.ranks.agree("pictures", json.dumps(self.views.describe(), sort_keys=True))
        if not self.ranks.first:
            return
        path, text = self.folder / "views.json", json.dumps(self.views.describe(), sort_keys=True)
        if path.exists() and (found := path.read_text(encoding="utf-8")) != text:
            raise TrainingError(
                f"{self.folder} was begun with other pictures ({found}) than it is given now ({text}); "
                "restore them or choose another folder"
            )
        path.write_text(text, encoding="utf-8")

    @property
    def backbone(self) -> Any:
        """The teacher's, which is what gets published."""
        return self.model.teacher

    def classifier(self, weights: Path) -> nn.Module:
        """Pictures to scores of the seen identities: cosines with the nearest of four renders of each."""
        model = read_weights(weights)[0].to(self.device)
        return nearest_renders(model, style=self.recipe.style, scale=self.recipe.scale)

    # --- schedules, by position in the recipe ---

    def _between(self, first: float, last: float) -> float:
        """Half a cosine from `first` to `last` over the run."""
        return last + (first - last) * 0.5 * (
            1 + math.cos(math.pi * self.step / max(1, self.recipe.steps - 1))
        )

    def _temperature(self) -> float:
        first, last = self.recipe.teacher_temperature
        warm = self.recipe.teacher_warmup * self.recipe.steps
        return last if self.step >= warm else first + (last - first) * self.step / warm

    # --- work ---

    def train_step(self) -> Step:  # type: ignore[override]
        """One batch."""
        recipe, model = self.recipe, self.model
        crops = self.views.batch(self.step * recipe.batch + self.place, self.count)
        self._check_crops(crops)
        model.train()
        groups = [group for o in self.optimizers for group in o.param_groups]
        decay = self._between(recipe.weight_decay, recipe.weight_decay_end)
        for group, base in zip(groups, self.base_rates, strict=True):
            group["lr"] = base * self._rate(self.step)
            group["weight_decay"] = decay if group["decayed"] else 0.0
        with self._seeded():
            student, teacher, features = self._scores(crops)
        temperature = self._temperature()
        if recipe.centring == "sinkhorn":
            targets = sinkhorn(teacher, temperature, mean=self.ranks.mean)
        else:
            targets = ((teacher - model.centre) / temperature).softmax(-1)
        answers = student / recipe.student_temperature
        loss = dino_loss(answers, targets)
        numbers = self._numbers(loss, answers, targets, features, teacher)
        if not math.isfinite(numbers.loss):
            raise TrainingError(f"loss is {numbers.loss} at step {self.step}; the last checkpoint is intact")
        loss.backward()
        learning = model.learning()
        if self.step < recipe.freeze_last * recipe.steps:
            model.student_head.last.grad = None
        self.ranks.average(learning)
        norm = torch.nn.utils.clip_grad_norm_(learning, recipe.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        model.follow(self._between(recipe.ema, 1.0))
        self.step += 1
        self.alarm.look(self.step, numbers)
        return numbers._replace(gradient=norm.item())

    def _check_crops(self, crops: list[Tensor]) -> None:
        expected = self.recipe.global_crops + self.recipe.local_crops
        if len(crops) != expected or any(len(c) != self.count for c in crops):
            raise TrainingError(
                f"{expected} crops of {self.count} samples are needed, the views gave "
                f"{[list(c.shape) for c in crops]}"
            )

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Stochastic depth draws from torch's own generator: seed it by step, and put it back."""
        if not self.recipe.drop_path:
            yield
            return
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed((self.seed << 32) + self.step)
            yield

    def _scores(self, crops: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Student's scores [V, N, K], teacher's scores [G, N, K] and the teacher's CLS features [G, N, D]."""
        model, first, count = self.model, self.recipe.global_crops, self.count
        crops = [c.to(self.device, non_blocking=True) for c in crops]
        wide = torch.cat(crops[:first])
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            with torch.no_grad():
                features = model.teacher(wide).float()
            seen = model.student(wide).float()
            if crops[first:]:
                seen = torch.cat([seen, model.student(torch.cat(crops[first:])).float()])
        with torch.no_grad():
            teacher = model.teacher_head(features)
        student = model.student_head(seen)
        return (
            student.view(-1, count, student.shape[-1]),
            teacher.view(first, count, -1),
            features.view(first, count, -1),
        )

    @torch.no_grad()
    def _numbers(
        self, loss: Tensor, answers: Tensor, targets: Tensor, features: Tensor, teacher: Tensor
    ) -> Step:
        """The step's numbers over all ranks; moves the centre on the way, as both need the ranks' means."""
        answers = answers[: len(targets)]
        log_answers = answers.log_softmax(-1)
        unit = torch.nn.functional.normalize(features, dim=-1).flatten(0, 1)
        best = targets.argmax(-1)
        single = torch.stack(
            [
                loss.detach(),
                -(log_answers.exp() * log_answers).sum(-1).mean(),
                -torch.xlogy(targets, targets).sum(-1).mean(),
                (best[0] == best[1]).float().mean(),
            ]
        )
        parts = [single, targets.mean((0, 1)), teacher.mean((0, 1)), unit.mean(0), unit.square().mean(0)]
        together = self.ranks.mean(torch.cat(parts))
        single, share, scores, mean, square = together.split([len(p) for p in parts])
        momentum = self.recipe.centre_momentum
        self.model.centre.mul_(momentum).add_(scores, alpha=1 - momentum)
        kl = torch.xlogy(share, share).sum() + math.log(len(share))
        spread = (square - mean.square()).clamp(min=0).sqrt().mean() * math.sqrt(len(mean))
        value, student_entropy, teacher_entropy, agreement = single.tolist()
        return Step(value, student_entropy, teacher_entropy, kl.item(), spread.item(), agreement, 0.0)

    def _log(self, window: list[Any]) -> None:
        means = [sum(column) / len(window) for column in zip(*window, strict=True)]
        entry = {
            "step": self.step,
            "images": self.step * self.recipe.batch,
            **{key: round(value, 5) for key, value in zip(Step._fields, means, strict=True)},
            "rate": round(self._rate(self.step - 1), 6),
            "seconds": round(self.seconds, 1),
        }
        every = self.recipe.monitor_every
        before = (self.step - len(window)) * self.recipe.batch
        if self.finished or entry["images"] // every > before // every:
            entry.update(self.monitor())
        log.append(self.folder, entry)

    def monitor(self) -> dict[str, float]:
        """What the teacher knows now, see `knn_identity`; empty where the pictures are no emoji."""
        if self.recipe.source != "emoji":
            return {}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            found = knn_identity(
                self.model.teacher, style=self.recipe.style, scale=self.recipe.scale, batch=2 * self.count
            )
        return {f"knn_{key}": value for key, value in found.items()}
