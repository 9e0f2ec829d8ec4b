"""What Python brings: structures, defaults, closures, globals, generators, exceptions, enums, strings, logging, classes."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import math
import types
import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.held_back.case import Case, function, given, program, sized

log = logging.getLogger("held_back")
SCALE = 2.0
TABLE = {"a": 0.5, "b": [1.0, 2.0]}


def x3(call):
    return (torch.randn(3),)


class Batch(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor
    name: str = "train"


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor | None = None
    extra: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 3
    kind: str = "relu"
    rates: tuple[float, ...] = (0.1, 0.2)


class Kind(enum.Enum):
    MEAN = "mean"
    SUM = "sum"


class Flags(enum.IntFlag):
    BIAS = 1
    SCALE = 2


@function(lambda c: (Batch(torch.randn(sized(c), 3), torch.randn(sized(c), 3), "train" if c != 5 else "test"),))
def namedtuple_argument(batch):
    loss = F.mse_loss(batch.inputs, batch.targets)
    return batch._replace(inputs=batch.inputs * 2, name=batch.name + "!"), loss


@function(lambda c: (Output(torch.randn(()), torch.randn(3)),))
def dataclass_in_and_out(o):
    return Output(o.loss * 2, None if o.logits is None else o.logits - 1, {"norm": o.logits.norm(), **o.extra})


@function(
    lambda c: (torch.randn(3), Config(kind="relu" if c < 4 else "tanh", rates=(0.1, 0.2 if c < 6 else 0.3))), calls=9
)
def frozen_configuration(x, config):
    act = {"relu": torch.relu, "tanh": torch.tanh}[config.kind]
    return act(x) * config.rates[1] - config.width


@function(lambda c: ({"x": torch.randn(3), "mask": None, "meta": {"id": 7, "tags": ["a", "b"]}},))
def dictionary_argument(batch):
    batch["y"] = batch["x"] * len(batch["meta"]["tags"])
    return {k: v for k, v in batch.items() if v is not None}


@function(lambda c: (collections.OrderedDict(b=torch.randn(3), a=torch.randn(3)),))
def ordered_dictionary(d):
    return collections.OrderedDict((k, v * i) for i, (k, v) in enumerate(d.items(), 1)), list(d)


@function(lambda c: ([torch.randn(3), (torch.randn(2), [torch.randn(1)])],))
def nested_lists(parts):
    a, (b, [d]) = parts
    return [a * 2, (b - 1, {"d": d, "n": None, "s": "text", "k": 3})]


@function(lambda c: ([torch.randn(3)],))
def appended_to_an_argument(parts):
    parts.append(parts[0] * 2)
    return len(parts)


@function(lambda c: ([torch.randn(3), torch.randn(3)],))
def entries_of_an_argument_exchanged(parts):
    parts[0], parts[1] = parts[1] * 2, parts[0]
    return parts


@function(lambda c: given(torch.randn(3), *[torch.randn(3) for _ in range(2 if c < 4 else 3)], scale=2.0, shift=1))
def star_arguments(x, *others, scale=1.0, **more):
    for o in others:
        x = x * scale - o
    return x + more.get("shift", 0), sorted(more)


@function(lambda c: given(torch.randn(3)) if c < 3 else given(torch.randn(3), power=3))
def default_values(x, power=2, bias=(0.5, 1.5), table=None):
    table = table or {"w": 0.3}
    return x**power * table["w"] + bias[1]


@function(lambda c: (torch.randn(3), None if c % 2 else torch.randn(3)), calls=9)
def none_decides(x, mask):
    if mask is None:
        return x.exp()
    return x * mask, mask


@function(lambda c: (torch.randn(3), "relu" if c < 3 else "gelu", Kind.MEAN if c != 5 else Kind.SUM))
def strings_and_enums(x, act, kind):
    x = getattr(F, act)(x)
    return x.mean() if kind is Kind.MEAN else getattr(x, kind.value)() * 2


@function(lambda c: (torch.randn(3), Flags.BIAS | Flags.SCALE if c < 4 else Flags.BIAS))
def flags_decide(x, flags):
    if flags & Flags.SCALE:
        x = x * 3
    return x + 1 if Flags.BIAS in flags else x


@program
def global_number_changes():
    global SCALE
    SCALE = 2.0

    def set_scale(value):
        global SCALE
        SCALE = value

    return Case(lambda x: x * SCALE - 1, x3, {3: lambda: set_scale(5.0), 5: lambda: set_scale(2.0)}, calls=9)


@program
def global_table_changes():
    TABLE.update(a=0.5, b=[1.0, 2.0])

    def later():
        TABLE["b"].append(3.0)

    return Case(lambda x: x * TABLE["a"] - sum(TABLE["b"]), x3, {3: later, 5: lambda: TABLE.update(a=0.25)}, calls=9)


@program
def closure_number_changes():
    scale = 1.5

    def change(value):
        nonlocal scale
        scale = value

    return Case(lambda x: x * scale - 1, x3, {3: lambda: change(2.5), 6: lambda: change(1.5)}, calls=9)


@program
def counter_in_the_closure():
    count = 0

    def run(x):
        nonlocal count
        count += 1
        return x * count

    return Case(run, x3)


@program
def call_log_beside():
    calls = collections.Counter()

    def run(x):
        y = x * 2 - 1
        calls["run"] += 1
        return y

    return Case(run, x3, state=[calls])


@program
def attribute_of_self_changes():
    class Model:
        def __init__(self):
            self.scale, self.mode = 2.0, "train"
            self.w = torch.randn(3)

        def __call__(self, x):
            return x * self.w * self.scale if self.mode == "train" else x - self.w

    m = Model()
    return Case(
        lambda x: m(x), x3, {3: lambda: setattr(m, "scale", 3.0), 5: lambda: setattr(m, "mode", "eval")}, state=[m]
    )


@program
def property_and_slots():
    class Box:
        __slots__ = ("_gain", "w")

        def __init__(self):
            self.w, self._gain = torch.randn(3), 2

        @property
        def gain(self):
            return self._gain * 0.5

    box = Box()
    return Case(lambda x: x * box.w - box.gain, x3, {4: lambda: setattr(box, "_gain", 6)})


@program
def class_attribute_changes():
    class Layer:
        bias = 0.5

        def run(self, x):
            return x * 2 - self.bias

    layer = Layer()
    return Case(layer.run, x3, {3: lambda: setattr(Layer, "bias", 1.5), 5: lambda: setattr(layer, "bias", 2.5)})


@program
def inherited_method_replaced():
    class Base:
        def scale(self, x):
            return x * 2

    class Child(Base):
        def run(self, x):
            return super().scale(x) - self.shift()

        def shift(self):
            return 1

    child = Child()
    return Case(child.run, x3, {4: lambda: setattr(Child, "shift", lambda self: 3)})


@function(x3)
def generator_inside(x):
    def powers(n):
        y = x
        for _ in range(n):
            y = y * 0.5 - 1
            yield y

    return torch.stack(list(powers(3))), sum(p.sum() for p in powers(2))


@program
def generator_outside():
    source = itertools.count(1)
    return Case(lambda x: x * next(source), x3)


@function(lambda c: ((torch.randn(3) for _ in range(2)),))
def generator_as_argument_consumed(parts):
    return sum(parts)


@function(lambda c: (torch.randn(3), c))
def raises_for_some_numbers(x, n):
    if n in (2, 4):
        raise KeyError(n)
    return x * n


@function(lambda c: (torch.randn(3 if c != 4 else 2),))
def raises_for_a_shape(x):
    if x.shape[0] != 3:
        raise ValueError(f"expected 3 features, got {tuple(x.shape)}")
    return x - 1


@function(lambda c: (torch.randn(3), {"a": 1.0} if c < 4 else {}))
def caught_inside(x, table):
    try:
        x = x * table["a"] - 1
    except KeyError as error:
        x = x - len(str(error))
    finally:
        x = x * 2
    return x


@program
def state_written_before_an_exception():
    seen = torch.zeros(3)

    def run(x, ok):
        seen.add_(x)
        if not ok:
            raise RuntimeError("stopped")
        return seen * 2

    return Case(run, lambda c: (torch.randn(3), c not in (3, 4)), state=[seen])


@function(x3)
def logging_inside(x):
    log.debug("shape %s", x.shape)
    log.info(f"device {x.device}")
    return x * 2


@function(x3)
def warning_inside(x):
    warnings.warn("slow path", UserWarning, stacklevel=2)
    return x * 2 - 1


@function(x3)
def printing_inside(x):
    print("shape", tuple(x.shape))
    return x * 2


@function(x3)
def printing_a_tensor(x):
    print(x.sum())
    return x - 1


@function(x3)
def item_inside(x):
    return x * x.sum().item() - 1


@function(x3)
def branch_on_a_value(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


@function(x3)
def while_on_a_value(x):
    while x.abs().max() > 0.5:
        x = x * 0.5
    return x


@function(lambda c: (torch.randn(3), 3 if c < 4 else 2))
def loop_count_as_argument(x, n):
    for i in range(n):
        x = x * 0.5 - i
    return x


@function(x3)
def assertion_inside(x):
    assert x.dim() == 1, "one dimension"
    torch._assert(x.shape[0] == 3, "three")
    return x - 1


@function(x3)
def itertools_and_functools(x):
    parts = [functools.partial(torch.mul, x)(k) for k in (1, 2, 3)]
    pairs = [a - b for a, b in itertools.combinations(parts, 2)]
    return functools.reduce(lambda a, b: a * 0.5 - b, pairs), math.prod([1, 2, 3]) * x


@program
def cached_helper():
    @functools.lru_cache(maxsize=4)
    def table(n):
        return torch.arange(n).float() / n

    return Case(lambda x: x * table(x.shape[0]).to(x.device) - 1, lambda c: (torch.randn(sized(c)),))


@program
def cached_property_of_a_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        @functools.cached_property
        def scale(self):
            return float(self.w.numel()) / 2

        def forward(self, x):
            return x * self.w * self.scale

    return Case(Model(), x3)


@function(x3)
def context_manager_of_the_user(x):
    @contextlib.contextmanager
    def scaled(k):
        yield x * k

    with scaled(2) as a, contextlib.suppress(ZeroDivisionError), contextlib.ExitStack() as stack:
        stack.callback(lambda: None)
        b = a - 1 / 1
    return b


@function(x3)
def decorators_inside(x):
    def twice(f):
        @functools.wraps(f)
        def inner(*a, **k):
            return f(f(*a, **k))

        return inner

    @twice
    @torch.no_grad()
    def half(v):
        return v * 0.5 - 1

    return half(x), half.__name__


@function(lambda c: (torch.randn(3, requires_grad=True), c % 2 == 0))
def no_grad_as_a_flag(x, train):
    with torch.set_grad_enabled(train):
        y = x * 2 - 1
    return y, y.requires_grad, torch.is_grad_enabled()


@program
def called_under_other_grad_modes():
    w = nn.Parameter(torch.randn(3))

    def run(x):
        return w * x - 1

    return Case(
        run, x3, {3: lambda: torch.set_grad_enabled(False), 5: lambda: torch.set_grad_enabled(True)}, state=[w], calls=7
    )


@function(lambda c: (torch.randn(3), types.SimpleNamespace(rate=0.5 if c < 4 else 0.25, w=torch.randn(3))))
def namespace_as_argument(x, config):
    return x * config.rate - config.w


@function(lambda c: (torch.randn(3), {1, 2} if c < 4 else {1, 2, 3}, frozenset("ab"), range(3), slice(0, 2)))
def plain_containers(x, s, f, r, cut):
    return x[cut] * len(s) - len(f) + sum(r)


@function(lambda c: (torch.randn(4), torch.Size([2, 2]), torch.float64, torch.strided))
def torch_values(x, size, dtype, layout):
    return x.view(size).to(dtype), torch.empty(size, layout=layout).shape, layout


@function(lambda c: (torch.randn(3), torch.relu if c < 4 else torch.sigmoid))
def function_as_argument(x, act):
    return act(x) * 2 - 1


@function(lambda c: (torch.randn(3), (lambda v: v * 2) if c < 4 else (lambda v: v - 2)))
def lambda_as_argument(x, f):
    return f(x) - 1


@program
def module_as_argument():
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]

    def run(model, x):
        return model(x).tanh()

    return Case(run, lambda c: (models[c % 2], torch.randn(2, 3)), state=[models], calls=10)


@program
def optimizer_as_argument():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (model, optimizer, torch.randn(4, 3)))


@function(lambda c: (torch.randn(3), 10**20 if c < 4 else -1, 1 + 2j, b"bytes", True))
def odd_plain_values(x, big, z, raw, flag):
    return x * (2 if big > 0 else 3) - z.real + len(raw), flag, big


@function(lambda c: (torch.randn(3), float("nan"), float("inf"), -0.0 if c > 3 else 0.0))
def odd_floats(x, nan, inf, zero):
    return x * math.copysign(1.0, zero), x.clamp(max=inf), x + nan


@function(x3)
def many_outputs(x):
    return tuple(x * k - 1 for k in range(24)), {f"k{k}": x.sum() * k for k in range(6)}


@function(x3)
def nothing_returned(x):
    x.mul_(2)


@function()
def no_arguments():
    return torch.arange(4) * 2 - 1, "constant", 3


@function(lambda c: (1, 2.5, "s"))
def no_tensors(a, b, s):
    return a * b, s * a


@function(x3)
def walrus_and_comprehensions(x):
    if (n := x.shape[0]) > 2:
        x = x * n
    return {k: (y := x * k) - y.sum() for k in (1, 2)}, [x[i] for i in range(n) if i % 2 == 0]


@function(lambda c: (torch.randn(3), {"type": "affine", "k": 2.0} if c < 4 else {"type": "power", "k": 3}))
def match_statement(x, layer):
    match layer:
        case {"type": "affine", "k": k}:
            return x * k - 1
        case {"type": "power", "k": k}:
            return x**k
    return x


@function(x3)
def recursion(x):
    def tree(v, depth):
        return v if depth == 0 else tree(v * 0.5, depth - 1) - tree(v + 1, depth - 1) * 0.3

    return tree(x, 3)


@program
def weak_reference_inside():
    import weakref

    model = nn.Linear(3, 2)
    ref = weakref.ref(model)
    return Case(lambda x: ref()(x) - 1, lambda c: (torch.randn(2, 3),), state=[model])


@program
def deque_of_tensors():
    frames = collections.deque([torch.zeros(3) for _ in range(3)], maxlen=3)

    def run(x):
        frames.append(x)
        return torch.stack(list(frames)).mean(0)

    return Case(run, x3, state=[frames])


@program
def registry_of_functions():
    registry = {}

    def register(name):
        return lambda f: registry.setdefault(name, f)

    @register("scale")
    def scale(x):
        return x * 2

    @register("shift")
    def shift(x):
        return x - 3

    def run(x, names):
        for name in names:
            x = registry[name](x)
        return x

    return Case(run, lambda c: (torch.randn(3), ("scale", "shift") if c < 4 else ("shift", "scale")))


@program
def callable_object_with_state():
    class Average:
        def __init__(self):
            self.total, self.n = torch.zeros(3), 0

        def __call__(self, x):
            self.total = self.total + x
            self.n += 1
            return self.total / self.n

    average = Average()
    return Case(average.__call__, x3, state=[average])


@program
def flag_set_once():
    class Lazy:
        ready = False

        def run(self, x):
            if not self.ready:
                self.offset = torch.ones(3, device=x.device) * 0.5
                self.ready = True
            return x * 2 - self.offset

    lazy = Lazy()
    return Case(lazy.run, x3, state=[lazy])


@function(lambda c: (torch.randn(3),))
def time_asked(x):
    import time

    start = time.perf_counter()
    y = x * 2
    return y, time.perf_counter() > start


@function(lambda c: (torch.randn(3), torch.randn(3)))
def operators_of_python(x, y):
    a = -x + 3 - y * 2 / (y.abs() + 1) ** 2
    a -= y
    a *= 1.5
    b = (x > y) & (x != 0) | ~(y >= x)
    return a, b, divmod(7, 2), abs(x), round(2.6) * x, x // 0.5, x % 0.3, 2**x, 1 - x


@function(lambda c: (torch.randn(3),))
def type_questions(x):
    facts = (
        isinstance(x, torch.Tensor),
        x.is_floating_point(),
        x.dtype.is_complex,
        x.device.type,
        x.layout is torch.strided,
    )
    return x * sum(f is True for f in facts), str(x.dtype), x.is_leaf, x.ndim, hasattr(x, "grad"), torch.is_tensor(x)


@function(lambda c: (torch.randn(3), torch.randn(3)))
def set_of_results_refused(x, y):
    return {"k": (x, y)}.values().__len__(), [*zip([x], [y], strict=True)]


@function(lambda c: (torch.randn(3),))
def defaultdict_result(x):
    d = collections.defaultdict(list)
    d["a"].append(x * 2)
    d["b"].append(x - 1)
    return dict(d)


@function(lambda c: (torch.randn(3),))
def unusual_result_type(x):
    return collections.deque([x * 2]), {x.shape[0]}


@function(lambda c: (torch.randn(3),))
def tensor_attributes(x):
    x.note = "kept"
    y = x * 2
    y.tag = 3
    return y, x.note
