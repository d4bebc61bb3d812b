"""What a DINO step is watched by, and the ways it collapses, noticed while it happens."""

import math
from typing import NamedTuple

from vitscope.pretrain.dino_recipe import DinoRecipe
from vitscope.pretrain.failures import TrainingError

UNIFORM = 0.995  # share of ln K above which the teacher's answers say nothing
ONE = 0.95  # share of ln K above which KL(mean ‖ uniform) means one prototype for all


class Step(NamedTuple):
    """What a step is logged by; entropies and KL in nats.

    `student_entropy` and `teacher_entropy` are means over samples (global views). `kl_uniform` is
    KL(teacher's mean over the batch ‖ uniform): ln K where all fall on one prototype. `feature_std` is √D
    times the mean over channels of the spread of unit CLS features: near 1 where they fill the sphere, 0
    where all are one. `agreement` is the share of samples whose two global views get one first prototype from
    the teacher.
    """

    loss: float
    student_entropy: float
    teacher_entropy: float
    kl_uniform: float
    feature_std: float
    agreement: float
    gradient: float


class Alarm:
    """Counts steps in a row that look collapsed; `look` raises `TrainingError` at `recipe.alarm_steps`.

    Nothing is counted in the first `recipe.alarm_after` of the run, when the teacher knows nothing yet.
    """

    def __init__(self, recipe: DinoRecipe) -> None:
        self.recipe = recipe
        self.most = math.log(recipe.prototypes)
        self.counts = {"uniform": 0, "one prototype": 0, "one point": 0}

    def look(self, step: int, numbers: Step) -> None:
        """Take in the numbers of a step."""
        if step <= self.recipe.alarm_after * self.recipe.steps:
            return
        signs = {
            "uniform": numbers.teacher_entropy > UNIFORM * self.most,
            "one prototype": numbers.kl_uniform > ONE * self.most,
            "one point": numbers.feature_std < self.recipe.alarm_feature_std,
        }
        for kind, seen in signs.items():
            self.counts[kind] = self.counts[kind] + 1 if seen else 0
            if self.counts[kind] >= self.recipe.alarm_steps:
                raise TrainingError(f"collapse at step {step}: {self._explain(kind, numbers)}")

    def _explain(self, kind: str, numbers: Step) -> str:
        if kind == "uniform":
            return (
                f"the teacher's answers are uniform (entropy {numbers.teacher_entropy:.3f} of at most "
                f"{self.most:.3f}); lower teacher_temperature, raise ema, or lower the learning rate"
            )
        if kind == "one prototype":
            return (
                f"all samples fall on one prototype (KL to uniform {numbers.kl_uniform:.3f} of at most "
                f"{self.most:.3f}); lower centre_momentum, raise teacher_temperature, or lower the rate"
            )
        return (
            f"all features are one point (spread {numbers.feature_std:.4f}, bound "
            f"{self.recipe.alarm_feature_std}); lower the learning rate, raise warmup, or check the views"
        )
