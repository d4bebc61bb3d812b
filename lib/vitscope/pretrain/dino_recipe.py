"""What a DINO training is made of: views, head, teacher and schedules, as one frozen record."""

from dataclasses import asdict, dataclass

from vitscope.pretrain.zoo import Architecture, SupervisedRecipe

VIEWS = ("renders", "crops")
OPTIMIZERS = ("adamw", "muon")
CENTRINGS = ("mean", "sinkhorn")
SOURCES = ("emoji", "folder")


@dataclass(frozen=True)
class DinoRecipe(SupervisedRecipe):
    """Self-distillation without labels (Caron et al. 2021, "Emerging properties …", section 3 and appendix).

    `images` counts samples, each with two global and `local_crops` local views. With `views="renders"` the
    two global views come from two renders of one emoji, whose pose, light and background differ; with "crops"
    both are cut from one render and share its background, a shortcut past the emoji.

    Shares (`warmup`, `freeze_last`, `teacher_warmup`, `alarm_after`) are fractions of the run. Scales of
    crops are shares of the picture's area, sizes are pixels; without `global_size` global crops have the
    architecture's size. `jitter` is the strength of brightness, contrast, saturation and hue (hue in turns);
    `blur` the probabilities for the first and second global view and the local views, `blur_sigma` in pixels;
    `solarise` the probability for the second global view. Rates are the peak rates at this batch. `centring`
    keeps the teacher from one answer for all: "mean" takes a running mean of its scores away, "sinkhorn"
    shares the prototypes evenly within each batch (`dino_head.sinkhorn`). Weight decay goes from
    `weight_decay` to `weight_decay_end`, the teacher's momentum from `ema` to 1, both by a half cosine.
    """

    source: str = "emoji"
    views: str = "renders"
    global_size: int | None = None
    local_crops: int = 4
    local_size: int = 32
    global_scale: tuple[float, float] = (0.5, 1.0)
    local_scale: tuple[float, float] = (0.15, 0.5)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    jitter_share: float = 0.8
    grey: float = 0.2
    blur: tuple[float, float, float] = (0.0, 0.0, 0.0)
    blur_sigma: tuple[float, float] = (0.1, 0.6)
    solarise: float = 0.2
    prototypes: int = 2048
    hidden: int = 512
    bottleneck: int = 128
    learn_norm: bool = False
    freeze_last: float = 0.02
    student_temperature: float = 0.1
    teacher_temperature: tuple[float, float] = (0.04, 0.04)
    teacher_warmup: float = 0.0
    centring: str = "mean"
    centre_momentum: float = 0.9
    ema: float = 0.996
    optimizer: str = "adamw"
    weight_decay: float = 0.04
    weight_decay_end: float = 0.4
    warmup: float = 0.1
    clip: float = 3.0
    drop_path: float = 0.0
    monitor_every: int = 25_600
    alarm_after: float = 0.2
    alarm_steps: int = 200
    alarm_feature_std: float = 0.02

    def __post_init__(self) -> None:
        patch = self.architecture.patch_size
        for what, value, known in (
            ("views", self.views, VIEWS),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("source", self.source, SOURCES),
            ("centring", self.centring, CENTRINGS),
        ):
            if value not in known:
                raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}")
        if self.architecture.num_classes:
            raise ValueError(
                "DINO publishes a backbone without head: the architecture's num_classes must be 0"
            )
        for what, size in (("global_size", self.global_pixels), ("local_size", self.local_size)):
            if size <= 0 or size % patch:
                raise ValueError(f"{what} must be a positive multiple of the patch size {patch}, got {size}")
        if self.local_crops < 0 or not 0 < self.batch <= self.images:
            raise ValueError(
                f"need local_crops ≥ 0 and 0 < batch ≤ images, got local_crops {self.local_crops}, "
                f"batch {self.batch} and images {self.images}"
            )
        for what, (low, high) in (("global_scale", self.global_scale), ("local_scale", self.local_scale)):
            if not 0 < low <= high <= 1:
                raise ValueError(f"{what} needs 0 < low ≤ high ≤ 1, got ({low}, {high})")
        if min(self.student_temperature, *self.teacher_temperature) <= 0:
            raise ValueError(
                f"temperatures must be positive, got student {self.student_temperature} "
                f"and teacher {self.teacher_temperature}"
            )
        if not (0 <= self.ema <= 1 and 0 <= self.centre_momentum < 1):
            raise ValueError(
                f"need 0 ≤ ema ≤ 1 and 0 ≤ centre_momentum < 1, got {self.ema} and {self.centre_momentum}"
            )

    @property
    def global_crops(self) -> int:
        """Views the teacher sees."""
        return 2

    @property
    def global_pixels(self) -> int:
        """Side of a global crop."""
        return self.architecture.img_size if self.global_size is None else self.global_size

    def describe(self) -> dict:
        fields = asdict(self)
        del fields["label_smoothing"]  # inherited, without meaning here
        data = "emoji, two renders" if self.views == "renders" else "emoji, one render"
        return {
            "objective": "DINO self-distillation",
            "dataset": data if self.source == "emoji" else "a folder of pictures",
            **fields,
        }


_EPOCH = 1_281_167  # training pictures of ImageNet-1k

DINO_VITS16 = DinoRecipe(
    Architecture(width=384, depth=12, heads=6, img_size=224, patch_size=16),
    source="folder",
    views="crops",
    images=200 * _EPOCH,
    batch=1024,
    local_crops=8,
    local_size=96,
    global_scale=(0.4, 1.0),
    local_scale=(0.05, 0.4),
    blur=(1.0, 0.1, 0.5),
    blur_sigma=(0.1, 2.0),
    prototypes=65_536,
    hidden=2048,
    bottleneck=256,
    learn_norm=True,
    freeze_last=1 / 200,
    lr_adamw=5e-4 * 1024 / 256,
    warmup=10 / 200,
    drop_path=0.1,
    monitor_every=_EPOCH,
)
"""The authors' ViT-S/16 over a folder such as ImageNet's: their code's defaults, 200 epochs."""
