"""Modules: buffers, tied weights, parametrizations, state that is swapped, containers, initialization, inference."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, stateless

from benchmarks.held_back.case import Case, given, program, sized


def rows(n):
    return lambda c: (torch.randn(sized(c), n),)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("shift", torch.full((3,), 0.5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)
        self.gain = 2.0

    def forward(self, x, *, twice=False):
        if self.training:
            self.steps += 1
        y = self.inner(x) * self.gain - self.shift
        return self.inner(F.pad(y, (0, 1))) if twice else y


@program
def module_with_buffers():
    model = Small()
    return Case(model, rows(4), {3: model.eval, 5: lambda: model.shift.add_(1)}, calls=9)


@program
def module_with_keyword():
    model = Small().eval()
    return Case(model, lambda c: given(torch.randn(2, 4), twice=c > 3))


@program
def module_in_inference_mode():
    model = Small().eval()

    @torch.inference_mode()
    def run(x):
        return model(x).softmax(-1)

    return Case(run, rows(4), {4: lambda: setattr(model, "gain", 0.5)}, state=[model])


@program
def inference_tensors_as_arguments():
    model = Small().eval()

    def args(c):
        with torch.inference_mode():
            return (torch.randn(2, 4),)

    return Case(torch.no_grad()(lambda x: model(x) - 1), args)


@program
def buffer_reassigned_by_the_module():
    class Ema(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.mean = self.mean * 0.9 + x.mean(0).detach() * 0.1
            return x - self.mean

    model = Ema()
    return Case(model, rows(4), {5: lambda: model.mean.zero_()})


@program
def weights_tied():
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight
    optimizer = torch.optim.SGD([*{id(p): p for p in [*a.parameters(), *b.parameters()]}.values()], lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (b(a(x).tanh()) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, rows(4))


@program
def weights_untied_later():
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight

    def untie():
        b.weight = nn.Parameter(a.weight.detach().clone() * 2)

    def run(x):
        with torch.no_grad():
            a.weight.mul_(0.9)
        return b(a(x))

    return Case(run, rows(4), {4: untie}, state=[a, b])


@program
def weight_norm_parametrization():
    model = parametrizations.weight_norm(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(5, 4), torch.randn(5, 3)), state=[model])


@program
def spectral_parametrization():
    model = parametrizations.spectral_norm(nn.Linear(4, 3))
    return Case(lambda x: model(x) * 2, rows(4), {4: model.eval}, state=[model])


@program
def orthogonal_parametrization():
    model = parametrizations.orthogonal(nn.Linear(4, 4, bias=False))
    return Case(lambda x: model(x) - 1, rows(4), state=[model], rounds=True)


@program
def own_parametrization():
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).mT

    model = nn.Linear(4, 4)
    parametrize.register_parametrization(model, "weight", Symmetric())
    return Case(
        lambda x: model(x) * 0.5,
        rows(4),
        {5: lambda: parametrize.remove_parametrizations(model, "weight")},
        state=[model],
    )


@program
def parametrization_cached():
    model = parametrizations.weight_norm(nn.Linear(4, 4))

    def run(x):
        with parametrize.cached():
            return model(model(x)) - model.weight.sum()

    return Case(run, rows(4), state=[model])


@program
def pruned_layer():
    model = nn.Linear(4, 3)
    prune.l1_unstructured(model, "weight", 0.5)
    return Case(lambda x: model(x) - 1, rows(4), {4: lambda: prune.remove(model, "weight")}, state=[model])


@program
def functional_call_with_new_weights():
    model = nn.Linear(4, 3)

    def run(x, w):
        return torch.func.functional_call(model, {"weight": w}, (x,)) - 1

    return Case(run, lambda c: (torch.randn(2, 4), torch.randn(3, 4)), state=[model])


@program
def stateless_swap():
    model = Small().eval()

    def run(x, w):
        with stateless._reparametrize_module(model, {"inner.weight": w}):
            return model(x)

    return Case(run, lambda c: (torch.randn(2, 4), torch.randn(3, 4)), state=[model])


@program
def parameter_containers():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.list = nn.ParameterList([torch.randn(3) for _ in range(2)])
            self.table = nn.ParameterDict({"a": torch.randn(3)})
            self.heads = nn.ModuleDict({"x": nn.Linear(3, 2), "y": nn.Linear(3, 1)})

        def forward(self, v, head):
            v = v * self.list[0] - self.list[1] * self.table["a"]
            return self.heads[head](v)

    return Case(Model(), lambda c: (torch.randn(2, 3), "x" if c < 4 else "y"))


@program
def nested_sequential_indexed():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Identity(), nn.Linear(4, 2))

    def run(x):
        for block in model[:-1]:
            x = block(x)
        return model[-1](x), len(model)

    return Case(run, rows(4), state=[model])


@program
def gradient_enabled_for_some():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return Case(model, rows(4), {4: lambda: model[1].bias.requires_grad_(False)})


@program
def module_called_under_no_grad_then_grad():
    model = nn.Linear(4, 2)
    return Case(
        lambda x: model(x).exp(),
        rows(4),
        {3: lambda: torch.set_grad_enabled(False), 5: lambda: torch.set_grad_enabled(True)},
        state=[model],
    )


@program
def model_copied_inside():
    model = nn.Linear(4, 2)

    def run(x):
        other = copy.deepcopy(model)
        return other(x) - model(x) * 2

    return Case(run, rows(4), state=[model])


@program
def model_made_inside():
    def run(x):
        layer = nn.Linear(4, 2, device=x.device)
        return layer(x)

    return Case(run, rows(4))


@program
def parameters_as_one_vector():
    model = nn.Linear(4, 2)

    def run(g):
        v = nn.utils.parameters_to_vector(model.parameters())
        with torch.no_grad():
            nn.utils.vector_to_parameters(v - 0.1 * g, model.parameters())
        return v.norm()

    return Case(run, lambda c: (torch.randn(10),), state=[model])


@program
def state_dict_inside():
    model = nn.Linear(4, 2)
    return Case(
        lambda x: {k: v * x for k, v in model.state_dict().items()}, lambda c: (torch.randn(()),), state=[model]
    )


@program
def named_parameters_filtered():
    model = Small()

    def run():
        decay = [p for n, p in model.named_parameters() if n.endswith("weight")]
        return torch.stack([p.square().sum() for p in decay]).sum(), sum(p.numel() for p in model.parameters())

    return Case(run, state=[model])


@program
def forward_replaced_later():
    model = nn.Linear(4, 2)
    usual = model.forward

    def other():
        model.forward = lambda x: usual(x) * 2 - 1

    return Case(model, rows(4), {4: other})


@program
def submodule_frozen_in_eval():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3))

    def freeze():
        model[0].eval()

    return Case(model, lambda c: (torch.randn(6, 4),), {3: freeze, 5: lambda: model.train()}, calls=9)


@program
def multiple_inputs_and_outputs():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(2, 3)

        def forward(self, image, text=None, return_dict=True):
            h = self.a(image)
            if text is not None:
                h = h - self.b(text)
            return {"pooled": h.mean(1), "hidden": [h, h.relu()]} if return_dict else (h,)

    def args(c):
        return given(torch.randn(2, 4), **({"text": torch.randn(2, 2)} if c > 2 else {}), return_dict=c != 6)

    return Case(Model(), args, calls=9)


@program
def method_other_than_forward():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3))

        def encode(self, x):
            return x @ self.w

        @torch.no_grad()
        def renormalize(self, x):
            self.w.div_(self.w.norm(dim=0, keepdim=True))
            return self.encode(x)

    model = Model()
    return Case(model.renormalize, rows(4), state=[model])


@program
def early_exit_by_depth():
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def run(x, depth=None):
        for number, layer in enumerate(layers):
            if number == depth:
                return x, number
            x = layer(x).relu()
        return x, None

    return Case(run, lambda c: given(torch.randn(2, 4), depth=None if c < 4 else 1), state=[layers])


@program
def layer_drop_in_python():
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    kept = [True, True, True]

    def run(x):
        for use, layer in zip(kept, layers, strict=True):
            x = layer(x).tanh() if use else x
        return x

    return Case(
        run,
        rows(4),
        {3: lambda: kept.__setitem__(1, False), 5: lambda: kept.__setitem__(1, True)},
        state=[layers],
        calls=9,
    )


@program
def parameter_resized_between():
    model = nn.Linear(4, 2)

    def grow():
        model.weight = nn.Parameter(torch.randn(3, 4))
        model.bias = nn.Parameter(torch.randn(3))

    return Case(model, rows(4), {4: grow})


@program
def gradient_buffers_flat():
    model = nn.Linear(4, 2)
    flat = torch.zeros(10)
    model.weight.grad, model.bias.grad = flat[:8].view(2, 4), flat[8:]

    def step(x):
        flat.zero_()
        model(x).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad)
        return flat.norm()

    return Case(step, rows(4), state=[model, flat])


@program
def jitted_with_scripted_part():
    scale = torch.jit.script(_scaled)
    return Case(lambda x: scale(x) - 1, rows(4))


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0


@program
def compiled_part_inside():
    inner = torch.compile(lambda x: x * 2 - 1, backend="eager")
    return Case(lambda x: inner(x).tanh(), rows(4))


@program
def siamese_shared_encoder():
    encoder = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh())

    def run(a, b):
        za, zb = encoder(a), encoder(b)
        return (za - zb).pow(2).sum(1), za @ zb.T

    return Case(run, lambda c: (torch.randn(5, 4), torch.randn(5, 4)), {4: encoder.eval}, state=[encoder])


@program
def momentum_encoder_with_queue():
    q, k = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
    queue, at = F.normalize(torch.randn(3, 8), dim=0), torch.zeros(1, dtype=torch.long)
    optimizer = torch.optim.SGD(q.parameters(), lr=0.1)

    def step(x1, x2):
        with torch.no_grad():
            for pq, pk in zip(q.parameters(), k.parameters(), strict=True):
                pk.mul_(0.99).add_(pq, alpha=0.01)
            zk = F.normalize(k(x2), dim=1)
        zq = F.normalize(q(x1), dim=1)
        logits = torch.cat([(zq * zk).sum(1, keepdim=True), zq @ queue.clone()], 1) / 0.2
        loss = F.cross_entropy(logits, torch.zeros(len(x1), dtype=torch.long, device=x1.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue.index_copy_(1, (at + torch.arange(2, device=x1.device)) % 8, zk.T)
        at.add_(2)
        return loss.detach()

    return Case(step, lambda c: (torch.randn(2, 4), torch.randn(2, 4)), state=[queue, at, k])


@program
def self_supervised_byol():
    online, target, head = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 3)
    optimizer = torch.optim.Adam([*online.parameters(), *head.parameters()], lr=0.02)

    def step(a, b, tau=0.95):
        p = F.normalize(head(online(a)), dim=-1)
        with torch.no_grad():
            z = F.normalize(target(b), dim=-1)
        loss = 2 - 2 * (p * z).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 1 - tau)
        return loss.detach()

    return Case(step, lambda c: given(torch.randn(4, 4), torch.randn(4, 4), tau=0.95 if c < 4 else 0.5), state=[target])
