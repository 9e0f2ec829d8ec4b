"""Adversarial nets, diffusion, reinforcement learning, simulation, probabilistic and classic algorithms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.held_back.case import Case, function, given, program, sized


@program
def gan_both_steps_in_one():
    g, d = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))
    og = torch.optim.Adam(g.parameters(), lr=0.02, betas=(0.5, 0.9))
    od = torch.optim.Adam(d.parameters(), lr=0.02, betas=(0.5, 0.9))

    def step(real):
        fake = g(torch.randn(len(real), 2, device=real.device))
        loss_d = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        od.zero_grad()
        loss_d.backward()
        od.step()
        loss_g = F.softplus(-d(fake)).mean()
        og.zero_grad()
        loss_g.backward()
        og.step()
        return loss_d.detach(), loss_g.detach()

    return Case(step, lambda c: (torch.randn(sized(c), 4),))


@program
def wgan_with_weight_clipping():
    g, d = nn.Linear(2, 4), nn.Linear(4, 1)
    od = torch.optim.RMSprop(d.parameters(), lr=0.05)

    def step(real, z):
        with torch.no_grad():
            fake = g(z)
        loss = d(fake).mean() - d(real).mean()
        od.zero_grad()
        loss.backward()
        od.step()
        for p in d.parameters():
            p.data.clamp_(-0.05, 0.05)
        return loss.detach()

    return Case(step, lambda c: (torch.randn(5, 4), torch.randn(5, 2)))


@program
def discriminator_every_other_call():
    g, d = nn.Linear(2, 4), nn.Linear(4, 1)
    og, od = torch.optim.SGD(g.parameters(), lr=0.1), torch.optim.SGD(d.parameters(), lr=0.1)

    def step(real, z, train_generator):
        fake = g(z)
        if train_generator:
            loss, optimizer = -d(fake).mean(), og
        else:
            loss, optimizer = d(fake.detach()).mean() - d(real).mean(), od
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(5, 4), torch.randn(5, 2), c % 2 == 1), calls=10)


@program
def cycle_consistency():
    ab, ba = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer = torch.optim.Adam([*ab.parameters(), *ba.parameters()], lr=0.05)

    def step(a, b):
        optimizer.zero_grad()
        loss = F.l1_loss(ba(ab(a)), a) + 2 * F.l1_loss(ab(ba(b)), b) + 0.1 * F.l1_loss(ab(b), b)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(4, 3), torch.randn(4, 3)))


@program
def diffusion_training():
    betas = torch.linspace(1e-3, 0.2, 10)
    alphas = (1 - betas).cumprod(0)
    model, embed = nn.Linear(4 + 3, 4), nn.Embedding(10, 3)
    optimizer = torch.optim.AdamW([*model.parameters(), *embed.parameters()], lr=0.02)

    def step(x):
        t = torch.randint(0, 10, (len(x),), device=x.device)
        noise = torch.randn_like(x)
        a = alphas[t][:, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        loss = F.mse_loss(model(torch.cat([noisy, embed(t)], -1)), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(sized(c), 4),))


@program
def diffusion_sampling_loop():
    betas = torch.linspace(1e-3, 0.2, 5)
    alphas = 1 - betas
    bars = alphas.cumprod(0)
    model = nn.Linear(3, 3)

    @torch.no_grad()
    def sample(x):
        for t in reversed(range(5)):
            eps = model(x)
            x = (x - betas[t] / (1 - bars[t]).sqrt() * eps) / alphas[t].sqrt()
            if t > 0:
                x = x + betas[t].sqrt() * torch.randn_like(x)
        return x

    return Case(sample, lambda c: (torch.randn(2, 3),))


@program
def guided_ddim_step():
    model = nn.Linear(4, 4)

    @torch.inference_mode()
    def step(x, condition, scale, a, b):
        both = model(torch.cat([x, x + condition]))
        plain, conditioned = both.chunk(2)
        eps = plain + scale * (conditioned - plain)
        x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
        return b.sqrt() * x0 + (1 - b).sqrt() * eps

    return Case(
        step,
        lambda c: (torch.randn(2, 4), torch.randn(2, 4), 3.0 if c < 4 else 7.5, torch.tensor(0.5), torch.tensor(0.8)),
    )


@program
def flow_matching():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def step(x1):
        x0, t = torch.randn_like(x1), torch.rand(len(x1), 1, device=x1.device)
        v = model(torch.cat([(1 - t) * x0 + t * x1, t], -1))
        loss = ((v - (x1 - x0)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(sized(c), 3),))


@program
def normalizing_flow_coupling():
    nets = nn.ModuleList(nn.Linear(2, 4) for _ in range(3))

    def log_prob(x):
        total = torch.zeros(len(x), device=x.device)
        for net in nets:
            a, b = x.chunk(2, -1)
            s, t = net(a).chunk(2, -1)
            s = s.tanh()
            x = torch.cat([b * s.exp() + t, a], -1)
            total = total + s.sum(-1)
        return torch.distributions.Normal(0.0, 1.0).log_prob(x).sum(-1) + total

    return Case(log_prob, lambda c: (torch.randn(sized(c), 4),))


@program
def vector_quantization():
    book, average, counts = torch.randn(5, 3), torch.randn(5, 3), torch.ones(5)

    def quantize(z):
        distance = torch.cdist(z, book) ** 2
        index = distance.argmin(-1)
        hot = F.one_hot(index, 5).to(z.dtype)
        with torch.no_grad():
            counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
            average.mul_(0.9).add_(hot.T @ z, alpha=0.1)
            book.copy_(average / counts[:, None].clamp(min=1e-3))
        q = book[index]
        return z + (q - z).detach(), index, F.mse_loss(z, q.detach())

    return Case(quantize, lambda c: (torch.randn(sized(c), 3, requires_grad=True),), state=[book, average, counts])


@program
def policy_gradient():
    policy = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)

    def step(obs, actions, returns):
        d = torch.distributions.Categorical(logits=policy(obs), validate_args=False)
        loss = -(d.log_prob(actions) * returns).mean() - 0.01 * d.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(6, 4), torch.randint(3, (6,)), torch.randn(6)))


@program
def policy_gradient_with_checked_arguments():
    policy = nn.Linear(4, 3)

    def act(obs):
        d = torch.distributions.Categorical(logits=policy(obs))
        a = d.sample()
        return a, d.log_prob(a), d.entropy()

    return Case(act, lambda c: (torch.randn(6, 4),), state=[policy])


@program
def gaussian_policy_with_squashing():
    net = nn.Linear(4, 4)

    def act(obs):
        mean, log_std = net(obs).chunk(2, -1)
        d = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp(), validate_args=False)
        u = d.rsample()
        a = u.tanh()
        return a, (d.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1)

    return Case(act, lambda c: (torch.randn(sized(c), 4),))


@program
def dqn_with_target_network():
    online, target = nn.Linear(4, 3), nn.Linear(4, 3)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.RMSprop(online.parameters(), lr=0.02)

    def step(s, a, r, s2, done, gamma=0.99):
        with torch.no_grad():
            best = online(s2).argmax(-1, keepdim=True)
            goal = r + gamma * (1 - done) * target(s2).gather(1, best).squeeze(1)
        q = online(s).gather(1, a[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q, goal)
        optimizer.zero_grad()
        loss.backward()
        for p in online.parameters():
            p.grad.data.clamp_(-1, 1)
        optimizer.step()
        return loss.detach(), (q - goal).abs().detach()

    def args(c):
        return (
            torch.randn(5, 4),
            torch.randint(3, (5,)),
            torch.randn(5),
            torch.randn(5, 4),
            torch.randint(2, (5,)).float(),
        )

    return Case(step, args, {3: lambda: target.load_state_dict(online.state_dict())})


@program
def soft_actor_critic():
    actor, q1, q2 = nn.Linear(3, 4), nn.Linear(5, 1), nn.Linear(5, 1)
    log_alpha = torch.zeros((), requires_grad=True)
    oa = torch.optim.Adam(actor.parameters(), lr=0.02)
    oq = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=0.02)
    ot = torch.optim.Adam([log_alpha], lr=0.02)

    def sample(s):
        mean, log_std = actor(s).chunk(2, -1)
        noise = torch.randn_like(mean)
        u = mean + noise * log_std.clamp(-3, 1).exp()
        return u.tanh(), (-0.5 * noise**2 - log_std).sum(-1, keepdim=True) - torch.log1p(-(u.tanh() ** 2) + 1e-6).sum(
            -1, True
        )

    def step(s, a, r, s2):
        with torch.no_grad():
            a2, lp2 = sample(s2)
            sa2 = torch.cat([s2, a2], -1)
            y = r + 0.9 * (torch.min(q1(sa2), q2(sa2)) - log_alpha.exp() * lp2)
        sa = torch.cat([s, a], -1)
        loss_q = F.mse_loss(q1(sa), y) + F.mse_loss(q2(sa), y)
        oq.zero_grad()
        loss_q.backward()
        oq.step()
        a1, lp = sample(s)
        sa = torch.cat([s, a1], -1)
        loss_a = (log_alpha.exp().detach() * lp - torch.min(q1(sa), q2(sa))).mean()
        oa.zero_grad()
        loss_a.backward()
        oa.step()
        loss_t = -(log_alpha * (lp.detach() - 2)).mean()
        ot.zero_grad()
        loss_t.backward()
        ot.step()
        return loss_q.detach(), loss_a.detach(), log_alpha.exp().detach()

    return Case(step, lambda c: (torch.randn(5, 3), torch.rand(5, 2), torch.randn(5, 1), torch.randn(5, 3)))


@program
def ppo_with_clipping():
    actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=0.02, eps=1e-5)
    config = {"clip": 0.2}

    def step(obs, act, old, adv, ret):
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        logp = actor(obs).log_softmax(-1)
        ratio = (logp.gather(1, act[:, None]).squeeze(1) - old).exp()
        clipped = ratio.clamp(1 - config["clip"], 1 + config["clip"])
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = (
            -torch.min(ratio * adv, clipped * adv).mean()
            - 0.01 * entropy
            + 0.5 * F.mse_loss(critic(obs).squeeze(1), ret)
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
        optimizer.step()
        return loss.detach(), ((ratio - 1).abs() > config["clip"]).float().mean()

    def args(c):
        return torch.randn(8, 4), torch.randint(3, (8,)), -torch.rand(8), torch.randn(8), torch.randn(8)

    return Case(step, args, {4: lambda: config.update(clip=0.1)})


@function(lambda c: (torch.randn(6, 2), torch.randn(7, 2), torch.randint(2, (6, 2)).float()))
def generalized_advantage(rewards, values, done, gamma=0.99, lam=0.95):
    out, last = torch.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * values[t + 1] * (1 - done[t]) - values[t]
        last = delta + gamma * lam * (1 - done[t]) * last
        out[t] = last
    return out, out + values[:-1]


@program
def replay_buffer_as_a_ring():
    store, cursor = torch.zeros(5, 3), torch.zeros(1, dtype=torch.long)

    def push_and_sample(x, index):
        store.index_copy_(0, cursor % 5, x)
        cursor.add_(1)
        return store[index], cursor.clone()

    return Case(push_and_sample, lambda c: (torch.randn(1, 3), torch.randint(5, (4,))), state=[store, cursor])


@program
def running_observation_normalizer():
    class Normalizer:
        def __init__(self):
            self.mean, self.var, self.count = torch.zeros(3), torch.ones(3), torch.tensor(1e-4)

        def __call__(self, x):
            m, v, n = x.mean(0), x.var(0, unbiased=False), len(x)
            delta, total = m - self.mean, self.count + n
            self.var = (self.var * self.count + v * n + delta**2 * self.count * n / total) / total
            self.mean = self.mean + delta * n / total
            self.count = total
            return ((x - self.mean) / (self.var + 1e-8).sqrt()).clamp(-5, 5)

    normalizer = Normalizer()
    return Case(lambda x: normalizer(x), lambda c: (torch.randn(sized(c), 3),), state=[normalizer])


@program
def cart_pole_environment():
    state = torch.zeros(4, 4)

    def step(action):
        x, v, angle, w = state.unbind(1)
        force = torch.where(action == 1, 10.0, -10.0)
        temp = (force + 0.05 * w**2 * angle.sin()) / 1.1
        acc = (9.8 * angle.sin() - angle.cos() * temp) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        new = torch.stack([x + 0.02 * v, v + 0.02 * (temp - 0.05 * acc), angle + 0.02 * w, w + 0.02 * acc], 1)
        done = (new[:, 0].abs() > 2.4) | (new[:, 2].abs() > 0.2)
        state.copy_(torch.where(done[:, None], torch.zeros_like(new), new))
        return new, done, (~done).float()

    return Case(step, lambda c: (torch.randint(2, (4,)),), state=[state])


@program
def evolution_strategy():
    center = torch.zeros(4)

    def step(target, sigma=0.1, lr=0.2):
        noise = torch.randn(6, 4, device=center.device)
        fitness = -((center + sigma * noise - target) ** 2).sum(-1)
        ranks = fitness.argsort().argsort().float() / 5 - 0.5
        center.add_((ranks[:, None] * noise).mean(0) * (lr / sigma))
        return fitness.max()

    return Case(step, lambda c: (torch.randn(4),), state=[center])


@program
def langevin_sampling():
    energy = nn.Sequential(nn.Linear(3, 5), nn.Softplus(), nn.Linear(5, 1))

    def sample(x, steps=3, size=0.1):
        for _ in range(steps):
            x = x.detach().requires_grad_()
            g = torch.autograd.grad(energy(x).sum(), x)[0]
            x = x - size * g + (2 * size) ** 0.5 * torch.randn_like(x)
        return x.detach()

    return Case(sample, lambda c: given(torch.randn(4, 3), size=0.1 if c < 4 else 0.02))


@program
def n_body_simulation():
    x, v = torch.randn(4, 2), torch.zeros(4, 2)

    def step(dt):
        d = x[None] - x[:, None]
        r = (d.square().sum(-1) + 0.1).rsqrt()
        v.add_((d * r[..., None] ** 3).sum(1) * dt)
        x.add_(v * dt)
        return x.clone(), 0.5 * v.square().sum()

    return Case(step, lambda c: (0.01 if c < 4 else 0.02,), state=[x, v])


@program
def game_of_life():
    board = (torch.rand(6, 6) > 0.5).to(torch.uint8)

    def step():
        near = sum(torch.roll(board, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))
        board.copy_(((near == 3) | ((near == 2) & (board == 1))).to(torch.uint8))
        return board.sum()

    return Case(step, state=[board])


@program
def heat_equation_with_two_buffers():
    state = {"now": torch.rand(8), "next": torch.zeros(8)}

    def step(k):
        u, out = state["now"], state["next"]
        out[1:-1] = u[1:-1] + k * (u[2:] - 2 * u[1:-1] + u[:-2])
        out[0], out[-1] = u[1], u[-2]
        state["now"], state["next"] = out, u
        return out.sum()

    return Case(step, lambda c: (0.1,), state=[state])


@function(lambda c: (torch.randn(9, 2), torch.randn(3, 2)), rounds=True)
def k_means(points, centers, rounds=3):
    for _ in range(rounds):
        index = torch.cdist(points, centers).argmin(1)
        hot = F.one_hot(index, 3).to(points.dtype)
        centers = (hot.T @ points) / hot.sum(0)[:, None].clamp(min=1)
    return centers, index


@function(lambda c: (torch.rand(4, 5),), rounds=True)
def sinkhorn(cost, epsilon=0.3, steps=5):
    k = torch.exp(-cost / epsilon)
    u = torch.ones(4, device=cost.device) / 4
    for _ in range(steps):
        v = (torch.ones(5, device=cost.device) / 5) / (k.T @ u)
        u = (torch.ones(4, device=cost.device) / 4) / (k @ v)
    return u[:, None] * k * v, (u[:, None] * k * v * cost).sum()


@program
def kalman_filter():
    x, p = torch.zeros(2), torch.eye(2)

    def update(z):
        f = torch.tensor([[1.0, 0.1], [0.0, 1.0]], device=z.device)
        h = torch.tensor([[1.0, 0.0]], device=z.device)
        xp, pp = f @ x, f @ p @ f.T + 0.01 * torch.eye(2, device=z.device)
        s = h @ pp @ h.T + 0.1
        k = pp @ h.T / s
        x.copy_(xp + (k @ (z - h @ xp)))
        p.copy_((torch.eye(2, device=z.device) - k @ h) @ pp)
        return x.clone(), torch.diagonal(p).sqrt()

    return Case(update, lambda c: (torch.randn(1),), state=[x, p])


@program
def power_iteration():
    v = torch.randn(4)

    def step(a):
        w = a @ v
        v.copy_(w / w.norm())
        return v @ (a @ v)

    return Case(step, lambda c: (torch.randn(4, 4),), state=[v])


@function(lambda c: (torch.randn(5, 4), torch.randn(5)), rounds=True)
def ridge_regression(x, y, weight=0.1):
    a = x.T @ x + weight * torch.eye(4, device=x.device, dtype=x.dtype)
    chol = torch.linalg.cholesky(a)
    return torch.cholesky_solve((x.T @ y)[:, None], chol).squeeze(1), torch.logdet(a)


@function(lambda c: (torch.randn(4, 3),), rounds=True)
def decompositions(x):
    q, r = torch.linalg.qr(x)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    return q @ r - x, s, u @ torch.diag(s) @ vh, torch.linalg.pinv(x), torch.linalg.matrix_norm(x)


@function(lambda c: (torch.randn(3, 3),), rounds=True)
def singular_matrix_raises(x):
    x = x.clone()
    x[0] = 0 * x[1]
    return torch.linalg.inv(x)


@program
def inverse_that_fails_later():
    def run(x):
        return torch.linalg.inv(x) - 1

    return Case(run, lambda c: (torch.eye(3) * (2 if c != 4 else 0),), rounds=True)


@function(lambda c: (torch.randn(16), torch.randn(16)), rounds=True)
def spectra(x, y):
    f = torch.fft.rfft(x)
    w = torch.hann_window(8, device=x.device)
    s = torch.stft(x, 8, 4, window=w, return_complex=True)
    conv = torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(y), 16)
    return f.abs(), f.angle(), s.abs(), conv, torch.istft(s, 8, 4, window=w, length=16)


@function(lambda c: (torch.randn(6, 2),))
def pairwise_and_non_maximum(boxes):
    lower, size = boxes, boxes.abs() + 0.5
    upper = lower + size
    inter = (torch.minimum(upper[:, None], upper) - torch.maximum(lower[:, None], lower)).clamp(min=0).prod(-1)
    iou = inter / (size.prod(-1)[:, None] + size.prod(-1) - inter)
    keep = torch.ones(6, dtype=torch.bool, device=boxes.device)
    for i in range(5):
        keep[i + 1 :] &= ~((iou[i, i + 1 :] > 0.3) & keep[i])
    return keep, iou


@function(lambda c: (torch.randn(7, 4), torch.randn(4, 4)))
def viterbi(emissions, transitions):
    score, back = emissions[0], []
    for e in emissions[1:]:
        best, index = (score[:, None] + transitions).max(0)
        score = best + e
        back.append(index)
    path = [score.argmax()]
    for index in reversed(back):
        path.append(index[path[-1]])
    return score.max(), torch.stack(path[::-1])


@function(lambda c: (torch.randn(5, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)))
def conditional_random_field(emissions, transitions):
    alpha = emissions[0]
    for e in emissions[1:]:
        alpha = torch.logsumexp(alpha[:, None] + transitions, 0) + e
    return torch.logsumexp(alpha, 0)


@function(lambda c: (torch.randint(0, 5, (4, 6)), torch.randint(0, 5, (4, 6))))
def edit_like_dynamic_program(a, b):
    n, m = a.shape[1], b.shape[1]
    row = torch.arange(m + 1, device=a.device).expand(len(a), -1).clone()
    for i in range(n):
        new = torch.empty_like(row)
        new[:, 0] = i + 1
        for j in range(m):
            cost = (a[:, i] != b[:, j]).long()
            new[:, j + 1] = torch.minimum(torch.minimum(new[:, j] + 1, row[:, j + 1] + 1), row[:, j] + cost)
        row = new
    return row[:, -1]
