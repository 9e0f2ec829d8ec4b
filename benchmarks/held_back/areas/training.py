"""Whole training steps: losses, optimizers, schedules, clipping, accumulation, averages of weights."""

from __future__ import annotations

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.held_back.case import Case, function, given, program, sized

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


def net(*sizes, act=nn.Tanh):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def pairs(n_in, n_out):
    return lambda call: (torch.randn(sized(call), n_in), torch.randn(sized(call), n_out))


def classes(n_in, n_classes):
    return lambda call: (torch.randn(sized(call), n_in), torch.randint(n_classes, (sized(call),)))


def set_lr(optimizer, lr):
    for group in optimizer.param_groups:
        group["lr"] = lr


def supervised(make_optimizer, loss_of=F.mse_loss, args=None, sizes=(5, 7, 3), then=None):
    """The usual loop's body."""
    model = net(*sizes)
    optimizer = make_optimizer(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    changes = {3: lambda: set_lr(optimizer, 0.01)} if then is None else then(model, optimizer)
    return Case(step, args or pairs(sizes[0], sizes[-1]), changes)


@program
def sgd_plain():
    return supervised(lambda p: SGD(p, lr=0.1))


@program
def sgd_nesterov_weight_decay():
    return supervised(lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))


@program
def sgd_dampening_changes():
    def then(model, optimizer):
        return {3: lambda: optimizer.param_groups[0].update(dampening=0.3, momentum=0.5)}

    return supervised(lambda p: SGD(p, lr=0.1, momentum=0.9), then=then)


@program
def sgd_maximize():
    return supervised(lambda p: SGD(p, lr=0.01, maximize=True), lambda a, b: -F.l1_loss(a, b))


@program
def adam_amsgrad():
    return supervised(lambda p: Adam(p, lr=0.02, amsgrad=True, betas=(0.8, 0.95)))


@program
def adamw_foreach_off():
    return supervised(lambda p: AdamW(p, lr=0.02, foreach=False))


@program
def adamw_betas_change():
    def then(model, optimizer):
        return {4: lambda: optimizer.param_groups[0].update(betas=(0.7, 0.9), eps=1e-6)}

    return supervised(lambda p: AdamW(p, lr=0.02), then=then)


@program
def rmsprop_centered():
    return supervised(lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5))


@program
def adagrad_decay():
    return supervised(lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1))


@program
def adadelta():
    return supervised(lambda p: torch.optim.Adadelta(p, lr=0.7, rho=0.8))


@program
def adamax_step():
    return supervised(lambda p: torch.optim.Adamax(p, lr=0.02))


@program
def nadam_step():
    return supervised(lambda p: torch.optim.NAdam(p, lr=0.02))


@program
def radam_step():
    return supervised(lambda p: torch.optim.RAdam(p, lr=0.02))


@program
def rprop_step():
    return supervised(lambda p: torch.optim.Rprop(p, lr=0.02))


@program
def asgd_step():
    return supervised(lambda p: torch.optim.ASGD(p, lr=0.02))


@program
def lbfgs_closure():
    model = net(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Case(step, pairs(3, 1))


@program
def sgd_closure():
    model = net(3, 4, 1)
    optimizer = SGD(model.parameters(), lr=0.05)

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.huber_loss(model(x), y, delta=0.5)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Case(step, pairs(3, 1))


@program
def cross_entropy_smoothing():
    loss = nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.rand(3) + 0.5)
    return supervised(lambda p: Adam(p, lr=0.02), loss, classes(5, 3))


@program
def cross_entropy_ignore_index():
    def args(call):
        y = torch.randint(3, (8,))
        y[call % 3] = -100
        return torch.randn(8, 5), y

    return supervised(lambda p: SGD(p, lr=0.02), lambda a, y: F.cross_entropy(a, y, reduction="sum"), args)


@program
def nll_of_log_softmax():
    return supervised(lambda p: SGD(p, lr=0.1), lambda a, y: F.nll_loss(a.log_softmax(-1), y), classes(5, 3))


@program
def bce_with_logits_pos_weight():
    weight = torch.tensor([1.0, 2.0, 0.5])

    def args(call):
        return torch.randn(8, 5), (torch.rand(8, 3) > 0.5).float()

    return supervised(
        lambda p: AdamW(p), lambda a, y: F.binary_cross_entropy_with_logits(a, y, pos_weight=weight), args
    )


@program
def kl_divergence_distillation():
    teacher, student = net(5, 8, 4).eval(), net(5, 4)
    optimizer = AdamW(student.parameters(), lr=0.02)
    temperature = 2.0

    def step(x, y):
        with torch.no_grad():
            target = F.softmax(teacher(x) / temperature, -1)
        logits = student(x)
        soft = F.kl_div(F.log_softmax(logits / temperature, -1), target, reduction="batchmean") * temperature**2
        loss = 0.7 * soft + 0.3 * F.cross_entropy(logits, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach(), soft.detach()

    return Case(step, classes(5, 4), {3: lambda: set_lr(optimizer, 0.005)})


@program
def triplet_margin():
    encoder = net(5, 6, 4)
    optimizer = SGD(encoder.parameters(), lr=0.1, momentum=0.5)

    def step(anchor, positive, negative):
        loss = F.triplet_margin_loss(encoder(anchor), encoder(positive), encoder(negative), margin=0.7)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda call: tuple(torch.randn(sized(call), 5) for _ in range(3)))


@program
def contrastive_info_nce():
    encoder = net(5, 6, 4)
    log_temperature = nn.Parameter(torch.tensor(0.5))
    optimizer = AdamW([*encoder.parameters(), log_temperature], lr=0.02)

    def step(a, b):
        za, zb = F.normalize(encoder(a), dim=-1), F.normalize(encoder(b), dim=-1)
        logits = za @ zb.T * log_temperature.exp()
        labels = torch.arange(len(a), device=a.device)
        loss = (F.cross_entropy(logits, labels) + 2 * F.cross_entropy(logits.T, labels)) / 3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            log_temperature.clamp_(0, 1.2)
        return loss.detach(), (logits.argmax(-1) == labels).float().mean()

    return Case(step, lambda call: (torch.randn(sized(call), 5), torch.randn(sized(call), 5)))


@program
def ctc_training():
    model = net(5, 6)
    optimizer = SGD(model.parameters(), lr=0.05)

    def step(x, targets):
        log_probs = model(x).log_softmax(-1)
        lengths = torch.full((x.shape[1],), x.shape[0], dtype=torch.long)
        target_lengths = torch.full((x.shape[1],), targets.shape[1], dtype=torch.long)
        loss = F.ctc_loss(log_probs, targets, lengths, target_lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda call: (torch.randn(9, 2, 5), torch.randint(1, 6, (2, 3))), rounds=True)


@program
def dice_and_focal():
    model = nn.Conv2d(2, 1, 3, padding=1)
    optimizer = AdamW(model.parameters(), lr=0.05)

    def dice(p, y, eps=1e-6):
        both = (p * y).sum((1, 2, 3))
        return (1 - (2 * both + eps) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + eps)).mean()

    def focal(logits, y, gamma=2.0):
        bce = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
        return ((1 - torch.exp(-bce)) ** gamma * bce).mean()

    def step(x, y):
        logits = model(x)
        loss = dice(logits.sigmoid(), y) + 0.5 * focal(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "mask": logits.detach() > 0}

    return Case(step, lambda call: (torch.randn(3, 2, 6, 6), (torch.rand(3, 1, 6, 6) > 0.6).float()))


@program
def clip_grad_norm_returns_norm():
    model = net(5, 8, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        F.mse_loss(model(x), y, reduction="sum").backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return norm

    return Case(step, pairs(5, 2))


@program
def clip_grad_value():
    model = net(5, 8, 2)
    optimizer = Adam(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        (model(x) - y).abs().sum().backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.2)
        optimizer.step()
        return [p.grad.abs().max() for p in model.parameters()]

    return Case(step, pairs(5, 2))


@program
def adaptive_gradient_clipping():
    model = net(5, 8, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.8)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                limit = p.norm().clamp(min=1e-3) * 0.01
                norm = p.grad.norm()
                p.grad.mul_(torch.where(norm > limit, limit / norm, 1.0))
        optimizer.step()
        return loss.detach()

    return Case(step, pairs(5, 2))


@program
def accumulation_in_one_call():
    model = net(4, 6, 2)
    optimizer = AdamW(model.parameters(), lr=0.01)

    def step(x, y):
        optimizer.zero_grad()
        total = 0.0
        for part_x, part_y in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = F.mse_loss(model(part_x), part_y) / 4
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return Case(step, lambda call: (torch.randn(8, 4), torch.randn(8, 2)))


@program
def accumulation_over_calls():
    model = net(4, 6, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x, y, is_last=False):
        loss = F.mse_loss(model(x), y) / 2
        loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Case(step, lambda call: given(torch.randn(8, 4), torch.randn(8, 2), is_last=call % 2 == 1), calls=10)


@program
def gradients_zeroed_in_place():
    model = net(4, 6, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    return Case(step, pairs(4, 2))


@program
def exponential_average_of_weights():
    model = net(4, 6, 2)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = Adam(model.parameters(), lr=0.05)
    settings = {"decay": 0.9}

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 1 - settings["decay"])
        return loss.detach(), average(x)

    return Case(step, pairs(4, 2), {4: lambda: settings.update(decay=0.5)})


@program
def averaged_model_of_swa_utils():
    model = net(4, 6, 2)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
    optimizer = SGD(model.parameters(), lr=0.05)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss.detach()

    return Case(step, pairs(4, 2), state=[average])


@program
def scheduler_between_calls():
    model = net(4, 6, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, pairs(4, 2), dict.fromkeys(range(1, 7), scheduler.step))


@program
def scheduler_inside_the_step():
    model = net(4, 6, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    return Case(step, pairs(4, 2))


@program
def one_cycle_between_calls():
    model = net(4, 6, 2)
    optimizer = AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=20)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, pairs(4, 2), dict.fromkeys(range(1, 7), scheduler.step))


@program
def warm_up_by_hand():
    model = net(4, 6, 2)
    optimizer = SGD(model.parameters(), lr=0.0)
    progress = {"step": 0}

    def step(x, y):
        progress["step"] += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, progress["step"] / 4)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, pairs(4, 2))


@program
def learning_rate_as_a_tensor():
    model = net(4, 6, 2)
    lr = torch.tensor(0.05)
    optimizer = Adam(model.parameters(), lr=lr, capturable=False, foreach=False)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, pairs(4, 2), {3: lambda: lr.fill_(0.01)}, devices=("cpu",))


@program
def groups_with_own_rates():
    model = net(4, 6, 2)
    head, body = list(model[2].parameters()), list(model[0].parameters())
    optimizer = AdamW([{"params": head, "lr": 0.1}, {"params": body, "weight_decay": 0.2}], lr=0.01)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def unfreeze():
        optimizer.param_groups[1]["lr"] = 0.5

    return Case(step, pairs(4, 2), {3: unfreeze})


@program
def group_added_later():
    model, extra = net(4, 6, 2), nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x) - extra(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, pairs(4, 2), {4: lambda: optimizer.add_param_group({"params": extra.parameters(), "lr": 0.3})})


@program
def layer_frozen_later():
    model = net(4, 6, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, pairs(4, 2), {3: lambda: model[0].requires_grad_(False), 6: lambda: model.requires_grad_(True)})


@program
def model_evaluated_between():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 2))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)

    def step(x, y):
        out = model(x)
        loss = F.mse_loss(out, y)
        if model.training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach(), out.detach()

    return Case(step, pairs(4, 2), {3: model.eval, 5: model.train}, calls=9)


@program
def checkpoint_loaded_between():
    model = net(4, 6, 2)
    optimizer = Adam(model.parameters(), lr=0.05)
    saved = {}

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def save():
        saved.update(model=copy.deepcopy(model.state_dict()), optimizer=copy.deepcopy(optimizer.state_dict()))

    def load():
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    return Case(step, pairs(4, 2), {3: save, 5: load}, calls=8)


@program
def l1_and_l2_penalties():
    model = net(4, 6, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x, y, l1=0.01, l2=0.02):
        loss = F.mse_loss(model(x), y)
        loss = loss + l1 * sum(p.abs().sum() for p in model.parameters())
        loss = loss + l2 * sum(p.square().sum() for name, p in model.named_parameters() if "weight" in name)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: given(torch.randn(8, 4), torch.randn(8, 2), l1=0.01 if c < 4 else 0.05))


@program
def class_of_trainer():
    class Trainer:
        def __init__(self):
            self.model = net(4, 6, 2)
            self.optimizer = AdamW(self.model.parameters(), lr=0.01)
            self.loss_history = torch.zeros(4)
            self.position = torch.zeros((), dtype=torch.long)

        def step(self, x, y):
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.loss_history[self.position % 4] = loss.detach()
            self.position += 1
            return {"loss": loss.detach(), "mean": self.loss_history.mean()}

        @staticmethod
        def criterion(a, b):
            return F.l1_loss(a, b)

    trainer = Trainer()
    return Case(trainer.step, pairs(4, 2), state=[trainer.model, trainer.loss_history, trainer.position])


@program
def mixup_training():
    model = net(4, 8, 3)
    optimizer = SGD(model.parameters(), lr=0.05)

    def step(x, y, lam):
        index = torch.randperm(x.size(0), device=x.device)
        mixed = lam * x + (1 - lam) * x[index]
        out = model(mixed)
        loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(8, 4), torch.randint(3, (8,)), torch.rand(())))


@program
def cutmix_batch():
    def step(x, y, half):
        index = torch.arange(len(x) - 1, -1, -1, device=x.device)
        x = x.clone()
        x[:, :, 1:half, 2 : half + 1] = x[index, :, 1:half, 2 : half + 1]
        share = 1 - (half - 1) ** 2 / (x.shape[-1] * x.shape[-2])
        target = F.one_hot(y, 4).float()
        return x, share * target + (1 - share) * target[index]

    return Case(step, lambda c: (torch.randn(4, 2, 6, 6), torch.randint(4, (4,)), 3 if c < 4 else 4))


@program
def sharpness_aware_step():
    model = net(4, 6, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x, y, rho=0.05):
        F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            shifts = [p.grad * (rho / (norm + 1e-12)) for p in model.parameters()]
            for p, e in zip(model.parameters(), shifts, strict=True):
                p.add_(e)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), shifts, strict=True):
                p.sub_(e)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Case(step, pairs(4, 2))


@program
def lookahead_slow_weights():
    model = net(4, 6, 2)
    slow = [p.detach().clone() for p in model.parameters()]
    optimizer = Adam(model.parameters(), lr=0.05)
    count = torch.zeros((), dtype=torch.long)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            count.add_(1)
            is_time = count % 3 == 0
            for s, p in zip(slow, model.parameters(), strict=True):
                s.copy_(torch.where(is_time, s + 0.5 * (p - s), s))
                p.copy_(torch.where(is_time, s, p))
        return loss.detach()

    return Case(step, pairs(4, 2))


@program
def sgd_written_by_hand():
    w, b = torch.randn(4, 2, requires_grad=True), torch.zeros(2, requires_grad=True)

    def step(x, y, lr=0.1):
        loss = ((x @ w + b - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= lr * p.grad
                p.grad = None
        return loss.detach()

    return Case(step, lambda c: given(torch.randn(8, 4), torch.randn(8, 2), lr=0.1 if c < 4 else 0.02))


@program
def gradients_by_autograd_grad():
    w = [torch.randn(4, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)]

    def step(x, y):
        loss = F.mse_loss((x @ w[0]).relu() @ w[1], y)
        grads = torch.autograd.grad(loss, w)
        with torch.no_grad():
            for p, g in zip(w, grads, strict=True):
                p.sub_(0.1 * g)
        return loss.detach(), grads

    return Case(step, pairs(4, 2))


@program
def two_losses_two_backwards():
    trunk, one, two = net(4, 6), nn.Linear(6, 2), nn.Linear(6, 3)
    optimizer = SGD([*trunk.parameters(), *one.parameters(), *two.parameters()], lr=0.1)

    def step(x, y, k):
        h = trunk(x)
        a, b = F.mse_loss(one(h), y), F.cross_entropy(two(h), k)
        optimizer.zero_grad()
        a.backward(retain_graph=True)
        b.mul(0.3).backward()
        optimizer.step()
        return a.detach(), b.detach()

    return Case(step, lambda c: (torch.randn(sized(c), 4), torch.randn(sized(c), 2), torch.randint(3, (sized(c),))))


@program
def gradient_surgery():
    model = net(4, 5, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x, y):
        out = model(x)
        g1 = torch.autograd.grad(F.mse_loss(out[:, 0], y[:, 0]), model.parameters(), retain_graph=True)
        g2 = torch.autograd.grad(F.l1_loss(out[:, 1], y[:, 1]), model.parameters())
        for p, a, b in zip(model.parameters(), g1, g2, strict=True):
            dot = (a * b).sum()
            p.grad = a + torch.where(dot < 0, b - dot / (a * a).sum().clamp(min=1e-9) * a, b)
        optimizer.step()
        optimizer.zero_grad()
        return out.detach()

    return Case(step, pairs(4, 2))


@program
def loss_divided_by_batch_size():
    model = net(4, 5, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).sum() / x.size(0) - 0.01 * len(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(5 + c // 2, 4), torch.randn(5 + c // 2, 2)))


@program
def masked_token_loss():
    embed, head = nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, 11)
    optimizer = AdamW([*embed.parameters(), *head.parameters()], lr=0.05)

    def step(tokens):
        mask = tokens[:, 1:] != 0
        logits = head(embed(tokens[:, :-1]))
        losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        loss = (losses * mask.flatten()).sum() / mask.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), mask.sum()

    return Case(step, lambda c: (torch.randint(0, 11, (3, sized(c))),))


@program
def sparse_embedding_training():
    embed = nn.Embedding(11, 6, sparse=True)
    optimizer = SGD(embed.parameters(), lr=0.5)

    def step(tokens):
        optimizer.zero_grad()
        loss = (embed(tokens) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randint(0, 11, (3, 4)),))


@program
def optimizer_hooks():
    model = net(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    seen = torch.zeros(2)
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: (seen[0].add_(1), None)[1])
    optimizer.register_step_post_hook(lambda opt, args, kwargs: (seen[1].sub_(2), None)[1])

    def step(x, y):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        return seen.clone()

    return Case(step, pairs(4, 2), state=[seen])


@program
def custom_optimizer_lion():
    class Lion(torch.optim.Optimizer):
        def __init__(self, params, lr=0.01, betas=(0.9, 0.99)):
            super().__init__(params, {"lr": lr, "betas": betas})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["average"] = torch.zeros_like(p)
                    b1, b2 = group["betas"]
                    update = state["average"].mul(b1).add(p.grad, alpha=1 - b1).sign_()
                    p.add_(update, alpha=-group["lr"])
                    state["average"].mul_(b2).add_(p.grad, alpha=1 - b2)

    return supervised(Lion)


@program
def mean_teacher_consistency():
    student = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Linear(6, 2))
    teacher = copy.deepcopy(student)
    optimizer = SGD(student.parameters(), lr=0.1)

    def step(x, y):
        noisy = x + 0.1 * torch.randn_like(x)
        with torch.no_grad():
            target = teacher(x)
        out = student(noisy)
        loss = F.mse_loss(out, y) + 0.5 * F.mse_loss(out.softmax(-1), target.softmax(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
            t.data.mul_(0.9).add_(s.data, alpha=0.1)
        return loss.detach()

    return Case(step, pairs(4, 2))


@program
def autoencoder_tied_weights():
    w, b, c = nn.Parameter(torch.randn(3, 6) * 0.3), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(6))
    optimizer = Adam([w, b, c], lr=0.05)

    def step(x):
        h = F.linear(x, w, b).sigmoid()
        loss = F.mse_loss(F.linear(h, w.t(), c), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), h.detach()

    return Case(step, lambda c: (torch.randn(sized(c), 6),))


@program
def variational_autoencoder():
    enc, dec = nn.Linear(6, 4), nn.Linear(2, 6)
    optimizer = Adam([*enc.parameters(), *dec.parameters()], lr=0.05)

    def step(x, beta=0.5):
        mean, log_var = enc(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1).mean()
        rec = F.mse_loss(dec(z), x, reduction="none").sum(-1).mean()
        loss = rec + beta * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"rec": rec.detach(), "kl": kl.detach()}

    return Case(step, lambda c: given(torch.randn(sized(c), 6), beta=0.5 if c != 6 else 0.1))


@program
def gradient_norms_by_name():
    model = net(4, 5, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        norms = {name: p.grad.norm() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        return norms

    return Case(step, pairs(4, 2))


@function(lambda c: (torch.randn(6, 3, requires_grad=True), torch.randint(3, (6,))))
def loss_for_the_caller(x, y):
    return F.cross_entropy(x, y, label_smoothing=0.2) - 0.1 * F.softplus(x).mean()


@program
def step_skipped_on_none():
    model = net(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x, y=None):
        out = model(x)
        if y is None:
            return out.detach(), None
        optimizer.zero_grad()
        loss = F.mse_loss(out, y)
        loss.backward()
        optimizer.step()
        return out.detach(), loss.detach()

    def args(call):
        return (torch.randn(8, 4),) if call in (3, 6) else (torch.randn(8, 4), torch.randn(8, 2))

    return Case(step, args, calls=9)


@program
def loss_scaled_by_hand():
    model = net(4, 6, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    scale = torch.tensor(128.0)

    def step(x, y):
        optimizer.zero_grad()
        (F.mse_loss(model(x), y) * scale).backward()
        grads = [p.grad for p in model.parameters()]
        torch._foreach_div_(grads, scale)
        is_fine = torch.stack([g.isfinite().all() for g in grads]).all()
        scale.copy_(torch.where(is_fine, scale * 1.5, scale * 0.5))
        optimizer.step()
        return is_fine

    return Case(step, pairs(4, 2))


@program
def gradient_noise():
    model = net(4, 6, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x, y, sigma):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.grad += torch.randn_like(p) * sigma
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(8, 4), torch.randn(8, 2), 0.1 if c < 5 else 0.01))
