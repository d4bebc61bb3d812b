"""Every model that `vitscope train` knows, by name."""

from dataclasses import replace

from vitscope.pretrain import zoo
from vitscope.pretrain.dino_recipe import DINO_VITS16, DinoRecipe
from vitscope.pretrain.zoo import VARIANTS, Architecture, SupervisedRecipe

# One shape, four kinds of token interaction, taught without labels by the same pictures in the same order.
# A recipe to start from: no training by it is finished.
_DINO = {
    f"dino_{name}": DinoRecipe(
        Architecture(width=96, depth=8, heads=3, **changes),
        images=204_800,
        scale=(0.35, 1.0),
        snapshots=(0, 25_600, 51_200, 102_400),
    )
    for name, changes in VARIANTS.items()
}
# The paper's scale: ViT-S/16 on a folder such as ImageNet's, with either attention
_DINO_VITS16 = {
    f"dino_vits16_{name}": replace(DINO_VITS16, architecture=replace(DINO_VITS16.architecture, **changes))
    for name, changes in VARIANTS.items()
}

RECIPES: dict[str, SupervisedRecipe] = {**zoo.RECIPES, **_DINO, **_DINO_VITS16}
