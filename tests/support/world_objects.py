"""Random objects of random worlds, as text: instances, functions, modules, tensors, and what else a program may reach."""

from __future__ import annotations

from support.world_values import Kind, Maker, Value, mapping, members, packed, plain, record, sequence

_CLASS = """class NAMEBase:
    rate = LIT
    def __init__(self):
        self.a = VALUE
        self.mode = MODE
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
class NAME(NAMEBase):
    def total(self, k=2.0, **more):
        return super().total(k, **more) - 0.5
class NAMEOther(NAMEBase):
    rate = LIT"""
_SLOTTED = """class NAME:
    __slots__ = ("a", "extra", "__weakref__")
    def __init__(self):
        self.a = VALUE
    def total(self, k=2.0):
        return num(self.a) * k - num(getattr(self, "extra", 1.5))"""
_ATTRIBUTES = """
    num(@.a)
    num(getattr(@, f"{'a'}"))
    num(attrgetter("a")(@))
    num(getattr(@, "extra", 0.7))
    num(getattr(@, "ex" + "tra", None))
    (num(@.extra) if hasattr(@, "extra") else 0.6)
    attempt(lambda: @.extra)
"""
_METHODS = """
    @.total()
    @.total(3.0, s=0.5)
    getattr(@, "to" + "tal")()
    methodcaller("total")(@)
    NAMEBase.total(@)
    NAME().total()
    @.moded()
    @.prop
    @.static()
    @.of_class()
    @(1.5)
    len(@)
    num(@.rate)
    num(type(@).rate)
    num(NAMEBase.rate)
    num(vars(@)["mode"])
    len(vars(@))
    (1.0 if "extra" in vars(@) else 2.0)
    sum(num(v) * len(k) for k, v in vars(@).items())
    (1.0 if isinstance(@, NAME) else 2.0)
"""
_ALTERATIONS = """
    @.a = LIT
    @.extra = LIT
    del @.extra
    @.mode = LIT
    @.mode = "off"
    vars(@)["mode"] = LIT
    @.rate = LIT
    del @.rate
    NAMEBase.rate = LIT
    NAME.rate = LIT
    del NAME.rate
    NAME.extra = LIT
    @.__class__ = NAMEOther
    @.__class__ = NAME
    @.total = lambda k=2.0, **more: k - NUM
    del @.total
    NAMEBase.total = lambda self, k=2.0, **more: num(self.rate) * k - NUM
    NAME.total = lambda self, k=2.0, **more: NUM - k
    NAMEBase.total.__defaults__ = (LIT,)
    NAMEBase.total.__kwdefaults__ = {"s": 3.0}
    NAME.moded = lambda self: NUM
    NAMEBase.prop = property(lambda self: num(self.mode) - NUM)
    NAMEBase.static = staticmethod(lambda: NUM)
    NAME.of_class = classmethod(lambda cls: num(cls.rate) * NUM)
    NAMEBase.__len__ = lambda self: 3
    NAMEBase.__call__ = lambda self, k: k - NUM
"""


def instance(make: Maker, depth: int) -> Value:
    """An object of a class of one's own, with or without slots, with a value of any kind in it."""
    name, part = make.name("C"), make.at(make.value(depth - 1), "@.a")
    is_slotted = make.chance.random() < 0.2
    mode = make.chance.choice(('"on"', "LIT"))
    setup = (_SLOTTED if is_slotted else _CLASS).replace("MODE", mode).replace("NAME", name).replace("VALUE", part.text)
    methods, alterations = (
        ("@.total()", "@.extra = LIT\n@.a = LIT\ndel @.extra") if is_slotted else (_METHODS, _ALTERATIONS)
    )
    return make.made(
        f"{name}()",
        setup=setup,
        parts=(part,),
        reads=_ATTRIBUTES + methods.replace("NAME", name),
        changes=alterations.replace("NAME", name),
    )


def namespace(make: Maker, depth: int) -> Value:
    """A bag of attributes."""
    part = make.at(make.value(depth - 1), "@.a")
    return make.made(
        f"{make.chance.choice(('SimpleNamespace', 'Namespace'))}(a={part.text})",
        parts=(part,),
        reads=_ATTRIBUTES
        + """
        sum(num(v) * len(k) for k, v in vars(@).items())
        num(vars(@).get("extra"))
        len(vars(@))
        """,
        blocks="x = named(x, **vars(@))",
        changes="""
        @.extra = LIT
        del @.extra
        vars(@).update(extra=LIT)
        vars(@).clear()
        """,
    )


_FUNCTION = """def make_NAME():
    cell = LIT
    def NAME(k=LIT, *, s=LIT):
        return num(k) * 0.5 - num(s) - num(cell) * 0.25 - num(getattr(NAME, "mark", 0.5))
    def set_NAME(value):
        nonlocal cell
        cell = value
    return NAME, set_NAME
NAME, set_NAME = make_NAME()"""


def function(make: Maker, _: int) -> Value:
    """A function with defaults and a closure, bare or in a partial."""
    name = make.name("f")
    is_bare = make.chance.random() < 0.6
    more = "" if is_bare else '@.keywords["s"] = LIT\n@.keywords.clear()\n'
    changes = (
        more
        + """
        NAME.__defaults__ = (LIT,)
        NAME.__kwdefaults__ = {"s": LIT}
        NAME.__kwdefaults__["s"] = LIT
        NAME.mark = LIT
        del NAME.mark
        set_NAME(LIT)
        set_NAME(LIT)
        """
    )
    return make.made(
        name if is_bare else f"partial({name}, s=LIT)",
        setup=_FUNCTION.replace("NAME", name),
        reads="""
        @()
        @(NUM)
        @(s=NUM)
        (@() if callable(@) else 0.5)
        """,
        changes=changes.replace("NAME", name),
    )


def module(make: Maker, _: int) -> Value:
    """A module of one's own, with modules of torch's in it."""
    return make.made(
        "Net()",
        reads="""
        (1.0 if @.training else 2.0)
        (1.0 if @.inner.training else 3.0)
        num(@.scale)
        num(@.drop.p)
        num(getattr(@, "extra", 0.5))
        len(list(@.parameters()))
        len(list(@.buffers()))
        len(list(@.children()))
        len([n for n, _ in @.named_modules()])
        len(@.state_dict())
        sum(p.numel() for p in @.parameters())
        (1.0 if next(@.parameters()).requires_grad else 2.0)
        next(@.parameters()).dtype.itemsize
        """,
        blocks="""
        x = @(x)
        x = @.encode(x)
        x = @.drop(x)
        x = x - @.mask
        x = F.dropout(x, 0.5, @.training)
        x = F.dropout(x, @.drop.p)
        x = x.to(next(@.parameters()).dtype).float() * 2 - 1
        for b in @.buffers(): x = x * 0.5 - b.float().mean()
        for p in @.parameters(): x = x * 0.5 - p.float().mean()
        """,
        changes="""
        @.eval()
        @.train()
        @.inner.eval()
        @.scale = LIT
        @.extra = LIT
        del @.extra
        @.drop.p = 0.25
        @.double()
        @.float()
        @.mask.fill_(0.8)
        @.mask = torch.full((2,), 0.6)
        @.register_buffer("more", torch.full((2,), 0.7))
        @.register_parameter("late", nn.Parameter(torch.full((2,), 0.9)))
        @.inner.weight.data.mul_(0.5)
        @.inner.weight = nn.Parameter(torch.full((2, 2), 0.3))
        @.inner.bias = None
        @.inner.requires_grad_(False)
        @.inner = nn.Linear(2, 2, bias=False)
        @.inner.register_forward_hook(lambda m, a, r: r * 0.5 - num(SHARED))
        @.inner.forward = lambda x: x * 0.75 - 1
        @.forward = lambda x: x * 0.25 - 1
        """,
    )


def tensor(make: Maker, _: int) -> Value:
    """A tensor, of which more or less is read."""
    return make.made(
        make.chance.choice(("torch.full((2,), 1.5)", "SAME", "torch.ones(2, 2)")),
        reads="""
        (@.shape[0] if @ is not None else 5)
        attempt(lambda: @.dim())
        (1.0 if @ is None else 2.0)
        (1.0 if @ is SAME else 2.0)
        (1.0 if isinstance(@, nn.Parameter) else 2.0)
        (1.0 if getattr(@, "requires_grad", None) else 2.0)
        (1.0 if getattr(@, "dtype", None) is torch.float32 else 2.0)
        num(getattr(@, "mark", 0.5))
        """,
        blocks="""
        x = x - (@ if isinstance(@, torch.Tensor) else 0.5)
        x = x * 2 - tensor_or(@)
        """,
        changes="""
        @.fill_(0.7)
        @.mul_(0.5)
        @.mark = LIT
        @.requires_grad_()
        @ = torch.full((2,), 0.4)
        @ = torch.full((1,), 0.3)
        @ = torch.full((2,), 2, dtype=torch.int64)
        @ = torch.ones(2, 2)
        @ = SAME
        @ = None
        """,
    )


def weak(make: Maker, _: int) -> Value:
    """A weak reference."""
    name = make.name("kept")
    return make.made(
        f"weakref.ref({name}[0])",
        setup=f"{name} = [Plain(LIT), Plain(LIT)]",
        reads="""
        (num(@().a) if @() is not None else 0.6)
        (1.0 if @() is None else 2.0)
        """,
        changes=f"""
        {name}[0].a = LIT
        {name}[0].a = LIT
        {name}.pop(0)
        @ = weakref.ref({name}[-1])
        """,
    )


def context(make: Maker, _: int) -> Value:
    """A context variable."""
    name = make.name("variable")
    return make.made(
        name,
        setup=f"{name} = contextvars.ContextVar({name!r})",
        reads="num(@.get(0.5))\nnum(@.get(None))",
        changes=f"{name}.set(LIT)\n{name}.set(LIT)",
    )


def local(make: Maker, _: int) -> Value:
    """Attributes of a thread."""
    return make.made(
        "threading.local()",
        reads="num(getattr(@, 'a', 0.5))\nattempt(lambda: @.a)\n(1.0 if hasattr(@, 'a') else 2.0)",
        changes="@.a = LIT\n@.a = LIT\ndel @.a",
    )


def python_module(make: Maker, _: int) -> Value:
    """A module of Python, and the globals of the world's own."""
    return make.made(
        "lib",
        reads="""
        num(lib.GAIN)
        num(@.GAIN)
        num(getattr(lib, "GA" + "IN", 0.5))
        num(vars(lib).get("GAIN"))
        lib.gain()
        @.gain()
        lib.indirect()
        lib.Thing().value()
        num(lib.Thing.rate)
        num(lib.TABLE.get("a"))
        sum(num(v) for v in lib.TABLE.values())
        num(getattr(lib, "EXTRA", 0.5))
        attempt(lambda: lib.EXTRA)
        num(SHARED)
        num(globals()["SH" + "ARED"])
        num(globals().get("EXTRA", 0.5))
        attempt(lambda: EXTRA)
        """,
        changes="""
        lib.GAIN = LIT
        lib.GAIN = LIT
        lib.gain = lambda: NUM
        lib.gain.__defaults__ = (LIT,)
        lib.TABLE["a"] = LIT
        lib.TABLE["b"] = LIT
        lib.TABLE = {}
        lib.Thing.rate = LIT
        lib.Thing.value = lambda self: NUM
        lib.EXTRA = LIT
        SHARED = LIT
        EXTRA = LIT
        del EXTRA
        """,
    )


KINDS: tuple[Kind, ...] = (
    *(plain, plain, mapping, mapping, sequence, packed, members, record),
    *(instance, instance, namespace, function, function, module, tensor, weak, context, local, python_module),
)
