"""The fusion heads against what one would write without them, and the seconds of all ten on one dataset.

    python benchmarks/heads.py                        10,000 images, 12 states of width 128, 10 classes
    python benchmarks/heads.py --images 1000 --steps 60

Two peers take turns with ours in one process, with the same number of threads, on the same features, splits
and updates; ratios are medians over the rounds:

- VFusion: its configurations one after the other as a `torch.nn.Sequential` with AdamW in the plain way (a
  loop over batches), then the refit. Ours trains them side by side.
- SuperLearner: scikit-learn's `StackingClassifier` of one logistic regression per state, five folds, at one
  strength; ours chooses among four strengths per state as well.

Features are those of `probes.py`: Gaussian around class means, ill-conditioned, clearer with depth.
"""

import argparse
import statistics

import numpy as np
import torch
from probes import planted, timed
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from vitscope import rivals
from vitscope.fusion import SelectionBudget, SuperLearner, VFusion, out_of_fold
from vitscope.splits import stratified


def plain_vfusion(head: VFusion, x: Tensor, labels: Tensor) -> nn.Module:
    """VFusion as a module, every configuration by itself, chosen on the same validation images, refitted."""
    v = torch.cat([nn.functional.layer_norm(state, state.shape[-1:]) for state in x], 1)
    classes, (train, held) = int(labels.max()) + 1, stratified(labels, 0.2, 0)
    tried = head.configurations()[: head.budget.configurations]

    def fit(part: Tensor, c: dict[str, float]) -> nn.Module:
        mean, scale = v[part].mean(0), v[part].std(0)
        torch.manual_seed(0)
        encoder = nn.Sequential(
            nn.Linear(v.shape[1], head.hidden), nn.GELU(), nn.Dropout(c["dropout"]),
            nn.Linear(head.hidden, head.latent), nn.LayerNorm(head.latent),
        )  # fmt: skip
        model = nn.Sequential(encoder, nn.Linear(head.latent, classes))
        optimizer = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=c["weight_decay"])
        schedule = head.budget.schedule(len(part))
        steps = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs * schedule.batches)
        inputs, truth = (v[part] - mean) / scale, labels[part]
        for _ in range(schedule.epochs):
            for batch in torch.randperm(len(part)).tensor_split(schedule.batches):
                z = encoder(inputs[batch])
                loss = nn.functional.cross_entropy(model[1](z), truth[batch])
                if c["penalty"]:
                    squared = torch.corrcoef(z.T).square()
                    loss = loss + c["penalty"] * (squared.sum() - squared.trace()) / (
                        head.latent * (head.latent - 1)
                    )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps.step()
        return nn.Sequential(_Standardised(mean, scale), model).eval()

    with torch.no_grad():
        right = []
        for c in tried:
            with torch.enable_grad():
                model = fit(train, c)
            right.append((model(v[held]).argmax(1) == labels[held]).float().mean().item())
    return fit(torch.arange(len(labels)), tried[int(np.argmax(right))])


class _Standardised(nn.Module):
    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.mean, self.scale = mean, scale

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale


def stacking(x: Tensor, labels: Tensor, l2: float) -> StackingClassifier:
    """One logistic regression per state, stacked by another one on their out-of-fold probabilities."""
    states, images, width = x.shape
    columns = [FunctionTransformer(lambda a, s=s: a[:, s * width : (s + 1) * width]) for s in range(states)]
    strength = 1 / (l2 * images)
    members = [
        (str(s), make_pipeline(part, StandardScaler(), LogisticRegression(C=strength, max_iter=20_000)))
        for s, part in enumerate(columns)
    ]
    model = StackingClassifier(members, LogisticRegression(max_iter=20_000), cv=5)
    return model.fit(x.transpose(0, 1).flatten(1).numpy(), labels.numpy())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {"states": 12, "images": 10_000, "width": 128, "classes": 10, "rounds": 3, "threads": 2}
    sizes |= {"configurations": 4, "steps": 300, "hidden": 256, "latent": 64, "seed": 0}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    x, labels = planted(args.states, args.images + 2000, args.width, args.classes, args.seed)
    test, truth = x[:, args.images :].contiguous(), labels[args.images :]
    x, labels = x[:, : args.images].contiguous(), labels[: args.images]
    budget = {k: getattr(args, k) for k in ("configurations", "steps", "hidden", "latent")}

    with threadpool_limits(args.threads):
        print(f"{args.images} images, {args.states} states of width {args.width}, {args.threads} threads")
        seconds: list[float] = []
        members = timed(seconds, lambda: out_of_fold(x, labels))
        print(f"{'members (out of fold)':<24}{seconds[0]:>8.1f} s")
        logits = members.probes.logits(test)
        for name, head in rivals.heads(**budget).items():
            timed(seconds, lambda h=head: h.fit(x, members.logits if h.uses_logits else None, labels))
            found = head.accuracy(test, logits if head.uses_logits else None, truth)["accuracy"]
            print(f"{name:<24}{seconds[-1]:>8.1f} s   accuracy {100 * found:.1f} %")
        print(f"{'all':<24}{sum(seconds):>8.1f} s")

        ours: list[float] = []
        theirs: list[float] = []
        vfusion = VFusion(
            hidden=args.hidden,
            latent=args.latent,
            budget=SelectionBudget(args.configurations, steps=args.steps),
        )
        stacked = torch.cat([nn.functional.layer_norm(state, state.shape[-1:]) for state in test], 1)
        for _ in range(args.rounds):
            timed(ours, lambda: vfusion.fit(x, None, labels))
            plain = timed(theirs, lambda: plain_vfusion(vfusion, x, labels))
        with torch.no_grad():
            other = (plain(stacked).argmax(1) == truth).float().mean().item()
        own = vfusion.accuracy(test, None, truth)["accuracy"]
        report("VFusion, plain loop", ours, theirs, own, other)

        ours, theirs = [], []
        flat = test.transpose(0, 1).flatten(1).numpy()
        for _ in range(args.rounds):
            learner = timed(ours, lambda: SuperLearner().fit(x, None, labels))
            usual = timed(theirs, lambda: stacking(x, labels, 1e-3))
        own = learner.accuracy(test, None, truth)["accuracy"]
        report("SuperLearner, StackingClassifier", ours, theirs, own, usual.score(flat, truth.numpy()))


def report(what: str, ours: list[float], theirs: list[float], own: float, other: float) -> None:
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    print(
        f"{what}: ours {statistics.median(ours):.1f} s, theirs {statistics.median(theirs):.1f} s, ratio "
        f"{statistics.median(ratios):.1f} ({min(ratios):.1f}–{max(ratios):.1f}); "
        f"accuracy {100 * own:.1f} and {100 * other:.1f} %"
    )


if __name__ == "__main__":
    main()
