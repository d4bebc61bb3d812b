"""Which update moves which parameter of the student."""

from typing import Any

import torch

from vitscope.pretrain.dino_head import Dino
from vitscope.pretrain.dino_recipe import DinoRecipe


def make_optimizers(model: Dino, recipe: DinoRecipe) -> list[torch.optim.Optimizer]:
    """AdamW for all of the student, or Muon for the matrices of its blocks and AdamW for the rest.

    Vectors (biases, norms) are never decayed: their group says `decayed` False. The trainer sets rates and
    decay at every step.
    """
    learning = model.learning()
    blocks: Any = model.student.blocks
    hidden = [p for p in blocks.parameters() if p.ndim == 2] if recipe.optimizer == "muon" else []
    chosen = {id(p) for p in hidden}
    rest = [p for p in learning if id(p) not in chosen]
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in rest if p.ndim >= 2], "decayed": True},
            {"params": [p for p in rest if p.ndim < 2], "decayed": False},
        ],
        lr=recipe.lr_adamw,
    )
    if not hidden:
        return [adamw]
    muon = torch.optim.Muon(
        hidden, lr=recipe.lr_muon, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    for group in muon.param_groups:
        group["decayed"] = True
    return [muon, adamw]
