"""The tracer: runs a program on fake tensors, beside the real ones, and writes what it does as a graph.

    user's program ── torch functions ── autograd ── ATen operators
                          │                               │
                     WatchFunctions                  Tracer (dispatch)
                     host reads, backward            one graph node per operator, executed on fakes only

Real tensors that the program holds (arguments, parameters, optimizer state) stay in its hands as handles: each has a fake
twin, operators on the handle run on the twin, and the handle's memory is never touched.
"""

from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.errors import Refusal
from treeplay.guards.reads import Reads
from treeplay.observe.lines import call_site, innermost_is_optimizer, user_location
from treeplay.torch_seam.fakes import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from treeplay.torch_seam.modes import TorchDispatchMode, functions_unwatched
from treeplay.torch_seam.schemas import is_foreach_write, is_random, leaves_of, tell_autograd
from treeplay.torch_seam.tensors import address_of, storage_of
from treeplay.torch_seam.trees import tree_map
from treeplay.trace.fused import torchs_own
from treeplay.trace.layouts import Answer, Question, laid_out, question
from treeplay.trace.log import LoggedCall
from treeplay.trace.outgrown import ADVICE, WHY, made_as, outgrown, outs_of
from treeplay.trace.randomness import TrackedGenerators, generator_in
from treeplay.trace.recurrent import TAKES_ONE_PIECE, asked_of, in_one_piece, settled
from treeplay.trace.scalar_ops import takes_symbolic_number
from treeplay.trace.scalars import Scalar, ScalarWorld, scalar_of, symbolic
from treeplay.trace.tape import InputSeen, TracedValue, TraceTape, content, differentiable_targets, wants_grad
from treeplay.values.location import Location
from treeplay.values.refusal import Reason
from treeplay.values.spec import TensorSpec

aten = torch.ops.aten
_HOST_READS = frozenset(
    {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default, aten.item.default}
)
# What `make_dual` asks first; neither can run on fakes.
_FORWARD_MODE = frozenset({aten.is_same_size.default, aten._make_dual.default})
# Operators that may change a shape in place, and may leave it as it is.
_SHAPES = frozenset(
    (
        *(aten.squeeze_.default, aten.squeeze_.dim, aten.squeeze_.dims, aten.t_.default, aten.transpose_.default),
        aten.resize_.default,
    )
)
# Operators that are told where in the memory of their first argument to begin.
_BEGINS = frozenset({aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default})
_LIFTS = frozenset({aten.lift_fresh.default, aten.lift.default})


class Tracer(TorchDispatchMode):
    """Records ATen operators. `is_known` says whether a real tensor is state that can be found again; `layouts`, how
    operators laid out their results when the program ran eagerly."""

    def __init__(
        self,
        is_known: Callable[[torch.Tensor], bool],
        generators: TrackedGenerators,
        layouts: Mapping[Question, Answer] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layouts = layouts or {}
        self.generators = generators
        self.given_history: list[tuple[torch.Tensor, Reason]] = []  # arguments without one, and why they may not get it
        self.home: Location | None = None  # of the program as a whole, once it has run
        self.tape = TraceTape(torch.fx.Graph())
        self.world = ScalarWorld(self.tape.graph)
        self.fake_mode = FakeTensorMode()
        self.values: dict[int, TracedValue] = {}
        self.is_known = is_known
        self.arguments: set[int] = set()  # the tensors that are arguments of this call, by identity
        self.host_scalars: set[int] = set()
        self.births: dict[int, torch.fx.Node] = {}  # fake storage -> the node that made it
        self.on_write: Callable[[TracedValue], None] | None = None  # told of each tensor that an operator writes to
        self.recurrent_weights: list[torch.Tensor] = []  # of the layer that was called last, and a tensor over them
        self.recurrent_piece: torch.Tensor | None = None
        self.fakes: list[weakref.ref[torch.Tensor]] = []
        self.storages: list[torch.UntypedStorage] = []
        self._bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._kept: list[Any] = []
        self._last_input: torch.fx.Node | None = None
        self.reads = Reads(())

    def refuse(self, op: str, why: str, advice: str, where: Location | None = None) -> Refusal:
        """Note the first refusal, so that a program which swallows exceptions is refused all the same."""
        reason = Reason(op=op, why=why, advice=advice, where=where or self.home or user_location())
        if self.tape.refusal is None:
            self.tape.refusal = reason
        return Refusal(reason)

    # --- inputs ---------------------------------------------------------------------------------------------

    def add_input(self, tensor: torch.Tensor, *, is_constant: bool = False) -> TracedValue:
        """The value of a real tensor, made on first use."""
        known = self.values.get(id(tensor))
        if known is not None:
            return known
        node = self._placeholder(f"in{len(self.tape.inputs)}")
        value = TracedValue(self._twin(tensor), tensor, node, is_input=True)
        self.values[id(tensor)] = value
        self._kept.append(tensor)
        self._describe(node, value.fake)
        self.tape.inputs.append(InputSeen(tensor, value, is_constant))
        self.births.setdefault(storage_of(value.fake), node)
        return value

    def add_scalar(self, name: str, value: float) -> torch.SymFloat:
        """A symbolic number that is an input of the graph, called `name`."""
        return symbolic(Scalar(self.world, text=name, value=value, node=self._placeholder(name)))

    def _placeholder(self, name: str) -> torch.fx.Node:
        graph = self.tape.graph
        with graph.inserting_after(self._last_input) if self._last_input else graph.inserting_before():
            self._last_input = graph.placeholder(name)
        return self._last_input

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        # Two views of one storage get twins of one storage: the graph's aliasing is the program's.
        kind = _unusual(tensor)
        if kind is not None:
            raise self.refuse("tensor", f"a {kind} is not a plain strided tensor", "convert it outside of the program")
        key = (tensor.untyped_storage()._cdata, tensor.dtype)
        # A view has the kind of what it is of, also where the program has entered or left inference mode.
        with torch.inference_mode(tensor.is_inference()), self.fake_mode:
            if key not in self._bases:
                length = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
                self._bases[key] = torch.empty(length, dtype=tensor.dtype, device=tensor.device)
            return torch.as_strided(self._bases[key], tensor.shape, tensor.stride(), tensor.storage_offset())

    # --- operators ------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        was_noting = self.reads.pause()  # what follows is ours and torch's, not the program's
        try:
            return self._dispatch(func, args, kwargs or {})
        finally:
            if was_noting:
                self.reads.resume()

    def _dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        func = torchs_own(func)
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        if func.namespace == "prim":  # C++ asks a fake for its device; raising there would end the process
            with self.fake_mode:
                return func(*args, **kwargs)
        where = user_location()
        if func in _FORWARD_MODE:
            raise self.refuse(
                _name(func), "starts forward-mode derivatives", "use reverse mode: torch.func.vjp or jacrev", where
            )
        if func in _HOST_READS:
            return self._read_on_host(func, args, where)
        args = settled(func, args, self.recurrent_piece)
        self.tape.log.append(LoggedCall.of(func, where, args, kwargs, call_site()))
        if is_random(func):
            self._draw(func, (*args, *kwargs.values()), where)
        if func is TAKES_ONE_PIECE:
            return self._put_together(args[0], args[1], where)
        if self._is_idle(func, args):
            return args[0]
        self._check_lasting(func, args, kwargs, where)
        asked = question(func, asked_of(func, args), kwargs) if self.layouts else None
        func, args, kwargs = self._settle(func, args, kwargs)
        if func in _BEGINS:
            args, kwargs = self._from_start(func, args, kwargs, where)
        node_args, node_kwargs = tree_map(self._to_node(func, where), (args, dict(kwargs)))
        fake_args, fake_kwargs = tree_map(self._to_fake, (args, dict(kwargs)))
        outs = outs_of(func, fake_kwargs)
        out = self._run_fake(func, fake_args, fake_kwargs, where)
        for grown in outgrown(outs):
            self._outgrow(func, grown, where)
        if asked is not None and asked in self.layouts:
            with self.fake_mode:
                out = laid_out(out, self.layouts[asked])
        node = self.tape.graph.call_function(func, node_args, node_kwargs)
        node.meta["where"] = where
        self._note_writes(func, args, kwargs)
        if is_foreach_write(func):
            tell_autograd(func, args)
        return self._wrap(func, out, node, args, kwargs, fake_args, fake_kwargs)

    def _put_together(
        self, target: torch.Tensor, storage: torch.UntypedStorage, where: Location | None
    ) -> torch.Tensor:
        """Make an empty tensor of the trace one over all recurrent weights in `storage`."""
        with functions_unwatched():
            return self._over(target, storage, where)

    def _over(self, target: torch.Tensor, storage: torch.UntypedStorage, where: Location | None) -> torch.Tensor:
        pieces = list(in_one_piece(self.recurrent_weights, storage))
        if not pieces or not isinstance(target, FakeTensor) or target.numel():
            raise self.refuse(
                "set_", "gives a tensor other memory", "write into the tensor, or use the other tensor itself", where
            )
        told = len(self.tape.log)
        with self, torch.no_grad():
            whole = torch.zeros(storage.nbytes() // target.itemsize, dtype=target.dtype, device=target.device)
            for weight, place in pieces:
                whole.as_strided(*place).copy_(weight.detach())
        del self.tape.log[told:]
        with self.fake_mode:
            aten.set_.source_Tensor(target, whole)
        node = self.values[id(whole)].node
        self.values[id(target)] = TracedValue(target, target, node, is_input=False)
        self._kept.append(whole)
        self.recurrent_piece = target
        return target

    def _outgrow(self, func: Any, fake: torch.Tensor, where: Location | None) -> None:
        """Make a tensor that an operator has just given another size with that size, or refuse."""
        known = self.values.get(id(fake))  # an input is known by the tensor that Python holds
        is_new = known is not None and not known.is_input and storage_of(fake) not in self.tape.mutated
        nodes = made_as(known.node, fake) if known is not None and is_new else []
        for node in nodes:  # the operator's own is yet to come
            self._describe(node, fake)
        if not nodes or self.births.get(storage_of(fake)) is not nodes[-1]:
            raise self.refuse(_name(func), WHY, ADVICE, where)

    def _settle(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """The operator to record for the one called: the same, but for a few that hide what they do."""
        # Where an operator wants a plain number it gets today's value, guarded.
        if not takes_symbolic_number(func, None):
            args = _with_plain_numbers(args)
        kwargs = {
            name: value if takes_symbolic_number(func, name) else _with_plain_numbers(value)
            for name, value in kwargs.items()
        }
        if func is aten.native_batch_norm.default and args[3] is not None and args[5]:
            # Its schema does not say that it writes the running statistics; this one's does.
            return aten._native_batch_norm_legit.default, args, kwargs
        if func in _LIFTS:
            # The constant serves every replay: the program gets a copy, which it may write to or return.
            return aten.lift_fresh_copy.default, args, kwargs
        return func, args, kwargs

    def _check_lasting(self, func: Any, args: Any, kwargs: Any, where: Location | None) -> None:
        """Refuse what would change a tensor that outlives the call other than in its elements."""
        if not func._schema.is_mutable:
            return
        if torch.Tag.inplace_view in func.tags and not isinstance(args[0], FakeTensor):
            raise self.refuse(
                _name(func),
                "changes the shape of a tensor that outlives the call",
                "use the form without the underscore, and return its result",
                where,
            )
        if torch.is_grad_enabled() and any(wants_grad(leaf) for leaf in leaves_of((args, kwargs))):
            for target in differentiable_targets(func, args):
                owner = target._base if target._base is not None else target
                if isinstance(owner, FakeTensor) or any(owner is known for known, _ in self.given_history):
                    continue
                if id(owner) not in self.arguments or owner.requires_grad or owner._is_view():
                    raise self.refuse(_name(func), *_GIVES_HISTORY, where)
                self.given_history.append((owner, Reason(_name(func), *_GIVES_HISTORY, where)))

    def _is_idle(self, func: Any, args: Any) -> bool:
        """Whether an operator that changes shapes in place leaves that of a tensor which outlives the call as it is."""
        if func not in _SHAPES or isinstance(args[0], FakeTensor):
            return False
        fake = self._value(args[0], func, None).fake
        with self.fake_mode:
            twin = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
            func(twin, *args[1:])
        return twin.shape == fake.shape and twin.stride() == fake.stride()

    def check_history(self, tensor: torch.Tensor) -> None:
        """Refuse a custom function that gives a history to a tensor which outlives the call."""
        owner = tensor._base if tensor._base is not None else tensor
        if not isinstance(owner, FakeTensor):
            raise self.refuse(
                "mark_dirty",
                "makes a tensor that outlives the call part of a gradient graph",
                "let the function return a new tensor, or call it on a clone",
            )

    def take_history_back(self) -> None:
        """Make arguments that the program made part of a gradient graph what they were. Safe to call more than once."""
        for owner, _ in self.given_history:
            if owner.grad_fn is not None:
                owner.detach_()

    def _from_start(
        self, func: Any, args: Any, kwargs: dict[str, Any], where: Location | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of an operator that is told where in the memory of an input to begin, counted from where that input
        begins: so the graph holds for inputs that begin elsewhere, and lowerings need not know where."""
        named = (argument.name for argument in func._schema.arguments)
        given = dict(zip(named, args, strict=False)) | kwargs
        offset, value = given.get("storage_offset"), self._value(given["self"], func, where)
        owners = [
            seen for seen in self.tape.inputs if seen.value.fake.untyped_storage()._cdata == storage_of(value.fake)
        ]
        if offset is None or not owners:
            return args, kwargs
        first, last = _span_of(given["size"], given["stride"], offset)
        for seen in owners:
            start, end = _span_of(*_layout_of(seen.value.fake))
            is_inside = seen.value.fake.dtype == value.fake.dtype and start <= first and last <= end
            if is_inside and func is not aten.as_strided_scatter.default:  # whose result lies as the whole memory does
                seen.begins = start
                return (self._piece(seen, first - start, end - start), given["size"], given["stride"]), {}
        if func is aten.as_strided_scatter.default:
            why, advice = "copies an argument with all the memory around it", "write to `as_strided` of a clone"
        else:
            why = "is told where in an argument's memory to begin, and takes what lies outside of the argument"
            advice = "pass the tensor that all of it lies in"
        raise self.refuse(_name(func), why, advice, where)

    def _piece(self, seen: InputSeen, first: int, length: int) -> torch.Tensor:
        """The memory of an input from its element `first` on, in one dimension."""
        graph, piece, node = self.tape.graph, seen.value.fake, seen.value.node
        with self.fake_mode:
            for op, rest in ((aten.as_strided.default, ((length,), (1,))), (aten.slice.Tensor, (0, first, length))):
                piece, node = op(piece, *rest), graph.call_function(op, (node, *rest))
                node.meta["where"] = None
                self._wrap_tensor(piece, node, {})
        return piece

    def _draw(self, func: Any, arguments: tuple[Any, ...], where: Location | None) -> None:
        generator = generator_in(leaves_of(list(arguments)), _device_of(arguments))
        if not self.generators.is_known(generator):
            raise self.refuse(
                _name(func),
                "draws from a generator that the program makes, or that treeplay cannot find",
                "make the generator outside, and keep it in the closure, a global or an attribute of `self`",
                where,
            )
        if self.generators.was_set(generator):
            raise self.refuse(
                _name(func),
                "draws after the program has seeded the generator or put back an earlier state of it, which a recording "
                "does not repeat",
                "seed outside of the program; in `checkpoint`, pass preserve_rng_state=False if other numbers will do",
                where,
            )
        self.generators.draw(generator)
        self.tape.generators[address_of(generator)] = generator

    def _run_fake(self, func: Any, args: Any, kwargs: Any, where: Location | None) -> Any:
        try:
            with self.fake_mode:
                return func(*args, **kwargs)
        except DataDependentOutputException:
            raise self.refuse(
                _name(func), "its result is a Python value that depends on data", _KEEP_ON_DEVICE, where
            ) from None
        except DynamicOutputShapeException:
            raise self.refuse(
                _name(func),
                "the shape of its result depends on data",
                "use a form with a fixed shape: torch.where, a mask that is multiplied in, or topk",
                where,
            ) from None
        except UnsupportedOperatorException:
            raise self.refuse(
                _name(func),
                "has no rule for running without data",
                "register one with torch.library.register_fake",
                where,
            ) from None

    def _to_node(self, func: Any, where: Location | None) -> Callable[[Any], Any]:
        def convert(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self._value(leaf, func, where).node
            scalar = scalar_of(leaf)
            return leaf if scalar is None else scalar.node

        return convert

    def _to_fake(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.values[id(leaf)].fake
        scalar = scalar_of(leaf)
        return leaf if scalar is None else float(scalar.value)

    def _value(self, tensor: torch.Tensor, func: Any, where: Location | None) -> TracedValue:
        known = self.values.get(id(tensor))
        if known is not None:
            return known
        if isinstance(tensor, FakeTensor):
            raise self.refuse(
                _name(func),
                "uses a fake tensor that this trace did not make",
                "call the program outside of a FakeTensorMode",
                where,
            )
        if func is aten.lift_fresh_copy.default:
            self.tape.log.append(LoggedCall("constant", where, content(tensor), call_site()))
            self._kept.append(tensor)
            self.values[id(tensor)] = value = self._constant(tensor)
            return value
        if self.is_known(tensor):
            return self.add_input(tensor)
        raise self.refuse(
            _name(func),
            f"uses a tensor of shape {tuple(tensor.shape)} that is neither an argument nor found in the program's closure, "
            "globals or `self`, so a later change of it could not be noticed",
            "pass the tensor as an argument, or reach it through the closure, a global or an attribute of `self`",
            where,
        )

    def _constant(self, tensor: torch.Tensor) -> TracedValue:
        """A tensor made from Python numbers: one number becomes an operator, more become an input of their own."""
        if tensor.numel() != 1:
            return self.add_input(tensor.clone(), is_constant=True)
        options: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
        with self.fake_mode:
            fake = aten.full.default(list(tensor.shape), 0, **options)
        node = self.tape.graph.call_function(aten.full.default, (list(tensor.shape), tensor.item()), options)
        node.meta["where"] = user_location()
        self._wrap_tensor(fake, node, {})
        return self.values[id(fake)]

    def _note_writes(self, func: Any, args: Any, kwargs: Any) -> None:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            target = args[position] if position < len(args) else kwargs.get(argument.name)
            for leaf in leaves_of(target):
                if isinstance(leaf, torch.Tensor):
                    value = self.values[id(leaf)]
                    self.tape.mutated.add(storage_of(value.fake))
                    if self.on_write is not None:
                        self.on_write(value)

    def _wrap(self, func: Any, out: Any, node: Any, args: Any, kwargs: Any, fake_args: Any, fake_kwargs: Any) -> Any:
        handles = {
            id(fake): real
            for real, fake in zip(leaves_of((args, kwargs)), leaves_of((fake_args, fake_kwargs)), strict=True)
            if isinstance(fake, torch.Tensor)
        }
        return self._wrap_part(out, node, handles)

    def _wrap_part(self, out: Any, node: torch.fx.Node, handles: dict[int, torch.Tensor]) -> Any:
        """A result, or the parts of one: a few operators give lists among their results."""
        if isinstance(out, torch.Tensor):
            return self._wrap_tensor(out, node, handles)
        if isinstance(out, (tuple, list)):
            wrapped = []
            for index, item in enumerate(out):
                if isinstance(item, (torch.Tensor, tuple, list)):
                    part = self.tape.graph.call_function(operator.getitem, (node, index))
                    part.meta["where"] = node.meta["where"]
                    item = self._wrap_part(item, part, handles)
                wrapped.append(item)
            return type(out)(wrapped)
        if out is None:
            return None
        func, where = node.target, node.meta["where"]
        raise self.refuse(_name(func), "gives Python a value that depends on data", _KEEP_ON_DEVICE, where)

    def _wrap_tensor(self, fake: torch.Tensor, node: torch.fx.Node, handles: dict[int, torch.Tensor]) -> torch.Tensor:
        handle = handles.get(id(fake))
        if fake.layout is not torch.strided:
            layout = str(fake.layout).removeprefix("torch.")
            raise self.refuse(
                _name(node.target),
                f"makes a tensor of layout {layout}, and a recording has plain memory with a shape and strides",
                "use the form for plain tensors (an embedding without sparse=True), or keep this part outside",
                node.meta["where"],
            )
        self._describe(node, fake)
        if handle is not None:  # written in place: Python gets back the very tensor it passed
            return handle
        self.births.setdefault(storage_of(fake), node)
        self.values[id(fake)] = TracedValue(fake, fake, node, is_input=False)
        self.fakes.append(weakref.ref(fake))
        return fake

    def _describe(self, node: torch.fx.Node, fake: torch.Tensor) -> None:
        node.meta["spec"] = TensorSpec.of(fake)
        self.storages.append(fake.untyped_storage())  # `set_` would free it, and its identity be that of another
        node.meta["storage"] = storage_of(fake)
        node.meta["offset"] = fake.storage_offset()

    # --- numbers --------------------------------------------------------------------------------------------

    def _read_on_host(self, func: Any, args: Any, where: Location | None) -> Any:
        tensor = args[0]
        is_number = func is aten._local_scalar_dense.default and tensor.dtype.is_floating_point
        if is_number and (id(tensor) in self.host_scalars or innermost_is_optimizer()):
            value = self._value(tensor, func, where)
            node = self.tape.graph.call_function(func, (value.node,))
            node.meta["where"] = where
            return symbolic(Scalar(self.world, text=None, value=1.0, node=node))
        raise self.refuse(
            _name(func).replace("_local_scalar_dense", "item"),
            "reads a tensor's value on the host, which a recording cannot wait for",
            _KEEP_ON_DEVICE,
            where,
        )

    def forget(self) -> None:
        """Drop every fake and handle; afterwards only what the user kept is still alive."""
        self.values.clear()
        self.tape.inputs.clear()
        self._bases.clear()
        self._kept.clear()
        self.storages.clear()
        self.recurrent_weights = []
        self.recurrent_piece = None

    def leaked(self) -> bool:
        """Whether a fake outlived the trace: the program put it somewhere that the survey did not see."""
        return any(ref() is not None for ref in self.fakes)


# torch has wrapped it to keep Dynamo away, which a trace does as a whole.
Tracer.__torch_dispatch__ = inspect.unwrap(Tracer.__torch_dispatch__)  # type: ignore[method-assign]


def _with_plain_numbers(value: Any) -> Any:
    if not any(scalar_of(leaf) is not None for leaf in leaves_of(value)):
        return value
    return tree_map(lambda leaf: float(leaf) if scalar_of(leaf) is not None else leaf, value)


def _layout_of(tensor: torch.Tensor) -> tuple[Sequence[int], Sequence[int], int]:
    return tensor.shape, tensor.stride(), int(tensor.storage_offset())


def _span_of(shape: Sequence[int], stride: Sequence[int], offset: int) -> tuple[int, int]:
    """The first element of a layout in its storage, and the one after its last."""
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else -1
    return offset, offset + last + 1


def _device_of(arguments: Iterable[Any]) -> torch.device:
    """Where an operator with these arguments computes: on a device that it is given, else with its first tensor."""
    leaves = leaves_of(list(arguments))
    named = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
    return next(
        iter([*named, *(leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor))]), torch.device("cpu")
    )


_GIVES_HISTORY = (
    "makes a tensor that outlives the call part of a gradient graph",
    "write the detached value, or write under torch.no_grad()",
)
_KEEP_ON_DEVICE = "return the tensor and read it after the call, or keep the computation in tensors (torch.where)"


def _unusual(tensor: torch.Tensor) -> str | None:
    """What makes a tensor more than memory, shape and stride; None for a plain one."""
    if tensor.layout is not torch.strided:
        return str(tensor.layout)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return type(tensor).__name__
    if tensor.is_conj() or tensor.is_neg():
        return "tensor that is conjugated or negated when read"
    return "quantized tensor" if tensor.is_quantized else None


def _name(func: Any) -> str:
    return str(getattr(func, "_overloadpacket", func)).removeprefix("aten.")
