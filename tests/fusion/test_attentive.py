import math

import pytest
import torch
from torch import nn

from vitscope.fusion import AttentiveLayerFusion, LastLayer, SelectionBudget
from vitscope.fusion.attentive import AttentivePool
from vitscope.fusion.training import Noise


class Plain(nn.Module):
    """The head as its description reads: projections of all tokens, one head after the other."""

    def __init__(self, tokens, width, classes):
        super().__init__()
        self.heads, self.d = tokens, 2 * (width // tokens)
        inner = self.heads * self.d
        self.query = nn.Parameter(torch.empty(width))
        self.norm_q, self.norm_k, self.norm_v = (nn.LayerNorm(width) for _ in range(3))
        self.q, self.k, self.v = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.out, self.batch_norm = nn.Linear(inner, width), nn.BatchNorm1d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        q, k, v = self.q(self.norm_q(self.query)), self.k(self.norm_k(x)), self.v(self.norm_v(x))
        heads = []
        for h in range(self.heads):
            part = slice(h * self.d, (h + 1) * self.d)
            a = (k[:, :, part] @ q[part] / math.sqrt(self.d)).softmax(1)
            heads.append((a[:, :, None] * v[:, :, part]).sum(1))
        return self.head(self.batch_norm(self.out(torch.cat(heads, 1))))


def lively(network, seed=0):
    generator = torch.Generator().manual_seed(seed)
    p = {
        k: v + 0.3 * torch.randn(v.shape, generator=generator) for k, v in network.initial(generator).items()
    }
    return p | network.buffers()


def plain_of(network, p):
    model = Plain(network.heads, network.width, network.classes).double()
    names = {"batch_norm.mean": "batch_norm.running_mean", "batch_norm.variance": "batch_norm.running_var"}
    state = {names.get(k, k): v.double() for k, v in p.items()}
    model.load_state_dict(state | {"batch_norm.num_batches_tracked": torch.tensor(0)})
    return model


def tokens_of(images=30, tokens=4, width=10, seed=1):
    x = torch.randn(images, tokens, width, generator=torch.Generator().manual_seed(seed))
    return nn.functional.normalize(x, dim=2)


def test_scores_and_gradients_are_those_of_the_plain_head_in_training_and_after():
    network, x = AttentivePool(4, 10, 3), tokens_of()
    p = lively(network)
    model = plain_of(network, p)
    stacked = {k: v[None].clone().requires_grad_(k not in network.buffers()) for k, v in p.items()}
    quiet = Noise([{"dropout": 0.0}], 0, torch.device("cpu"))
    quiet.jitter = lambda tokens, share, deviation: tokens
    scores, _ = network.forward(stacked, x, noise=quiet)
    expected = model.train()(x.double())
    torch.testing.assert_close(scores[0].double(), expected, atol=1e-4, rtol=1e-4)
    scores.square().sum().backward()
    expected.square().sum().backward()
    for name, parameter in model.named_parameters():
        size = parameter.grad.abs().max()
        torch.testing.assert_close(
            stacked[name].grad[0].double(), parameter.grad, atol=1e-4 * max(1, size.item()), rtol=1e-3
        )
    # the batch above moved the running statistics of both
    after, _ = network.forward(stacked, x)
    torch.testing.assert_close(after[0].double(), model.eval()(x.double()), atol=1e-4, rtol=1e-4)


def test_stacked_configurations_are_each_their_own():
    network, x = AttentivePool(4, 10, 3), tokens_of()
    both = [lively(network, seed) for seed in (0, 1)]
    stacked = {k: torch.stack([p[k] for p in both]) for k in both[0]}
    scores, _ = network.forward(stacked, x)
    for g, p in enumerate(both):
        torch.testing.assert_close(
            scores[g].double(), plain_of(network, p).eval()(x.double()), atol=1e-4, rtol=1e-4
        )


def test_the_published_size_gives_the_published_count():
    parameters = AttentivePool(24, 768, 10).initial(torch.Generator())
    count = sum(v.numel() for k, v in parameters.items() if not k.startswith("head."))
    assert AttentivePool(24, 768, 10).head_width == 64
    assert count == 4_726_272
    assert parameters["head.weight"].numel() + parameters["head.bias"].numel() == 769 * 10


def test_more_tokens_than_dimensions_leave_a_head_one():
    assert AttentivePool(20, 8, 2).head_width == 1


def test_attention_sums_to_one_and_follows_the_tokens():
    network, x = AttentivePool(4, 10, 3), tokens_of()
    p = {k: v[None] for k, v in lively(network).items()}
    weights = network.attention(p, x)
    torch.testing.assert_close(weights.sum(3), torch.ones(1, 30, 4))
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(network.attention(p, x[:, order]), weights[..., order])


def test_the_order_of_tokens_does_not_matter_and_nor_does_their_length(two_bits, short):
    features, labels = two_bits()
    head = AttentiveLayerFusion(budget=short).fit(features, None, labels)
    scores = head.predict_logits(features)
    torch.testing.assert_close(head.predict_logits(features[[2, 0, 1]]), scores, atol=1e-4, rtol=1e-4)
    longer = features * (1 + torch.rand(3, 320, 1))
    torch.testing.assert_close(head.predict_logits(longer), scores, atol=1e-4, rtol=1e-4)


def test_only_training_is_noisy():
    network, x = AttentivePool(4, 10, 3), tokens_of()
    p = {k: v[None] for k, v in lively(network).items()}
    assert network.forward(p, x)[0].equal(network.forward(p, x)[0])
    noise = Noise([{"dropout": 0.3}], 0, torch.device("cpu"))
    first, second = (network.forward(p, x, noise=noise)[0] for _ in range(2))
    assert not first.equal(second)


def test_it_finds_in_early_states_what_the_last_lacks(two_bits):
    features, labels = two_bits()
    test, truth = two_bits(seed=1)
    head = AttentiveLayerFusion(budget=SelectionBudget(configurations=2, epochs=1, batch=64, steps=150)).fit(
        features, None, labels
    )
    assert head.accuracy(test, None, truth)["accuracy"] > 0.9
    assert LastLayer().fit(features, None, labels).accuracy(test, None, truth)["accuracy"] < 0.65


def test_rare_classes_weigh_as_much_as_frequent_ones(enough):
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 360 + [1] * 40)
    features = torch.randn(2, 400, 6, generator=generator)
    features[:, :, 0] += 2.0 * labels
    head = AttentiveLayerFusion(budget=enough).fit(features, None, labels)
    assert head.report["criterion"] == "balanced accuracy"
    recalls = [(head.predict_logits(features).argmax(1)[labels == c] == c).float().mean() for c in (0, 1)]
    assert abs(recalls[0] - recalls[1]) < 0.2


def test_the_grid_is_the_authors_with_likely_settings_first():
    grid = AttentiveLayerFusion().configurations()
    keys = {(c["lr"], c["weight_decay"], c["dropout"]) for c in grid}
    assert len(grid) == len(keys) == 63
    assert all(c["weight_decay"] == 0.01 for c in grid[:4])


@pytest.mark.parametrize(
    ("images", "batches", "epochs"), [(1000, 5, 200), (40_000, 20, 50), (200_000, 98, 40)]
)
def test_the_schedule_of_the_paper(images, batches, epochs):
    schedule = AttentiveLayerFusion(schedule="paper")._schedule(images)
    assert (schedule.batches, schedule.epochs) == (batches, epochs)
    assert (schedule.clip, schedule.last_lr) == (5.0, 1e-6)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="site must be one of block, norm2, got 'mlp'"):
        AttentiveLayerFusion(site="mlp")
    with pytest.raises(ValueError, match="schedule must be 'budget' or 'paper', got 'long'"):
        AttentiveLayerFusion(schedule="long")
