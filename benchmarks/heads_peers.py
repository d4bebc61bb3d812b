"""Fusion heads as one writes them without the library: modules, loops over batches, a setting at a time."""

from collections.abc import Callable

import numpy as np
import torch
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm, normalize, scaled_dot_product_attention

from vitscope.fusion import AttentiveLayerFusion, VFusion
from vitscope.fusion.training import Schedule
from vitscope.splits import stratified

Setting = dict[str, float]


def chosen(
    head: VFusion | AttentiveLayerFusion,
    x: Tensor,
    labels: Tensor,
    fit: Callable[[Tensor, Setting], nn.Module],
) -> nn.Module:
    """Fit every setting, keep the one that is right most often on validation, fit it again on all images."""
    train, held = stratified(labels, 0.2, 0)
    tried, right = head.configurations()[: head.budget.configurations], []
    for setting in tried:
        model = fit(train, setting)
        with torch.no_grad():
            right.append((model(x[held]).argmax(1) == labels[held]).float().mean().item())
    return fit(torch.arange(len(labels)), tried[int(np.argmax(right))])


def stacked(states: Tensor) -> Tensor:
    """VFusion's input [N, S·D]: every state after a plain LayerNorm."""
    return torch.cat([layer_norm(state, state.shape[-1:]) for state in states], 1)


def vfusion(head: VFusion, states: Tensor, labels: Tensor) -> nn.Module:
    """VFusion as a `torch.nn.Sequential`."""
    v, classes = stacked(states), int(labels.max()) + 1

    def fit(part: Tensor, c: Setting) -> nn.Module:
        mean, scale = v[part].mean(0), v[part].std(0)
        torch.manual_seed(0)
        encoder = nn.Sequential(
            nn.Linear(v.shape[1], head.hidden), nn.GELU(), nn.Dropout(c["dropout"]),
            nn.Linear(head.hidden, head.latent), nn.LayerNorm(head.latent),
        )  # fmt: skip
        model = nn.Sequential(encoder, nn.Linear(head.latent, classes))
        inputs, truth = (v[part] - mean) / scale, labels[part]

        def loss(batch: Tensor) -> Tensor:
            z = encoder(inputs[batch])
            error = cross_entropy(model[1](z), truth[batch])
            if c["penalty"]:
                squared = torch.corrcoef(z.T).square()
                pairs = head.latent * (head.latent - 1)
                error = error + c["penalty"] * (squared.sum() - squared.trace()) / pairs
            return error

        optimize(model, loss, head.budget.schedule(len(part)), len(part), c)
        return nn.Sequential(Standardised(mean, scale), model).eval()

    return chosen(head, v, labels, fit)


def attentive(head: AttentiveLayerFusion, states: Tensor, labels: Tensor) -> nn.Module:
    """AttentiveLayerFusion as a module around `scaled_dot_product_attention`."""
    x, classes = normalize(states, dim=2).transpose(0, 1).contiguous(), int(labels.max()) + 1

    def fit(part: Tensor, c: Setting) -> nn.Module:
        torch.manual_seed(0)
        model = Attentive(x.shape[1], x.shape[2], classes, c["dropout"])
        inputs, truth = x[part], labels[part]
        weight = len(truth) / (classes * truth.bincount().float())

        def loss(batch: Tensor) -> Tensor:
            tokens = inputs[batch]
            noisy = (torch.rand(len(tokens), 1, 1) < 0.5) * 0.05 * torch.randn_like(tokens)
            return cross_entropy(model(tokens + noisy), truth[batch], weight=weight)

        optimize(model, loss, head.budget.schedule(len(part)), len(part), c, clip=5.0, last=1e-6)
        return model.eval()

    return chosen(head, x, labels, fit)


class Attentive(nn.Module):
    """One learned query attends to the tokens of an image, with as many heads as tokens."""

    def __init__(self, tokens: int, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        inner = tokens * max(1, 2 * (width // tokens))
        self.heads, self.dropout = tokens, dropout
        self.query = nn.Parameter(0.02 * torch.randn(width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in "qkv")
        self.maps = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in "qkv")
        self.out = nn.Sequential(nn.Linear(inner, width), nn.BatchNorm1d(width), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        sources = self.query.expand(len(x), 1, -1), x, x
        q, k, v = (
            project(norm(source)).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for project, norm, source in zip(self.maps, self.norms, sources, strict=True)
        )
        dropout = self.dropout if self.training else 0.0
        pooled = scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        return self.out(pooled.transpose(1, 2).flatten(1))


def optimize(
    model: nn.Module,
    loss: Callable[[Tensor], Tensor],
    schedule: Schedule,
    images: int,
    c: Setting,
    *,
    clip: float = 0.0,
    last: float = 0.0,
) -> None:
    """AdamW over shuffled batches, with a cosine."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=c["weight_decay"])
    steps = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs * schedule.batches, last)
    for _ in range(schedule.epochs):
        for batch in torch.randperm(images).tensor_split(schedule.batches):
            optimizer.zero_grad()
            loss(batch).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            steps.step()


class Standardised(nn.Module):
    """Features less their mean, over their deviation."""

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
