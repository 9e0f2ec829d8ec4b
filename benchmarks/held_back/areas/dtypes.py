"""Autocast, scalers, half precision, complex, quantized, sparse, nested; random draws."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.held_back.case import Case, function, program, sized


@program
def autocast_training():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

    def step(x, y):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(sized(c), 4), torch.randint(3, (sized(c),))), is_half=True)


@program
def autocast_switched_by_a_flag():
    model = nn.Linear(4, 3)
    config = {"amp": True}

    def run(x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=config["amp"]):
            h = model(x)
            with torch.autocast(x.device.type, enabled=False):
                s = h.float().softmax(-1)
            return h, s, h @ s.T

    return Case(run, lambda c: (torch.randn(4, 4),), {4: lambda: config.update(amp=False)}, is_half=True)


@program
def gradient_scaler():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    device = "cuda" if next(model.parameters()).is_cuda else "cpu"
    scaler = torch.amp.GradScaler(device, init_scale=64.0, growth_interval=2)

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), norm

    def args(c):
        x = torch.randn(6, 4)
        if c == 4:
            x[0, 0] = float("inf")
        return x, torch.randn(6, 2)

    return Case(step, args, state=[scaler], is_half=True)


@program
def model_in_bfloat16():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        loss = F.mse_loss(model(x.bfloat16()).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(6, 4), torch.randn(6, 3)), is_half=True)


@program
def master_weights():
    model = nn.Linear(4, 3).half()
    master = [p.detach().float().clone() for p in model.parameters()]

    def step(x, y):
        loss = ((model(x.half()).float() - y) ** 2).mean()
        (loss * 8).backward()
        with torch.no_grad():
            for p, m in zip(model.parameters(), master, strict=True):
                m.sub_(p.grad.float() / 8 * 0.1)
                p.copy_(m)
                p.grad = None
        return loss.detach()

    return Case(step, lambda c: (torch.randn(6, 4), torch.randn(6, 3)), is_half=True)


@program
def double_precision_model():
    model = nn.GRU(3, 4).double()
    return Case(lambda x: model(x)[0].pow(3), lambda c: (torch.randn(4, 2, 3, dtype=torch.float64),), state=[model])


@program
def dtype_changed_between():
    model = nn.Linear(4, 3)
    return Case(
        lambda x: model(x.to(model.weight.dtype)) - 1,
        lambda c: (torch.randn(2, 4),),
        {3: model.double, 5: model.bfloat16},
        state=[model],
        is_half=True,
    )


@function(lambda c: (torch.randn(4, 3, dtype=torch.complex64), torch.randn(3, 4, dtype=torch.complex64)))
def complex_arithmetic(a, b):
    return a @ b, a.abs(), a.angle() * 2, (a * b.T.conj()).real, a.exp(), torch.complex(a.real, b.T.imag), a.H


@function(lambda c: (torch.randn(4, dtype=torch.complex64, requires_grad=True),))
def complex_gradient(z):
    return (z * z.conj()).real.sum() - (z**2).imag.sum(), z * 2j


@program
def complex_parameter():
    w = nn.Parameter(torch.randn(3, dtype=torch.complex64))
    optimizer = torch.optim.SGD([w], lr=0.1)

    def step(x):
        loss = (torch.fft.ifft(torch.fft.fft(x) * w) - 1).abs().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(4, 3),), rounds=True)


@function(lambda c: (torch.randn(4, 6), torch.tensor(0.05)))
def fake_quantization(x, scale):
    y = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255)
    q = (x / scale).round().clamp(-128, 127).to(torch.int8)
    return y, q, q.float() * scale - x


@function(lambda c: (torch.randn(4, 6),), devices=("cpu",))
def quantized_tensors(x):
    q = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
    return q.dequantize() - 1, q.int_repr()


@function(lambda c: (torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),), devices=("cpu",))
def quantized_argument(q):
    return q.dequantize() * 2


@function(lambda c: (torch.randn(4, 3) * (torch.rand(4, 3) > 0.5), torch.randn(3, 2)))
def sparse_inside(x, y):
    s = x.to_sparse()
    return torch.sparse.mm(s, y) - 1


@function(lambda c: (torch.eye(3).to_sparse(), torch.randn(3, 2)))
def sparse_argument(s, y):
    return s @ y - 1


@program
def sparse_of_the_closure():
    adjacency = torch.tensor([[0.0, 1.0], [0.5, 0.0]]).to_sparse_csr()
    return Case(lambda x: (adjacency @ x) - x, lambda c: (torch.randn(2, 3),))


@function(lambda c: (torch.randn(2, 3), torch.randn(4, 3)))
def nested_inside(a, b):
    n = torch.nested.nested_tensor([a, b])
    return torch.nested.to_padded_tensor(n * 2, 0.0)


@function(lambda c: (torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(1, 3)], layout=torch.jagged),))
def nested_argument(n):
    return (n * 2 - 1).values()


@function(lambda c: (torch.randn(4, 4),))
def float8_casts(x):
    y = x.to(torch.float8_e4m3fn)
    return y.to(torch.float32) - x, y.view(torch.uint8)


@function(lambda c: (torch.randint(0, 2**31, (4,), dtype=torch.int32),))
def bits_reinterpreted(x):
    return x.view(torch.float32).nan_to_num(0), (x >> 4) & 0xFF, x.view(torch.int16)[::2], x.to(torch.int64) * 3


@function(lambda c: (torch.randn(4, 3),))
def promotions(x):
    i = torch.arange(3, device=x.device)
    return (
        x + i,
        i / 2,
        i * 1.5,
        i + True,
        x.half() + x,
        x.double() * i,
        i.to(torch.uint8) - 1,
        (x > 0) * 2.5,
        torch.result_type(i, 1.0),
    )


@function(lambda c: (torch.randn(3, 4),))
def draws_of_many_kinds(x):
    return (
        torch.rand_like(x),
        torch.randn(2, device=x.device),
        torch.randint(5, (3,), device=x.device),
        torch.bernoulli(x.sigmoid()),
        torch.normal(x, 0.5),
        torch.randperm(4, device=x.device),
    )


@function(lambda c: (torch.randn(3, 4),))
def draws_in_place(x):
    y = torch.empty_like(x)
    return (
        y.uniform_(-1, 2).clone(),
        y.normal_(1, 2).clone(),
        y.exponential_(0.5).clone(),
        y.bernoulli_(0.3).clone(),
        torch.empty(3, device=x.device).geometric_(0.4),
        torch.empty(3, device=x.device).log_normal_(),
        torch.empty(3, device=x.device).cauchy_(),
    )


@function(lambda c: (torch.rand(3, 4) + 0.5,), devices=("cpu",))
def draws_from_distributions(x):
    d = torch.distributions
    return (
        d.Gamma(x, x).sample(),
        d.Beta(x, 2.0).rsample(),
        d.Poisson(x * 3).sample(),
        d.Dirichlet(x).sample(),
        d.Laplace(x, 0.5).rsample(),
    )


@program
def own_generator():
    g = torch.Generator()
    g.manual_seed(3)

    def run(x):
        return x + torch.randn(x.shape, generator=g) - torch.rand(3, generator=g).mean()

    return Case(run, lambda c: (torch.randn(2, 3),), {4: lambda: g.manual_seed(5)}, state=[g], devices=("cpu",))


@function(lambda c: (torch.randn(3), torch.Generator().manual_seed(c)), devices=("cpu",))
def generator_as_argument(x, g):
    return x * torch.rand(3, generator=g)


@function(lambda c: (torch.randn(3),))
def seeded_inside(x):
    torch.manual_seed(11)
    return x + torch.randn_like(x)


@function(lambda c: (torch.randn(3),))
def fork_of_random_state(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        a = torch.randn_like(x)
    return x * a - torch.rand_like(x)


@function(lambda c: (torch.randn(3),))
def python_random_inside(x):
    return x * random.random() - 1


@function(lambda c: (torch.randn(3),))
def numpy_random_inside(x):
    return x * float(np.random.rand()) - 1


@function(lambda c: (torch.randn(4, 3), 0.0 if c < 3 else 0.4))
def dropout_with_a_rate_that_comes(x, p):
    return F.dropout(x, p) * 2 - 1


@program
def dropout_in_training_step():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2), nn.Dropout(0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def rate():
        model[1].p = 0.2

    return Case(step, lambda c: (torch.randn(sized(c), 4), torch.randn(sized(c), 2)), {3: rate})


@function(lambda c: (torch.randn(3, 8, 8),))
def augmentations(x):
    flip = torch.rand((), device=x.device) > 0.5
    x = torch.where(flip, x.flip(-1), x)
    shift = torch.randint(0, 3, (2,), device=x.device)
    rows = torch.arange(6, device=x.device) + shift[0]
    cols = torch.arange(6, device=x.device) + shift[1]
    x = x[:, rows[:, None], cols]
    gain = torch.empty(3, 1, 1, device=x.device).uniform_(0.8, 1.2)
    return (x * gain).clamp(-2, 2)


@function(lambda c: (torch.rand(5),), devices=("cpu",))  # on a GPU the failure ends the process
def probability_out_of_range_raises(p):
    return torch.bernoulli(p * 3)


@function(lambda c: (torch.tensor([0.2, 0.5, 0.3]) if c != 4 else torch.tensor([0.2, -0.5, 0.3]),), devices=("cpu",))
def weights_that_become_negative(w):
    return torch.multinomial(w, 2)


@function(lambda c: (torch.randn(3, 4).to(torch.float16), torch.randn(4, 2).to(torch.float16)))
def half_products(a, b):
    return a @ b, (a.float() @ b.float()).half(), a.sum(), a.softmax(-1), F.layer_norm(a, (4,))


@program
def default_dtype_changed():
    def run(x):
        return torch.ones(3, device=x.device) * 0.1 + x.sum() - torch.tensor(0.3, device=x.device)

    def double():
        torch.set_default_dtype(torch.float64)

    def single():
        torch.set_default_dtype(torch.float32)

    return Case(run, lambda c: (torch.ones(3, dtype=torch.float32),), {0: single, 3: double, 6: single})


@function(lambda c: (torch.randn(8, 8),))
def matmul_precision_asked(x):
    return (x @ x) * (2 if torch.get_float32_matmul_precision() == "highest" else 3)
