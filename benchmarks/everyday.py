"""Programs as their authors write them, for `benchmarks.as_written`: nothing in them is there for treeplay's sake.

Each makes its parts and gives a function of the number of a call. `wrap` is what a user would put around the one thing that
is to be faster: nothing, `torch.compile`, `treeplay.jit`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Wrap = Callable[[Any], Any]
Call = Callable[[int], Any]
PROGRAMS: dict[str, Callable[[Wrap, torch.device], Call]] = {}
WIDTH, LENGTH = 32, 40


def program(name: str) -> Callable[[Callable[[Wrap, torch.device], Call]], Callable[[Wrap, torch.device], Call]]:
    """Enter a program under a name that says what is special about it."""

    def enter(make: Callable[[Wrap, torch.device], Call]) -> Callable[[Wrap, torch.device], Call]:
        PROGRAMS[name] = make
        return make

    return enter


class Text(nn.Module):
    """A small transformer with learned positions, of which it takes as many as there are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.register_buffer("positions", torch.randn(1, LENGTH, WIDTH))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 2, 64, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions[:, : tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        found: torch.Tensor = self.head(x)
        return found


class Batch:
    """What a data loader's collate function makes for each call."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y


def mlp(device: torch.device, outputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)).to(device)


def batches(device: torch.device, count: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(16, 8, device=device), torch.randint(4, (16,), device=device)) for _ in range(count)]


@program("40 sequence lengths")
def lengths(wrap: Wrap, device: torch.device) -> Call:
    model = wrap(Text().to(device).eval())
    texts = [torch.randint(64, (2, 1 + number * 7 % LENGTH), device=device) for number in range(LENGTH)]

    def call(number: int) -> Any:
        with torch.no_grad():
            return model(texts[number % LENGTH])

    return call


@program("the step's number among the arguments")
def numbered(wrap: Wrap, device: torch.device) -> Call:
    model = mlp(device, outputs=8)

    def denoise(x: torch.Tensor, t: int) -> torch.Tensor:
        with torch.no_grad():
            return x - model(x) * (1.0 / (t + 1))

    step, parts = wrap(denoise), batches(device)
    return lambda number: step(parts[number % 8][0], number % 1000)


@program("an object for each batch")
def objects(wrap: Wrap, device: torch.device) -> Call:
    model = mlp(device)

    def loss(batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            return F.cross_entropy(model(batch.x), batch.y)

    evaluate, parts = wrap(loss), batches(device)
    return lambda number: evaluate(Batch(*parts[number % 8]))


@program("decoding with a growing cache")
def growing(wrap: Wrap, device: torch.device) -> Call:
    project, head = nn.Linear(WIDTH, 3 * WIDTH).to(device), nn.Linear(WIDTH, WIDTH).to(device)

    def token(x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            query, key, value = project(x).chunk(3, -1)
            keys, values = torch.cat([keys, key], 1), torch.cat([values, value], 1)
            return head(F.scaled_dot_product_attention(query, keys, values)), keys, values

    step, start = wrap(token), torch.randn(1, 1, WIDTH, device=device)
    empty = torch.zeros(1, 0, WIDTH, device=device)
    state = [start, empty, empty]

    def call(number: int) -> Any:
        if number % LENGTH == 0:
            state[:] = start, empty, empty
        state[:] = step(*state)
        return state[0]

    return call


@program("decoding with a cache of one size")
def static(wrap: Wrap, device: torch.device) -> Call:
    project, head = nn.Linear(WIDTH, 3 * WIDTH).to(device), nn.Linear(WIDTH, WIDTH).to(device)
    keys, values = torch.zeros(2, 1, LENGTH, WIDTH, device=device).unbind()
    places = torch.arange(LENGTH, device=device)

    def token(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            query, key, value = project(x).chunk(3, -1)
            keys.index_copy_(1, position, key)
            values.index_copy_(1, position, value)
            return head(F.scaled_dot_product_attention(query, keys, values, (places <= position)[None, None]))

    step, start = wrap(token), torch.randn(1, 1, WIDTH, device=device)
    return lambda number: step(start, places[number % LENGTH].view(1))


@program("PPO's update, with distributions")
def ppo(wrap: Wrap, device: torch.device) -> Call:
    actor, critic = mlp(device), mlp(device, outputs=1)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4)

    def step(obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        policy = torch.distributions.Categorical(logits=actor(obs))
        ratio = (policy.log_prob(action) + 1.3).exp()
        advantage = (obs.sum(1) - obs.sum(1).mean()) / (obs.sum(1).std() + 1e-8)
        loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
        loss = loss + 0.5 * (critic(obs).flatten() - advantage).square().mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        return loss.detach()

    update, parts = wrap(step), batches(device)
    return lambda number: update(*parts[number % 8])


@program("a training step, the learning rate by a schedule")
def scheduled(wrap: Wrap, device: torch.device) -> Call:
    model = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    train, parts = wrap(step), batches(device)

    def call(number: int) -> Any:
        loss = train(*parts[number % 8])
        schedule.step()
        return loss

    return call


@program("a model that a trainer differentiates")
def trainer(wrap: Wrap, device: torch.device) -> Call:
    model = wrap(Text().to(device).train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    texts = [torch.randint(64, (2, 16), device=device) for _ in range(8)]

    def call(number: int) -> Any:
        tokens = texts[number % 8]
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return call


@program("a server's pool of four threads")
def pool(wrap: Wrap, device: torch.device) -> Call:
    model = wrap(mlp(device).eval())
    parts, threads = batches(device), ThreadPoolExecutor(4)

    def answer(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model(x)
            return found

    return lambda number: torch.stack([*threads.map(answer, [parts[(number + at) % 8][0] for at in range(4)])])


@program("inference mode, and a view of a buffer")
def inference(wrap: Wrap, device: torch.device) -> Call:
    model = wrap(Text().to(device).eval())
    texts = [torch.randint(64, (2, 16), device=device) for _ in range(8)]

    def call(number: int) -> Any:
        with torch.inference_mode():
            return model(texts[number % 8])

    return call


@program("batch norm under bfloat16 autocast")
def autocast(wrap: Wrap, device: torch.device) -> Call:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    model = wrap(model.to(device).eval())
    images = [torch.randn(4, 1, 8, 8, device=device) for _ in range(8)]

    def call(number: int) -> Any:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            return model(images[number % 8])

    return call


@program("batches that are NumPy arrays")
def arrays(wrap: Wrap, device: torch.device) -> Call:
    model = mlp(device)

    def act(batch: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad():
            x = torch.as_tensor(batch["x"], dtype=torch.float32, device=device)
            return model(x).argmax(-1)

    step = wrap(act)
    parts = [{"x": x.double().cpu().numpy()} for x, _ in batches(device)]
    return lambda number: step(parts[number % 8])
