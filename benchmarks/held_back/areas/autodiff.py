"""What autograd offers: custom functions, hooks, functional transforms, checkpointing, second derivatives."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, vjp, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks.held_back.case import Case, function, program, sized


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.levels = levels
        return (x * levels).round() / levels

    @staticmethod
    def backward(ctx, g):
        return g * ctx.levels / 4, None


class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        (weight,) = ctx.saved_tensors
        return -weight * g, None


class ClampedSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clamp(-1, 1)
        ctx.save_for_backward(x, y)
        ctx.mark_non_differentiable(mask := x.abs() > 1)
        return y * y - x, mask

    @staticmethod
    def backward(ctx, g, _):
        x, y = ctx.saved_tensors
        return g * (2 * y * (x.abs() <= 1) - 1)


class InPlaceScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        ctx.mark_dirty(x)
        return x.mul_(k)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None


class NewStyle(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x.sin() * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None, None
        x, y = ctx.saved_tensors
        return g * x.cos() * y if ctx.needs_input_grad[0] else None, g * x.sin() if ctx.needs_input_grad[1] else None


@program
def quantization_aware_training():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"levels": 8}

    def step(x, y):
        w = StraightThrough.apply(model.weight, settings["levels"])
        loss = F.mse_loss(F.linear(x, w, model.bias), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(5, 4), torch.randn(5, 3)), {4: lambda: settings.update(levels=4)})


@program
def domain_adversarial():
    features, label, domain = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 2)
    modules = nn.ModuleList([features, label, domain])
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.1)

    def step(x, y, d, weight):
        h = features(x).relu()
        loss = F.cross_entropy(label(h), y) + F.cross_entropy(domain(ReverseGradient.apply(h, weight)), d)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(
        step,
        lambda c: (torch.randn(6, 4), torch.randint(3, (6,)), torch.randint(2, (6,)), torch.tensor(0.1 * c)),
        state=[modules],
    )


@function(lambda c: (torch.randn(4, 3, requires_grad=True) * 2,))
def non_differentiable_output(x):
    y, mask = ClampedSquare.apply(x)
    return y - 3 * mask, mask


@function(lambda c: (torch.randn(3, requires_grad=True),))
def dirty_argument_of_a_function(x):
    y = x * 2 - 1
    z = InPlaceScale.apply(y, 3.0)
    return z + y, z


@function(lambda c: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=c % 2 == 0)))
def new_style_function(x, y):
    return NewStyle.apply(x, y) - y


@function(lambda c: (torch.randn(3, 4, requires_grad=True),))
def function_with_once_differentiable(x):
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.saved = x.exp()
            return ctx.saved.clone()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g * ctx.saved

    return Exp.apply(x) - x


@program
def backward_hook_on_a_module():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    model[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(5, 4), torch.randn(5, 2)))


@program
def forward_hooks_that_collect():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    seen = {}
    model[0].register_forward_hook(lambda m, args, out: seen.__setitem__("hidden", out.detach()))
    handle = model[1].register_forward_pre_hook(lambda m, args: (args[0] * 2 - 1,))

    def run(x):
        return model(x), seen["hidden"]

    return Case(run, lambda c: (torch.randn(5, 4),), {4: handle.remove}, state=[seen])


@program
def tensor_hook_on_a_parameter():
    model = nn.Linear(4, 2)
    model.weight.register_hook(lambda g: g * 0.1 - 0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(x, y):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        return model.weight.grad.norm()

    return Case(step, lambda c: (torch.randn(5, 4), torch.randn(5, 2)))


@program
def hook_on_an_activation():
    model = nn.Linear(4, 2)

    def step(x):
        h = model(x)
        h.register_hook(lambda g: g.clamp(-0.1, 0.1))
        h.square().sum().backward()
        out = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        return out

    return Case(step, lambda c: (torch.randn(5, 4),))


@program
def hook_after_accumulation():
    model = nn.Linear(4, 2)
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], lr=0.1)

        def update(p, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(update)

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(5, 4), torch.randn(5, 2)))


@program
def retained_gradients():
    model = nn.Linear(4, 3)

    def step(x):
        h = model(x)
        h.retain_grad()
        (h.exp().sum() / 7).backward()
        gradient = h.grad
        model.zero_grad(set_to_none=True)
        return gradient

    return Case(step, lambda c: (torch.randn(5, 4),))


@program
def saliency_of_an_input():
    model = nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3)).requires_grad_(False)

    def saliency(x, k):
        x = x.detach().clone().requires_grad_()
        score = model(x).gather(1, k[:, None]).sum()
        (g,) = torch.autograd.grad(score, x)
        return g.abs().amax(1)

    return Case(saliency, lambda c: (torch.randn(sized(c), 4), torch.randint(3, (sized(c),))))


@program
def adversarial_training_fgsm():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def step(x, y, epsilon=0.1):
        x = x.detach().requires_grad_(True)
        (g,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
        adversarial = (x + epsilon * g.sign()).detach()
        loss = F.cross_entropy(model(adversarial), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), adversarial

    return Case(step, lambda c: (torch.randn(6, 4), torch.randint(3, (6,))))


@program
def projected_gradient_attack():
    model = nn.Linear(4, 3)

    def attack(x, y):
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            loss = F.cross_entropy(model(x + delta), y)
            g = torch.autograd.grad(loss, delta)[0]
            delta = (delta + 0.05 * g.sign()).clamp(-0.1, 0.1).detach().requires_grad_()
        return (x + delta).detach()

    return Case(attack, lambda c: (torch.randn(6, 4), torch.randint(3, (6,))))


@program
def gradient_penalty():
    critic = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.02)

    def step(real, fake):
        eps = torch.rand(len(real), 1, device=real.device)
        mixed = (eps * real + (1 - eps) * fake).requires_grad_()
        (g,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + 10 * ((g.norm(dim=1) - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(6, 4), torch.randn(6, 4)))


@program
def physics_informed():
    net = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)

    def step(t):
        t = t.clone().requires_grad_()
        u = net(t)
        du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), t, create_graph=True)[0]
        loss = (ddu + 0.3 * du + 2 * u).square().mean() + (net(t[:1] * 0) - 1).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.rand(sized(c), 1),))


@program
def hessian_vector_product():
    w = torch.randn(4, requires_grad=True)

    def product(x, v):
        loss = (torch.tanh(x @ w) ** 2).mean()
        (g,) = torch.autograd.grad(loss, w, create_graph=True)
        return torch.autograd.grad(g @ v, w)[0]

    return Case(product, lambda c: (torch.randn(sized(c), 4), torch.randn(4)))


@program
def meta_learning_inner_step():
    model = nn.Linear(3, 1)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(xs, ys, xq, yq, inner_lr=0.05):
        params = dict(model.named_parameters())
        inner = F.mse_loss(functional_call(model, params, (xs,)), ys)
        grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
        adapted = {n: p - inner_lr * g for (n, p), g in zip(params.items(), grads, strict=True)}
        loss = F.mse_loss(functional_call(model, adapted, (xq,)), yq)
        outer.zero_grad()
        loss.backward()
        outer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(5, 3), torch.randn(5, 1), torch.randn(4, 3), torch.randn(4, 1)))


@program
def gradients_for_each_sample():
    model = nn.Linear(4, 2)
    params = {n: p.detach() for n, p in model.named_parameters()}

    def loss_of(params, x, y):
        return F.mse_loss(functional_call(model, params, (x[None],)), y[None])

    def run(x, y):
        grads = vmap(grad(loss_of), (None, 0, 0))(params, x, y)
        return {n: g.flatten(1).norm(dim=1) for n, g in grads.items()}, grads["bias"]

    return Case(run, lambda c: (torch.randn(sized(c), 4), torch.randn(sized(c), 2)))


@program
def ensemble_by_vmap():
    models = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    base = models[0]

    def one(params, buffers, x):
        return functional_call(base, (params, buffers), (x,))

    return Case(lambda x: vmap(one, in_dims=(0, 0, None))(params, buffers, x), lambda c: (torch.randn(sized(c), 3),))


@function(lambda c: (torch.randn(3), torch.randn(3)))
def jacobians_both_ways(x, y):
    def f(x):
        return torch.stack([(x * y).sum(), (x**2).sum() - y[0], x[0] * x[1]])

    return jacrev(f)(x), vjp(f, x)[1](y)[0]


@function(lambda c: (torch.randn(3),))
def forward_mode_jacobian(x):
    return jacfwd(lambda v: v.sin() * v.sum())(x)


@function(lambda c: (torch.randn(3),))
def hessian_of_a_function(x):
    return hessian(lambda v: (v**3).sum() - v[0] * v[1])(x)


@function(lambda c: (torch.randn(3, 4), torch.randn(3, 4)))
def vmap_with_out_dims(x, y):
    return vmap(lambda a, b: (a * b.sum(), a.max() - b), out_dims=(1, 0))(x, y)


@function(lambda c: (torch.randn(4, 3, 3),))
def vmap_over_a_condition(x):
    def one(m):
        return torch.where(m.trace() > 0, m @ m, m.T - 1)

    return vmap(one)(x)


@function(lambda c: (torch.randn(5, 3),))
def vmap_with_randomness(x):
    return vmap(lambda row: row + torch.randn_like(row) * 0.1, randomness="different")(x)


@program
def checkpointed_blocks():
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)

    def step(x, y):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        loss = F.mse_loss(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(sized(c), 4), torch.randn(sized(c), 4)), state=[blocks])


@program
def checkpoint_with_dropout():
    block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.4), nn.Tanh())

    def step(x):
        out = checkpoint(block, x, use_reentrant=False, preserve_rng_state=True)
        out.sum().backward()
        grads = [p.grad for p in block.parameters()]
        block.zero_grad()
        return out.detach(), grads

    return Case(step, lambda c: (torch.randn(5, 4),))


@program
def checkpoint_reentrant():
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def step(x):
        x = x.clone().requires_grad_()
        checkpoint(block, x, use_reentrant=True).square().sum().backward()
        return x.grad

    return Case(step, lambda c: (torch.randn(5, 4),))


@program
def sequential_checkpoint_for_the_caller():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    return Case(
        lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False).tanh(),
        lambda c: (torch.randn(3, 4),),
        state=[model],
    )


@program
def saved_tensors_packed():
    w = torch.randn(4, 4, requires_grad=True)

    def step(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            y = (x @ w).sigmoid()
        y.sum().backward()
        g = w.grad
        w.grad = None
        return g

    return Case(step, lambda c: (torch.randn(3, 4),))


@function(lambda c: (torch.randn(3, 4, requires_grad=True),))
def no_grad_part_inside(x):
    with torch.no_grad():
        scale = x.norm()
    y = x / scale
    with torch.enable_grad(), torch.set_grad_enabled(True):
        return y * x.detach() - scale


@function(lambda c: (torch.randn(3, 4, requires_grad=c != 3), torch.randn(4, requires_grad=True)))
def arguments_with_and_without_gradients(x, b):
    return x * b - b.detach() ** 2, x.requires_grad, x.detach() + 1


@function(lambda c: (torch.randn(3, 4, requires_grad=True),), rounds=True)  # gradients of several results meet
def outputs_of_which_one_is_detached(x):
    y = x.exp()
    return y, y.detach(), y[0], y.sum() - x


@program
def gradient_of_an_argument_kept():
    def step(x, w):
        loss = (x * w).tanh().sum()
        loss.backward()
        return loss.detach(), w.grad

    return Case(step, lambda c: (torch.randn(3), torch.randn(3, requires_grad=True)))


@program
def backward_into_an_argument_twice():
    w = torch.randn(3, requires_grad=True)

    def step(x):
        for k in range(2):
            ((x * w).sum() * (k + 2) - 1).backward()
        return w.grad.clone()

    return Case(step, lambda c: (torch.randn(3),), {4: lambda: setattr(w, "grad", None)}, state=[w])


@program
def gradient_set_by_hand():
    w = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    def step(g):
        w.grad = g.sign() * 0.3 - w.detach()
        optimizer.step()
        return w.detach().clone()

    return Case(step, lambda c: (torch.randn(3),))


@function(lambda c: (torch.randn(4, requires_grad=True),))
def in_place_on_a_branch(x):
    y = x * 2
    y[1:3] -= y[:2].detach()
    y.relu_()
    return y, y.sum()


@function(lambda c: (torch.randn(3, requires_grad=True),))
def leaf_written_raises(x):
    x.add_(1)
    return x


@function(lambda c: (torch.randn(3, requires_grad=True),))
def saved_tensor_overwritten_raises(x):
    y = x.exp()
    y.add_(1)
    return torch.autograd.grad(y.sum(), x)[0]


@function(lambda c: (torch.randn(3), torch.randn(3, requires_grad=True)))
def unused_input_in_grad(x, w):
    return (
        torch.autograd.grad((w * 2).sum(), [w], allow_unused=True),
        torch.autograd.grad((w * x).sum(), [w, (v := w * 1)], allow_unused=True)[1:],
        v.detach(),
    )


@program
def functional_linearize_style():
    def run(x, v):
        out, pull = vjp(lambda a: (a.sin(), a.cos().sum()), x)
        (g,) = pull((v, torch.ones((), device=x.device)))
        return out, g

    return Case(run, lambda c: (torch.randn(3), torch.randn(3)))


@program
def natural_gradient_by_solve():
    w = torch.randn(3, requires_grad=True)

    def step(x, y):
        out = x @ w
        (g,) = torch.autograd.grad(F.mse_loss(out, y), w)
        fisher = x.T @ x / len(x) + 0.1 * torch.eye(3, device=x.device)
        with torch.no_grad():
            w.sub_(torch.linalg.solve(fisher, g) * 0.5)
        return w.detach().clone()

    return Case(step, lambda c: (torch.randn(8, 3), torch.randn(8)), rounds=True)


@program
def implicit_layer_with_custom_backward():
    class Fixed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            x = torch.zeros_like(b)
            for _ in range(6):
                x = torch.tanh(a * x + b)
            ctx.save_for_backward(a, x)
            return x

        @staticmethod
        def backward(ctx, g):
            a, x = ctx.saved_tensors
            s = 1 - x * x
            u = g * s / (1 - a * s)
            return (u * x).sum_to_size(a.shape), u

    a = torch.tensor([0.3], requires_grad=True)
    return Case(lambda b: Fixed.apply(a, b), lambda c: (torch.randn(4, requires_grad=True),), state=[a])


@program
def anomaly_detection_later():
    w = torch.randn(3, requires_grad=True)

    def step(x):
        with torch.autograd.set_detect_anomaly(bool(settings["on"])):
            ((x * w) ** 2).sum().backward()
        g, w.grad = w.grad, None
        return g

    settings = {"on": False}
    return Case(step, lambda c: (torch.randn(3),), {4: lambda: settings.update(on=True)}, state=[w])


@program
def gradcheckpoint_offloaded():
    w = torch.randn(4, 4, requires_grad=True)

    def step(x):
        with torch.autograd.graph.save_on_cpu():
            y = (x @ w).exp()
        return torch.autograd.grad(y.mean(), w)[0]

    return Case(step, lambda c: (torch.randn(3, 4),))
