"""Random values of random worlds, as text: how each is made, how a program may read it, and how a user may change it.

In a text, `@` stands for the place of the value: `num(@.get("a"))` of the value at `root.g0` is `num(root.g0.get("a"))`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

KEYS = ("a", "bb", "ccc", "gain")
NUMBERS = (
    "2.0",
    "3.0",
    "0.5",
    "-1.5",
    "0.0",
    "-0.0",
    "1",
    "0",
    "1.0",
    "True",
    "False",
    "np.float64(2.5)",
    "np.float64(-0.0)",
)
OTHERS = (
    *("None", "'ab'", "'c'", "np.float32(0.5)", "np.int64(3)", "np.bool_(True)", "Fraction(1, 3)", "Decimal('0.25')"),
    *(
        "Mode.ADD",
        "Mode.TAKE",
        "(1.0, 2)",
        "(1.0, 3)",
        "1 + 2j",
        "range(3)",
        "slice(0, 2)",
        "b'ab'",
        "torch.float64",
        "int",
    ),
)


@dataclass(frozen=True)
class Value:
    """`setup` comes before, on lines of its own. `reads` are numbers, `blocks` statements that change `x`."""

    text: str
    setup: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


@dataclass
class Maker:
    """Makes values from one stream of random numbers; names are never used twice."""

    chance: random.Random
    count: int = 0
    kinds: tuple[Callable[[Maker, int], Value], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = (plain, plain, mapping, mapping, sequence, array, a_set, record, instance, instance, namespace)
        self.kinds += (function, function, module, tensor, weak, context, local, lib)

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def literal(self) -> str:
        return self.chance.choice(NUMBERS if self.chance.random() < 0.6 else OTHERS)

    def number(self) -> str:
        return self.chance.choice(("2.0", "3.0", "0.5", "-1.5", "0.25"))

    def value(self, depth: int) -> Value:
        """Of any kind; deep down only a plain one."""
        if depth <= 0 or self.chance.random() < 0.3:
            return plain(self, 0)
        return self.chance.choice(self.kinds)(self, depth)

    def at(self, child: Value, place: str, *, is_settable: bool = True) -> Value:
        """A value as it stands in another, at `place`."""
        moved = [
            tuple(text.replace("@", place) for text in part) for part in (child.reads, child.blocks, child.changes)
        ]
        changes = moved[2]
        if is_settable and not changes:  # a plain value
            changes = tuple(f"{place} = {self.literal()}" for _ in range(2))
        elif is_settable:  # another one that is the same, and seldom something else altogether
            changes += (f"{place} = {self.literal() if self.chance.random() < 0.25 else child.text}",)
        return Value(child.text, child.setup, moved[0], moved[1], changes)


def _joined(text: str, children: list[Value], own: Value) -> Value:
    return Value(
        text,
        (*(line for child in children for line in child.setup), *own.setup),
        (*own.reads, *(read for child in children for read in child.reads)),
        (*own.blocks, *(block for child in children for block in child.blocks)),
        (*own.changes, *(change for child in children for change in child.changes)),
    )


def plain(make: Maker, _: int) -> Value:
    """A number or another small value."""
    reads = (
        "num(@)",
        "(1.0 if @ is None else 2.0)",
        "(1.0 if isinstance(@, str) else 3.0)",
        "(4.0 if @ == 2.0 else 0.5)",
    )
    return Value(make.literal(), (), reads)


_DICTS = (
    "{}",
    "{}",
    "{}",
    "OrderedDict({})",
    "UserDict({})",
    "ChainMap({{}}, {})",
    "defaultdict(float, {})",
    "Table({})",
)


def mapping(make: Maker, depth: int) -> Value:
    """A dict of some kind, with values of any kind."""
    keys = make.chance.sample(KEYS, make.chance.randint(0, 3))
    children = [make.at(make.value(depth - 1), f'@["{key}"]') for key in keys]
    text = "{" + ", ".join(f'"{key}": {child.text}' for key, child in zip(keys, children, strict=True)) + "}"
    key, other = make.chance.choice(KEYS), make.chance.choice(KEYS)
    own = Value(
        "",
        (),
        (
            f'num(@.get("{key}", 0.7))',
            f'num(@.get("{key}"))',
            f'(num(@["{key}"]) if "{key}" in @ else 0.4)',
            f'num(dict(@).get("{key[0]}" + "{key[1:]}"))',
            f'num({{**@}}.get("{key}", 0.3))',
            "len(@)",
            "sum(num(v) for v in @.values())",
            "sum(num(v) * len(k) for k, v in @.items())",
            "num(next(iter(@.values()), 0.6))",
            "len(sorted(@)[-1:])",
            f'(1.0 if "{key}" in @ else 2.0)',
            "(1.5 if @ else 2.5)",
            f'num(copy.copy(@).get("{other}"))',
            f'attempt(lambda: @["{key}"])',
        ),
        (
            "for k, v in @.items():\n    x = x * 0.5 - num(v) - len(k)",
            "for k in @:\n    x = x * 0.5 - num(@[k])",
            "for k in sorted(@):\n    x = x * 0.5 - num(@[k])",
            "for v in list(@.values())[::-1]:\n    x = x * 0.5 - num(v)",
            "x = named(x, **@)",
        ),
        (
            f'@["{key}"] = {make.literal()}',
            f'@["{other}"] = {make.literal()}',
            f'@["{key}"] = {make.literal()}',
            f'@.pop("{key}", None)',
            "@.clear()",
            f'@["{key}"] = @.pop("{key}", 1.0)',
            f"@.update({other}={make.literal()})",
            f'@.setdefault("{other}", {make.literal()})',
        ),
    )
    return _joined(make.chance.choice(_DICTS).format(text), children, own)


_LISTS = ("[{}]", "[{}]", "[{}]", "deque([{}])", "UserList([{}])", "[{}] + [1.5] * 20")


def sequence(make: Maker, depth: int) -> Value:
    """A list of some kind, with values of any kind."""
    children = [make.at(make.value(depth - 1), f"@[{k}]") for k in range(make.chance.randint(0, 3))]
    text = make.chance.choice(_LISTS).format(", ".join(child.text for child in children))
    reads = (
        *("len(@)", "sum(num(v) for v in @)", "(num(@[-1]) if @ else 0.3)", "(num(@[0]) if len(@) else 0.8)"),
        *("(1.0 if 2.0 in @ else 2.0)", "num(next(iter(@), 0.9))", "sum(k * num(v) for k, v in enumerate(@))"),
        *("attempt(lambda: @[1])", "sum(map(num, @))", "len([*@, 1.0])", "(2.0 if any(v is None for v in @) else 1.0)"),
    )
    blocks = ("for v in @:\n    x = x * 0.5 - num(v)", "for v in reversed(@):\n    x = x * 0.5 - num(v)")
    lit = make.literal
    changes = (
        f"@.append({lit()})",
        f"@.append({lit()})",
        "@.pop()",
        "@.clear()",
        "@.reverse()",
        f"@.insert(0, {lit()})",
    )
    changes = (*changes, f"@[0] = {lit()}", f"@[-1] = {lit()}", f"@.extend([{make.number()}] * 18)")
    return _joined(text, children, Value("", (), reads, blocks, changes))


def array(make: Maker, _: int) -> Value:
    """Numbers packed by NumPy or by `array`."""
    numbers = ", ".join(make.number() for _ in range(3))
    text = make.chance.choice(("np.array([{}])", "np.array([{}], dtype=np.float32)", "array('d', [{}])")).format(
        numbers
    )
    reads = ("float(@[0])", "float(sum(@))", "float(max(@))", "len(@)", "float(@[-1])", "float(np.asarray(@).mean())")
    blocks = ("for v in @:\n    x = x * 0.5 - float(v)", "x = x - torch.tensor(@.tolist()).sum()")
    return Value(
        text, (), reads, blocks, (f"@[0] = {make.number()}", f"@[2] = {make.number()}", f"@[1] = {make.number()}")
    )


def a_set(make: Maker, _: int) -> Value:
    """A set of names."""
    names = ", ".join(repr(key) for key in make.chance.sample(KEYS, make.chance.randint(1, 3)))
    key, other = make.chance.choice(KEYS), make.chance.choice(KEYS)
    reads = (
        f"(1.0 if {key!r} in @ else 2.0)",
        "len(@)",
        "len(''.join(sorted(@)))",
        "(1.0 if @ else 2.0)",
        f"len(@ & {{{key!r}}})",
    )
    changes = (
        f"@.add({key!r})",
        f"@.add({other!r})",
        f"@.discard({key!r})",
        "@.clear()",
        f"@.update([{other!r}, {key!r}])",
    )
    return Value(f"{{{names}}}", (), reads, (), changes)


def record(make: Maker, depth: int) -> Value:
    """A tuple, with values of any kind."""
    is_named = make.chance.random() < 0.5
    places = ("@.first", "@.second") if is_named else ("@[0]", "@[1]")
    children = [make.at(make.value(depth - 1), place, is_settable=False) for place in places]
    text = ("Pair({})" if is_named else "({})").format(", ".join(child.text for child in children))
    reads = (
        "num(@[0])",
        "num(@[-1])",
        "sum(num(v) for v in @)",
        "(num(@._asdict()['first']) if hasattr(@, '_asdict') else 0.2)",
    )
    return _joined(text, children, Value("", (), reads, ("first, second = @\nx = x * num(first) - num(second)",)))


_CLASS = """class {base}:
    rate = {rate}
    def __init__(self):
        self.a = {a}
        self.mode = {mode}
    def total(self, k=2.0, *, s=1.0):
        return num(self.a) * k - num(self.rate) * s
    def moded(self):
        return 1.0 if self.mode == "on" else num(self.mode)
    @property
    def prop(self):
        return num(self.a) - 0.5 * num(self.rate)
    @staticmethod
    def static():
        return num(SHARED) + 0.5
    @classmethod
    def of_class(cls):
        return num(cls.rate) - 0.25
    def __len__(self):
        return 2 if self.mode else 1
    def __call__(self, k):
        return self.total(k)
class {name}({base}):
    def total(self, k=2.0, **more):
        return super().total(k, **more) - 0.5
class {other}({base}):
    rate = {other_rate}"""
_SLOTTED = """class {name}:
    __slots__ = ("a", "extra", "__weakref__")
    def __init__(self):
        self.a = {a}
    def total(self, k=2.0):
        return num(self.a) * k - num(getattr(self, "extra", 1.5))"""
_ATTRIBUTES = (
    *(
        'num(getattr(@, "extra", 0.7))',
        'num(getattr(@, "ex" + "tra", None))',
        "(num(@.extra) if hasattr(@, 'extra') else 0.6)",
    ),
    *("attempt(lambda: @.extra)", "num(@.a)", "num(getattr(@, f\"{'a'}\"))", "num(attrgetter('a')(@))"),
)


def instance(make: Maker, depth: int) -> Value:
    """An object of a class of one's own, in a slot of which stands a value of any kind."""
    name, lit = make.name("C"), make.literal
    child = make.at(make.value(depth - 1), "@.a")
    if make.chance.random() < 0.2:
        text = _SLOTTED.format(name=name, a=child.text)
        slotted = Value(
            "", (text,), (*_ATTRIBUTES, "@.total()"), (), (f"@.extra = {lit()}", "del @.extra", f"@.a = {lit()}")
        )
        return _joined(f"{name}()", [child], slotted)
    base, other = f"{name}Base", f"{name}Other"
    text = _CLASS.format(
        name=name,
        base=base,
        other=other,
        a=child.text,
        rate=lit(),
        other_rate=lit(),
        mode=make.chance.choice(("'on'", lit())),
    )
    reads = (
        *(
            *_ATTRIBUTES,
            "@.total()",
            "@.total(3.0, s=0.5)",
            "@.moded()",
            "@.prop",
            "@.static()",
            "@.of_class()",
            "len(@)",
        ),
        *(
            "num(@.rate)",
            "num(type(@).rate)",
            f"num({base}.rate)",
            "@(1.5)",
            f"{name}().total()",
            "num(vars(@)['mode'])",
        ),
        *(
            "sum(num(v) * len(k) for k, v in vars(@).items())",
            "len(vars(@))",
            f"(1.0 if isinstance(@, {name}) else 2.0)",
        ),
        *(
            "getattr(@, 'to' + 'tal')()",
            f"{base}.total(@)",
            "(1.0 if 'extra' in vars(@) else 2.0)",
            "methodcaller('total')(@)",
        ),
    )
    changes = (
        *(
            f"@.extra = {lit()}",
            "del @.extra",
            f"@.a = {lit()}",
            f"@.mode = {lit()}",
            "@.mode = 'off'",
            f"@.rate = {lit()}",
        ),
        *(
            "del @.rate",
            f"{base}.rate = {lit()}",
            f"{name}.rate = {lit()}",
            f"{name}.extra = {lit()}",
            f"del {name}.rate",
        ),
        *(f"{base}.total = lambda self, k=2.0, **more: num(self.rate) * k - {make.number()}", f"@.__class__ = {other}"),
        *(
            f"@.total = lambda k=2.0, **more: k - {make.number()}",
            "del @.total",
            f"{base}.total.__defaults__ = ({lit()},)",
        ),
        *(f"{base}.prop = property(lambda self: num(self.mode) - {make.number()})", f"@.__class__ = {name}"),
        *(f"{base}.static = staticmethod(lambda: {make.number()})", f"{name}.moded = lambda self: {make.number()}"),
        *(f"vars(@)['mode'] = {lit()}", f"{name}.total = lambda self, k=2.0, **more: {make.number()} - k"),
        *(
            f"{name}.of_class = classmethod(lambda cls: num(cls.rate) * {make.number()})",
            f"{base}.total.__kwdefaults__ = {{'s': 3.0}}",
        ),
        *(f"{base}.__len__ = lambda self: 3", f"{base}.__call__ = lambda self, k: k - {make.number()}"),
    )
    return _joined(f"{name}()", [child], Value("", (text,), reads, (), changes))


def namespace(make: Maker, depth: int) -> Value:
    """A bag of attributes."""
    child = make.at(make.value(depth - 1), "@.a")
    text = f"{make.chance.choice(('SimpleNamespace', 'Namespace'))}(a={child.text})"
    reads = (
        *_ATTRIBUTES,
        "sum(num(v) * len(k) for k, v in vars(@).items())",
        "len(vars(@))",
        "num(vars(@).get('extra'))",
    )
    changes = (
        f"@.extra = {make.literal()}",
        "del @.extra",
        f"vars(@).update(extra={make.literal()})",
        "vars(@).clear()",
    )
    return _joined(text, [child], Value("", (), reads, ("x = named(x, **vars(@))",), changes))


_FUNCTION = """def make_{name}():
    cell = {cell}
    def {name}(k={k}, *, s={s}):
        return num(k) * 0.5 - num(s) - num(cell) * 0.25 - num(getattr({name}, "mark", 0.5))
    def set_{name}(value):
        nonlocal cell
        cell = value
    return {name}, set_{name}
{name}, set_{name} = make_{name}()"""


def function(make: Maker, _: int) -> Value:
    """A function with defaults and a closure, bare or in a partial."""
    name, lit = make.name("f"), make.literal
    text = _FUNCTION.format(name=name, cell=lit(), k=lit(), s=lit())
    changes = (
        *(f"{name}.__defaults__ = ({lit()},)", f"{name}.__kwdefaults__ = {{'s': {lit()}}}", f"set_{name}({lit()})"),
        *(
            f"{name}.__kwdefaults__['s'] = {lit()}",
            f"{name}.mark = {lit()}",
            f"set_{name}({lit()})",
            f"del {name}.mark",
        ),
    )
    reads = (
        "@()",
        f"@({make.number()})",
        "(@() if callable(@) else 0.5)",
        f"@(s={make.number()})",
        "num(@.__name__ if hasattr(@, '__name__') else 1)",
    )
    if make.chance.random() < 0.4:
        more = (f"@.keywords['s'] = {lit()}", "@.keywords.clear()")
        return Value(f"partial({name}, s={lit()})", (text,), reads, (), (*changes, *more))
    return Value(name, (text,), reads, (), changes)


def module(make: Maker, _: int) -> Value:
    """A module of torch's, within one of one's own."""
    lit = make.literal
    reads = (
        *("(1.0 if @.training else 2.0)", "num(@.scale)", "len(list(@.parameters()))", "len(list(@.buffers()))"),
        *("num(getattr(@, 'extra', 0.5))", "len(list(@.children()))", "sum(p.numel() for p in @.parameters())"),
        *(
            "(1.0 if next(@.parameters()).requires_grad else 2.0)",
            "len(@.state_dict())",
            "(1.0 if @.inner.training else 3.0)",
        ),
        *("next(@.parameters()).dtype.itemsize", "num(@.drop.p)", "len([n for n, _ in @.named_modules()])"),
    )
    blocks = (
        *(
            "x = @(x)",
            "x = @.encode(x)",
            "x = x - @.mask",
            "x = F.dropout(x, 0.5, @.training)",
            "x = F.dropout(x, @.drop.p)",
        ),
        *(
            "x = x.to(next(@.parameters()).dtype).float() * 2 - 1",
            "for b in @.buffers():\n    x = x * 0.5 - b.float().mean()",
        ),
        *("for p in @.parameters():\n    x = x * 0.5 - p.float().mean()", "x = @.drop(x)"),
    )
    changes = (
        *(
            "@.eval()",
            "@.train()",
            f"@.scale = {lit()}",
            f"@.extra = {lit()}",
            "@.inner.weight.data.mul_(0.5)",
            "del @.extra",
        ),
        *("@.inner.weight = nn.Parameter(torch.full((2, 2), 0.3))", "@.inner.requires_grad_(False)", "@.inner.eval()"),
        *(
            "@.register_buffer('more', torch.full((2,), 0.7))",
            "@.inner = nn.Linear(2, 2, bias=False)",
            "@.double()",
            "@.float()",
        ),
        *("@.inner.register_forward_hook(lambda m, a, r: r * 0.5 - num(SHARED))", f"@.drop.p = {make.number()[-3:]}"),
        *(
            "@.inner.bias = None",
            "@.mask = torch.full((2,), 0.6)",
            "@.mask.fill_(0.8)",
            "@.forward = lambda x: x * 0.25 - 1",
        ),
        *(
            "@.register_parameter('late', nn.Parameter(torch.full((2,), 0.9)))",
            "@.inner.forward = lambda x: x * 0.75 - 1",
        ),
    )
    return Value("Net()", (), reads, blocks, changes)


def tensor(make: Maker, _: int) -> Value:
    """A tensor, of which more or less is read."""
    reads = (
        *("(@.shape[0] if @ is not None else 5)", "(1.0 if @ is None else 2.0)", "attempt(lambda: @.dim())"),
        *(
            "(1.0 if @ is SAME else 2.0)",
            "(1.0 if getattr(@, 'requires_grad', None) else 2.0)",
            "num(getattr(@, 'mark', 0.5))",
        ),
        *(
            "(1.0 if getattr(@, 'dtype', None) is torch.float32 else 2.0)",
            "(1.0 if isinstance(@, nn.Parameter) else 2.0)",
        ),
    )
    blocks = ("x = x - (@ if isinstance(@, torch.Tensor) else 0.5)", "x = x * 2 - tensor_or(@)")
    changes = (
        *(
            "@.fill_(0.7)",
            "@.mul_(0.5)",
            f"@.mark = {make.literal()}",
            "@.requires_grad_()",
            "@ = torch.full((2,), 0.4)",
        ),
        *(
            "@ = torch.full((1,), 0.3)",
            "@ = torch.full((2,), 2, dtype=torch.int64)",
            "@ = None",
            "@ = SAME",
            "@ = torch.ones(2, 2)",
        ),
    )
    return Value(make.chance.choice(("torch.full((2,), 1.5)", "SAME", "torch.ones(2, 2)")), (), reads, blocks, changes)


def weak(make: Maker, _: int) -> Value:
    """A weak reference."""
    name, lit = make.name("kept"), make.literal
    setup = f"{name} = [Plain({lit()}), Plain({lit()})]"
    reads = ("(num(@().a) if @() is not None else 0.6)", "(1.0 if @() is None else 2.0)")
    changes = (f"{name}[0].a = {lit()}", f"{name}.pop(0)", f"@ = weakref.ref({name}[-1])", f"{name}[0].a = {lit()}")
    return Value(f"weakref.ref({name}[0])", (setup,), reads, (), changes)


def context(make: Maker, _: int) -> Value:
    """A context variable."""
    name = make.name("variable")
    changes = (f"{name}.set({make.literal()})", f"{name}.set({make.literal()})")
    return Value(
        name, (f"{name} = contextvars.ContextVar({name!r})",), ("num(@.get(0.5))", "num(@.get(None))"), (), changes
    )


def local(make: Maker, _: int) -> Value:
    """Attributes of a thread."""
    reads = ("num(getattr(@, 'a', 0.5))", "attempt(lambda: @.a)", "(1.0 if hasattr(@, 'a') else 2.0)")
    return Value("threading.local()", (), reads, (), (f"@.a = {make.literal()}", f"@.a = {make.literal()}", "del @.a"))


def lib(make: Maker, _: int) -> Value:
    """A module of Python."""
    lit = make.literal
    reads = (
        *(
            "num(lib.GAIN)",
            "lib.gain()",
            "num(getattr(lib, 'GA' + 'IN', 0.5))",
            "num(vars(lib).get('GAIN'))",
            "lib.Thing().value()",
        ),
        *(
            "num(lib.TABLE.get('a'))",
            "sum(num(v) for v in lib.TABLE.values())",
            "num(lib.Thing.rate)",
            "lib.indirect()",
        ),
        *(
            "num(getattr(lib, 'EXTRA', 0.5))",
            "num(@.GAIN)",
            "@.gain()",
            "attempt(lambda: lib.EXTRA)",
            "num(globals().get('EXTRA', 0.5))",
        ),
        *("num(globals()['SH' + 'ARED'])", "num(SHARED)", "attempt(lambda: EXTRA)"),
    )
    changes = (
        *(
            f"lib.GAIN = {lit()}",
            f"lib.gain = lambda: {make.number()}",
            f"lib.TABLE['a'] = {lit()}",
            f"lib.Thing.rate = {lit()}",
        ),
        *(f"lib.TABLE['b'] = {lit()}", f"lib.EXTRA = {lit()}", "lib.TABLE = {}", f"lib.gain.__defaults__ = ({lit()},)"),
        *(f"lib.Thing.value = lambda self: {make.number()}", f"SHARED = {lit()}", f"EXTRA = {lit()}", "del EXTRA"),
    )
    return Value("lib", (), reads, (), changes)
