"""Layers: convolutions, recurrences, norms, pooling, embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.held_back.case import Case, function, given, program, sized


def of(layer, *shape, **more):
    """A layer called by itself, with its evaluation between."""
    return Case(layer, lambda c: (torch.randn(sized(c, shape[0], shape[0] + 1), *shape[1:]),), **more)


@program
def convolution_block():
    layer = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2))
    return of(layer, 2, 2, 6, 6, then={3: layer.eval, 6: layer.train})


@program
def residual_network():
    class Residual(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
            self.n1, self.n2 = nn.GroupNorm(2, c), nn.BatchNorm2d(c, momentum=None)

        def forward(self, x):
            x += F.relu(self.n1(self.a(x)), inplace=True)
            return x - self.n2(self.b(x))

    stem, block = nn.Conv2d(2, 4, 1), Residual(4)
    return Case(lambda x: block(stem(x)).mean((2, 3)), lambda c: (torch.randn(3, 2, 5, 5),), state=[stem, block])


@program
def depthwise_separable():
    layer = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4, stride=2), nn.Conv2d(4, 6, 1), nn.Hardswish(inplace=True))
    return of(layer, 2, 4, 7, 7)


@program
def transposed_and_dilated():
    up, wide = (
        nn.ConvTranspose1d(2, 3, 4, stride=2, padding=1),
        nn.Conv1d(3, 2, 3, dilation=2, padding_mode="circular", padding=2),
    )
    return Case(lambda x: wide(up(x)), lambda c: (torch.randn(2, 2, sized(c)),), state=[up, wide])


@program
def three_dimensional():
    layer = nn.Sequential(
        nn.Conv3d(1, 2, 2), nn.InstanceNorm3d(2, affine=True, track_running_stats=True), nn.AdaptiveAvgPool3d(2)
    )
    return of(layer, 2, 1, 4, 4, 4, then={4: layer.eval})


@program
def channels_last():
    layer = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).to(memory_format=torch.channels_last)
    # The caller's gradient has another layout than the result.
    return Case(layer, lambda c: (torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last),), rounds=True)


@program
def unet_with_skips():
    down, low, up, out = (
        nn.Conv2d(1, 3, 3, 2, 1),
        nn.Conv2d(3, 3, 3, padding=1),
        nn.Conv2d(4, 3, 3, padding=1),
        nn.Conv2d(3, 1, 1),
    )

    def forward(x):
        h = F.leaky_relu(down(x), 0.2)
        h = F.interpolate(low(h), scale_factor=2, mode="nearest")
        return out(up(torch.cat([h, x], 1)).relu())

    return Case(forward, lambda c: (torch.randn(2, 1, sized(c, 8, 6), 8),))


@function(lambda c: (torch.randn(1, 2, 5, 5, requires_grad=True),))
def bilinear_and_bicubic(x):
    return F.interpolate(x, size=(7, 3), mode="bilinear", align_corners=False), F.interpolate(
        x, scale_factor=1.5, mode="bicubic"
    )


@function(lambda c: (torch.randn(1, 2, 5, 5), torch.randn(1, 2, 3)))
def spatial_transformer(x, theta):
    grid = F.affine_grid(theta, x.shape, align_corners=False)
    return F.grid_sample(x, grid, align_corners=False, padding_mode="reflection")


@function(lambda c: (torch.randn(2, 3, 6, 6),))
def pixel_shuffles(x):
    return (
        F.pixel_unshuffle(x, 2),
        F.unfold(x, 3, stride=2).sum(1),
        F.fold(F.unfold(x, 2, stride=2), (6, 6), 2, stride=2),
    )


@function(lambda c: (torch.randn(2, 3, 6, 6),))
def poolings(x):
    a, index = F.max_pool2d(x, 2, return_indices=True)
    return (
        F.max_unpool2d(a, index, 2),
        F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        F.lp_pool2d(x.abs(), 2, 2),
        index,
    )


@function(lambda c: (torch.randn(2, 3, 8),), rounds=True)
def adaptive_poolings(x):
    return (
        F.adaptive_max_pool1d(x, 3),
        F.adaptive_avg_pool1d(x, 5),
        F.fractional_max_pool2d(
            x[None], 2, output_size=(2, 3), _random_samples=torch.full((1, 2, 2), 0.4, device=x.device)
        ),
    )


@function(lambda c: (torch.randn(1, 2, 4, 4),))
def paddings(x):
    return [F.pad(x, (1, 2, 0, 1), mode=m) for m in ("reflect", "replicate", "circular")] + [
        F.pad(x, (1, -1), value=3.5)
    ]


@program
def gru_layer():
    layer = nn.GRU(4, 5, 2, batch_first=True, dropout=0.3)
    # On a GPU the library's dropout goes on from where its own generator stands, which no seed sets.
    return Case(layer, lambda c: (torch.randn(2, sized(c, 6, 4), 4),), {4: layer.eval}, devices=("cpu",))


@program
def lstm_with_state_carried():
    layer = nn.LSTM(4, 5)
    memory = {"state": (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))}

    @torch.no_grad()
    def step(x):
        out, memory["state"] = layer(x, memory["state"])
        return out

    return Case(step, lambda c: (torch.randn(3, 2, 4),), state=[memory])


@program
def lstm_truncated_backpropagation():
    cell, head = nn.LSTM(4, 5), nn.Linear(5, 2)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=0.05)

    def step(x, y, state):
        out, state = cell(x, state)
        loss = F.mse_loss(head(out), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), tuple(s.detach() for s in state)

    def args(c):
        return torch.randn(3, 2, 4), torch.randn(3, 2, 2), (torch.randn(1, 2, 5), torch.randn(1, 2, 5))

    return Case(step, args)


@program
def bidirectional_lstm_with_projection():
    layer = nn.LSTM(4, 6, proj_size=3, bidirectional=True, num_layers=2, bias=False)
    return of(layer, 5, 2, 4)


@program
def rnn_with_relu():
    layer = nn.RNN(4, 6, nonlinearity="relu", num_layers=3, bias=False, batch_first=True)
    return of(layer, 2, 5, 4)


@program
def packed_sequence():
    layer = nn.GRU(4, 5, batch_first=True)

    def run(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, h = layer(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0], h

    return Case(run, lambda c: (torch.randn(3, 5, 4), torch.tensor([5, 2, 3], device="cpu")))


@program
def cells_in_a_loop():
    lstm, gru = nn.LSTMCell(4, 5), nn.GRUCell(5, 5)

    def run(xs):
        h, c = torch.zeros(2, xs.shape[1], 5, device=xs.device)
        g = torch.zeros_like(h)
        outs = []
        for x in xs:
            h, c = lstm(x, (h, c))
            g = gru(h, g)
            outs.append(g)
        return torch.stack(outs), (h, c)

    return Case(run, lambda c: (torch.randn(sized(c, 4, 3), 2, 4),))


@program
def layer_norm_without_affine():
    layer = nn.Sequential(
        nn.LayerNorm([3, 4], elementwise_affine=False), nn.Flatten(), nn.RMSNorm(12), nn.Linear(12, 2)
    )
    return of(layer, 3, 3, 4)


@program
def batch_norm_eval_then_train():
    layer = nn.BatchNorm1d(4, affine=False).eval()
    return Case(layer, lambda c: (torch.randn(6, 4),), {3: layer.train})


@program
def batch_norm_momentum_changes():
    layer = nn.BatchNorm2d(3)

    def later():
        layer.momentum = 0.5

    return Case(layer, lambda c: (torch.randn(4, 3, 2, 2),), {4: later, 6: layer.reset_running_stats}, calls=9)


@program
def conditional_norm():
    gamma, beta = nn.Embedding(3, 4), nn.Linear(3, 4)

    def forward(x, k):
        y = F.instance_norm(x)
        return y * gamma(k)[:, :, None] - beta(F.one_hot(k, 3).float())[:, :, None]

    return Case(forward, lambda c: (torch.randn(2, 4, 6), torch.randint(3, (2,))))


@program
def spectral_norm_old_style():
    layer = nn.utils.spectral_norm(nn.Linear(4, 3))
    return Case(lambda x: layer(x) * 2 - 1, lambda c: (torch.randn(5, 4),), {4: layer.eval}, state=[layer])


@program
def embedding_bag_offsets():
    layer = nn.EmbeddingBag(9, 4, mode="mean")
    return Case(layer, lambda c: (torch.randint(9, (7,)), torch.tensor([0, 2, 5])))


@program
def embedding_with_max_norm():
    layer = nn.Embedding(9, 4, max_norm=0.5)
    return Case(lambda i: layer(i) - 1, lambda c: (torch.randint(9, (2, 3)),), state=[layer])


@program
def activations_of_all_kinds():
    prelu = nn.PReLU(4)

    def run(x):
        a = F.gelu(x, approximate="tanh") - F.mish(x) + F.selu(x) * F.celu(x, 0.7)
        b = prelu(x) + F.hardtanh(x, -0.3, 0.6) - F.softshrink(x, 0.2) + F.tanhshrink(x)
        return a, b, F.glu(x, -1), F.threshold(x, 0.1, -2.0), F.logsigmoid(x), F.softmin(x, 0), F.relu6(x * 9)

    return Case(run, lambda c: (torch.randn(sized(c), 4),), state=[prelu])


@program
def rrelu_and_feature_dropout():
    drop, alpha = nn.Dropout2d(0.4), nn.AlphaDropout(0.2)

    def run(x):
        return alpha(drop(F.rrelu(x, 0.1, 0.4, training=True)))

    def off():
        drop.eval(), alpha.eval()

    return Case(run, lambda c: (torch.randn(3, 4, 2, 2),), {4: off}, state=[drop, alpha])


@program
def gumbel_softmax_layer():
    layer = nn.Linear(4, 5)

    def run(x, tau, hard):
        return F.gumbel_softmax(layer(x), tau=tau, hard=hard)

    return Case(run, lambda c: (torch.randn(3, 4), 0.7, c > 3))


@program
def bilinear_and_cosine():
    layer, dist = nn.Bilinear(3, 4, 2), nn.PairwiseDistance(p=1.5)

    def run(a, b):
        return layer(a, b), dist(a, b[:, :3]), F.cosine_similarity(a, b[:, 1:]), torch.cdist(a, b[:, :3], p=1.0)

    return Case(run, lambda c: (torch.randn(5, 3), torch.randn(5, 4)), rounds=True)


@program
def squeeze_and_excite():
    squeeze, excite = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)

    def run(x):
        s = excite(F.relu(squeeze(F.adaptive_avg_pool2d(x, 1))))
        return x * s.sigmoid() - x.mean()

    return Case(run, lambda c: (torch.randn(2, 4, sized(c, 5, 4), 5),))


@program
def stochastic_depth():
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def run(x, p=0.3):
        for layer in layers:
            keep = (torch.rand(x.shape[0], 1, device=x.device) > p).to(x.dtype)
            x = x + keep / (1 - p) * layer(x).tanh()
        return x

    return Case(run, lambda c: (torch.randn(6, 4),))


@program
def lazy_layer():
    layer = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyBatchNorm1d(), nn.Linear(5, 2))
    return Case(layer, lambda c: (torch.randn(4, 3),))


@program
def layers_swapped_between():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def swap():
        model[1] = nn.Tanh()

    return Case(model, lambda c: (torch.randn(3, 4),), {3: swap, 5: lambda: model.append(nn.Softmax(-1))}, calls=9)


@program
def weights_initialized_again():
    model = nn.Linear(4, 3)

    def again():
        nn.init.xavier_uniform_(model.weight)
        nn.init.constant_(model.bias, 0.3)

    return Case(lambda x: model(x).exp(), lambda c: (torch.randn(3, 4),), {3: again}, state=[model])


@function(lambda c: (torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)))
def weight_standardization(x, w):
    mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), keepdim=True, unbiased=False)
    return F.conv2d(x, (w - mean) * torch.rsqrt(var + 1e-5), padding="same")


@function(lambda c: (torch.randn(3, 2, 4, 4), torch.randn(3, 5, 2, 3, 3)))
def convolution_for_each_sample(x, w):
    b = x.shape[0]
    return F.conv2d(x.reshape(1, -1, 4, 4), w.flatten(0, 1), groups=b, padding=1).view(b, 5, 4, 4)


@function(lambda c: given(torch.randn(2, 3), weight=torch.randn(4, 3), bias=None if c < 4 else torch.randn(4)))
def linear_with_a_bias_that_comes(x, weight, bias=None):
    return F.linear(x, weight, bias) ** 3


@program
def mlp_mixer():
    tokens, channels, norm = nn.Linear(5, 5), nn.Linear(4, 4), nn.LayerNorm(4)

    def run(x):
        x = x + tokens(norm(x).mT).mT
        return x - channels(norm(x))

    return Case(run, lambda c: (torch.randn(2, 5, 4),))


@program
def graph_convolution():
    w = nn.Linear(4, 3, bias=False)

    def run(x, edges):
        source, target = edges
        degree = torch.zeros(len(x), device=x.device).index_add_(0, target, torch.ones_like(target, dtype=x.dtype))
        out = torch.zeros(len(x), 3, device=x.device).index_add(0, target, w(x)[source])
        return out / degree.clamp(min=1)[:, None]

    return Case(run, lambda c: (torch.randn(6, 4), torch.randint(6, (2, sized(c, 9, 12)))), rounds=True)


@program
def graph_attention_with_scatter():
    def run(x, edges, score):
        source, target = edges
        e = score[source] - 0.5 * score[target]
        top = torch.full((len(x),), -1e9, device=x.device).scatter_reduce(0, target, e, "amax")
        e = (e - top[target]).exp()
        total = torch.zeros(len(x), device=x.device).scatter_add(0, target, e)
        return torch.zeros_like(x).index_add(0, target, x[source] * (e / total[target])[:, None])

    return Case(run, lambda c: (torch.randn(6, 4), torch.randint(6, (2, 9)), torch.randn(6)), rounds=True)


@program
def hyper_network():
    hyper = nn.Linear(3, 4 * 2 + 2)

    def run(x, z):
        made = hyper(z)
        w, b = made[:8].view(2, 4), made[8:]
        return F.linear(x, w, b).tanh()

    return Case(run, lambda c: (torch.randn(5, 4), torch.randn(3)))


@program
def neural_ode_by_euler():
    f = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))

    def run(x, steps=4, dt=0.1):
        path = [x]
        for _ in range(steps):
            k1 = f(x)
            k2 = f(x + dt * k1)
            x = x + dt / 2 * (k1 + k2)
            path.append(x)
        return torch.stack(path)

    return Case(run, lambda c: given(torch.randn(4, 3), steps=4 if c < 4 else 2))


@program
def deep_equilibrium_fixed_count():
    f = nn.Linear(4, 4)

    def run(x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(5):
                z = torch.tanh(f(z) * 0.3 + x)
        return torch.tanh(f(z) * 0.3 + x)

    return Case(run, lambda c: (torch.randn(3, 4),))
