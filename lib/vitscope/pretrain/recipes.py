"""Every model that `vitscope train` knows, by name."""

from dataclasses import replace

from vitscope.pretrain import zoo
from vitscope.pretrain.dino_recipe import DINO_VITS16, DinoRecipe
from vitscope.pretrain.zoo import VARIANTS, Architecture, SupervisedRecipe

# One shape, four kinds of token interaction, taught without labels by the same pictures in the same order.
# What the views share is hard to see for so small a model: with a running mean for a centre its answers went
# to uniform before it had learned anything, with the prototypes shared evenly they did not. Local crops are
# large enough to hold a part of the emoji.
_DINO = {
    f"dino_{name}": DinoRecipe(
        Architecture(width=96, depth=8, heads=3, **changes),
        images=153_600,
        batch=64,
        scale=(0.35, 1.0),
        global_size=48,
        global_scale=(0.6, 1.0),
        local_crops=2,
        local_scale=(0.3, 0.7),
        jitter=(0.3, 0.3, 0.1, 0.02),
        grey=0.0,
        solarise=0.0,
        prototypes=512,
        teacher_temperature=(0.02, 0.02),
        centring="sinkhorn",
        ema=0.99,
        optimizer="muon",
        lr_muon=4e-3,
        snapshots=(0, 12_800, 25_600, 51_200, 102_400),
        monitor_every=12_800,
    )
    for name, changes in VARIANTS.items()
}
# What two renders of an emoji are for: a third of the training of dino_softmax, with views of two renders and
# with views of one, which share its background.
_VIEWS = {
    f"dino_{views}": replace(
        _DINO["dino_softmax"], views=views, images=51_200, snapshots=(), monitor_every=6_400
    )
    for views in ("renders", "crops")
}
# The paper's scale: ViT-S/16 on a folder such as ImageNet's, with either attention
_DINO_VITS16 = {
    f"dino_vits16_{name}": replace(DINO_VITS16, architecture=replace(DINO_VITS16.architecture, **changes))
    for name, changes in VARIANTS.items()
}

RECIPES: dict[str, SupervisedRecipe] = {**zoo.RECIPES, **_DINO, **_VIEWS, **_DINO_VITS16}


def published_name(name: str, seed: int) -> str:
    """What the model of a training is called: by its recipe, and by its seed where that is not 0.

    >>> published_name("sup_softmax", 0), published_name("sup_softmax", 1)
    ('sup_softmax', 'sup_softmax-1')
    """
    return f"{name}-{seed}" if seed else name


def recipe_of(published: str) -> SupervisedRecipe:
    """The recipe of a published model. Raises KeyError for a name that no recipe has.

    >>> recipe_of("sup_softmax-1") == RECIPES["sup_softmax"]
    True
    """
    return RECIPES[published.partition("-")[0]]
