"""References to what a program returned or stored: taken apart, and a reference for each leaf.

What a tensor is a reference to depends on how the program was run: see `results.py` (on fakes) and `returned.py` (recorded as
it is).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator
from types import CoroutineType, FunctionType, ModuleType
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.torch_seam.fakes import attributes_given_to
from treeplay.torch_seam.modes import has_plain_class
from treeplay.trace.numbers.scalars import SYMBOLS
from treeplay.trace.signature.result_keys import check_key
from treeplay.trace.signature.views import ViewReferences
from treeplay.trace.survey.found import Survey
from treeplay.values.flatten import containers, flatten
from treeplay.values.kinds import CONTAINERS, MUTABLE_CONTAINERS, PLAIN
from treeplay.values.location import Location
from treeplay.values.memory import OutputMemory
from treeplay.values.output import Static
from treeplay.values.place import How, Place
from treeplay.values.records import is_record
from treeplay.values.same import components, is_value
from treeplay.values.signature import Built, GivenContainer, Ref, StateContainer
from treeplay.values.structure import Leaf, Structure, classes_in, is_dataclass_value, keys_in
from treeplay.values.unflatten import unflatten

Refuse = Callable[..., Refusal]
LineOf = Callable[[Place], Location | None]
_FROZEN = (*PLAIN, torch.dtype, torch.device, torch.layout, enum.Enum, type, FunctionType, ModuleType, range)


def not_plain(refuse: Refuse, where: Location | None = None) -> Refusal:
    """The refusal of a tensor that a replay, which makes plain ones, could not make."""
    return refuse(
        "result",
        "returns or stores a tensor that is more than memory, shape and stride: sparse, conjugated or negated when read, a "
        "subclass",
        "return it as a plain tensor (.to_dense(), .resolve_conj(), .resolve_neg())",
        where,
    )


def not_traced(refuse: Refuse) -> Refusal:
    """The refusal of a tensor that is neither an input of the trace nor was made in it."""
    why = "returns or stores a tensor that no traced operator made"
    return refuse("result", why, "make it with torch operators")


def of_another_dtype(refuse: Refuse, where: Location | None = None) -> Refusal:
    """The refusal of a view that no tensor of the recording has the memory for."""
    return refuse(
        "result",
        "returns a view of another dtype, of memory that lies outside of the tensor it was taken from",
        "return a copy of it (.clone())",
        where,
    )


class References(ViewReferences):
    """Makes references, one for each tensor however often it is met."""

    def __init__(self, found: Survey, refuse: Refuse, memory: OutputMemory | None = None) -> None:
        super().__init__(memory if memory is not None else OutputMemory())
        self.found = found
        self._refuse = refuse
        # Where what is looked at now is stored, with what tells the line of a store; None: it is returned.
        self._store: tuple[Place, LineOf] | None = None
        # An argument is another object in each call, also one that state has too.
        self.lasting = {id(value) for value in found.kept} - found.given.keys()
        self._refs: dict[int, Ref] = {}
        self._shared: dict[int, int] = {}  # containers that the program made and put in several places, numbered
        self.met: set[int] = set()  # all containers and objects in what the program returned and stored
        self._open: set[int] = set()  # of these, those that are taken apart just now

    @contextlib.contextmanager
    def storing(self, place: Place, line_of: LineOf) -> Iterator[None]:
        """In the block, what is refused is said of what the program puts in this place, at the line that `line_of` finds."""
        self._store = place, line_of
        try:
            yield
        finally:
            self._store = None

    def refuse(
        self, op: str, why: str, advice: str, where: Location | None = None, *, may_pass: bool = False
    ) -> Refusal:
        """The refusal of a result, or of what is stored in a place."""
        if self._store is not None:
            place, line_of = self._store
            op, where = str(place), where or line_of(place)
        return self._refuse(op, why, advice, where, may_pass=may_pass)

    def ref(self, leaf: Any) -> Ref:
        """A reference to a leaf of the program's result, or of what it stored."""
        if not isinstance(leaf, torch.Tensor) and self._is_one(leaf):
            return self._one(leaf)
        if isinstance(leaf, SYMBOLS):
            return self._number(leaf)
        if not isinstance(leaf, torch.Tensor):
            return self._static(leaf)
        known = self._refs.get(id(leaf))
        if known is None:
            known = self._refs[id(leaf)] = self._tensor(leaf)
        return known

    def _static(self, value: Any) -> Static:
        if isinstance(value, CoroutineType) and id(value) not in self.lasting:
            value.close()  # the trace's own, which nobody will await: Python would warn of it
            raise self.refuse(
                "result",
                "a coroutine is among the results: what it does it does when it is awaited, after the call",
                "jit the functions that it calls, and not the coroutine function",
            )
        if id(value) not in self.lasting and not self.is_constant(value):
            raise self.refuse(
                "result",
                f"returns or stores a {type(value).__name__} that it makes, and a replay makes only tensors and the "
                "containers dict, OrderedDict, list, tuple, namedtuple, deque and dataclass",
                "return or store its tensors, and make the object after the call",
            )
        return Static(value)

    def of_call(self, result: Any, stored: Iterable[Any]) -> tuple[Leaf | Structure, tuple[Ref, ...]]:
        """The structure of the program's result and a reference for each of its leaves. `stored` is what the program left in
        state: a container may be there and among the results."""
        self._find_shared((result, *stored))
        if self._is_one(result):
            return Leaf(0), (self.ref(result),)
        leaves, structure = self._take_apart(result)
        return structure, tuple(self.ref(leaf) for leaf in leaves)

    def value(self, stored: Any) -> Ref:
        """A reference to something the program stored: a tensor, or a container with tensors in it."""
        if self._is_one(stored):
            return self.ref(stored)
        leaves, structure = self._take_apart(stored)
        refs = tuple(self.ref(leaf) for leaf in leaves)
        return refs[0] if leaves and leaves[0] is stored else Built(structure, refs)

    def is_there(self, value: Any) -> bool:
        """Whether `value` is a container that was there before the run: in state, or among the arguments."""
        return id(value) in self.found.given or self._place(value) is not None

    def _is_one(self, value: Any) -> bool:
        """Whether a container is to be the very object that it is, or the same one in several places."""
        return id(value) in self._shared or self.is_there(value)

    def _place(self, value: Any) -> Place | None:
        if not isinstance(value, CONTAINERS) and not is_dataclass_value(value):
            return None
        place = self.found.container_places.get(id(value)) or self.found.objects.get(id(value))
        # A record that another one took the place of is there when a call begins: it was not made anew.
        if place is None or place.read_or(None) is value or is_record(value):
            return place
        if isinstance(value, MUTABLE_CONTAINERS):
            raise self.refuse(
                str(place),
                "the program moves this container to another place, and a replay could only make one like it",
                "keep containers where they are, and move what is in them",
            )
        return None

    def _one(self, value: Any) -> Ref:
        known = self._refs.get(id(value))
        if known is not None:
            return known
        if id(value) in self.found.given:
            return GivenContainer(self.found.given[id(value)][0].key)
        if self._store is not None and isinstance(value, tuple) and self.is_constant(value):
            # Where an earlier call's object has it may be where this one is stored, which is another object in each call.
            return Static(value)
        place = self._place(value)
        if place is not None:
            return StateContainer(place)
        if id(value) in self._open:
            raise self.refuse("result", "returns or stores a container that contains itself", "leave the circle out")
        self._open.add(id(value))
        leaves, structure = self._take_apart(value)
        made = Built(structure, tuple(self.ref(leaf) for leaf in leaves), self._shared[id(value)])
        self._refs[id(value)] = made
        return made

    def _find_shared(self, values: tuple[Any, ...]) -> None:
        _, structure = flatten(values, self.is_there, self.found.is_new)
        for _, value, _ in containers(structure, values, ""):
            if id(value) in self.met and not self.is_there(value):
                self._shared.setdefault(id(value), len(self._shared))
            self.met.add(id(value))

    def _take_apart(self, value: Any) -> tuple[list[Any], Leaf | Structure]:
        leaves, structure = flatten(value, self._is_one, self.found.is_new)
        for key in keys_in(structure):
            self.check_key(key)
        for cls in classes_in(structure):
            if dataclasses.is_dataclass(cls) and not self._is_made_again(leaves, structure):
                raise self.refuse(
                    "result",
                    f"the constructor of {cls.__name__} does not give a result like this one back from its fields",
                    "return its tensors, and make the object after the call",
                )
        return leaves, structure

    def _is_made_again(self, leaves: list[Any], structure: Leaf | Structure) -> bool:
        """Whether constructors, given the fields, leave them as they are (`__post_init__` may not)."""
        try:  # what is one thing above is one thing here too: a batch with the list of another one is made again
            again, same = flatten(unflatten(structure, leaves), self._is_one, self.found.is_new)
        except Exception:  # the user's constructor may raise anything
            return False
        return same == structure and all(new is old for new, old in zip(again, leaves, strict=True))

    def is_constant(self, value: Any) -> bool:
        """Whether the next call would have the same value: what it was made of is guarded."""
        if isinstance(value, (list, dict, set, torch.Tensor)):  # others may stand in their places
            return False
        if id(value) in self.found.given and not isinstance(value, tuple):
            return False
        # A tuple or a record that lasts may be replaced by the like of it, with others of these in it.
        is_replaced = isinstance(value, tuple) or is_record(value)
        if (id(value) in self.lasting and not is_replaced) or _is_frozen(value):
            return True
        held = components(value)
        return is_value(value) if held is None else all(map(self.is_constant, held))

    def check_key(self, key: Any, *, may_be_tensor: bool = True) -> None:
        """Refuse a key that is another object in each call. `may_be_tensor`: whether a tensor of the state may be one."""

        def is_fixed(part: Any) -> bool:
            if isinstance(part, torch.Tensor):
                return may_be_tensor and self.is_of_state(part)
            return self.is_constant(part) or not (id(part) in self.found.given or self.found.is_new(part))

        check_key(key, is_fixed, self.refuse)

    def is_of_state(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was there before the run, and not as an argument."""
        places = self.found.tensor_at(tensor)
        return bool(places) and places[0].how is not How.ARGUMENT

    def _tensor(self, tensor: torch.Tensor) -> Ref:
        """The reference for a tensor that is met for the first time."""
        raise NotImplementedError

    def _number(self, number: Any) -> Ref:
        """The reference for a number that stood as a symbol in the run."""
        raise self.refuse(
            "result", "returns or stores a number that another one may stand for", "read it where it is kept"
        )

    def check_attributes(self, tensor: torch.Tensor) -> None:
        """Refuse a new tensor on which the program has put something."""
        names = attributes_given_to(tensor)
        if names:
            raise self.refuse(
                "result",
                f"returns or stores a tensor that it has given the attribute `{names[0]}`, and a replay makes plain tensors",
                "return or store the attribute's value beside the tensor",
            )

    def check_class(self, tensor: torch.Tensor) -> None:
        """Refuse a parameter or buffer that the program makes, and a tensor of a class derived from these."""
        is_of_module = isinstance(tensor, (torch.nn.Parameter, torch.nn.Buffer))  # as a fake may say it is
        is_of_class = type(tensor) is not torch.Tensor and has_plain_class(tensor)
        if (is_of_module or is_of_class) and id(tensor) not in self.found.tensors:
            kind = "Parameter" if isinstance(tensor, torch.nn.Parameter) else "Buffer"
            raise self.refuse(
                "result",
                f"returns or stores a {type(tensor).__name__ if is_of_class else kind} that it makes, and a replay makes only "
                "plain tensors",
                "make it outside of the program, and write to it inside",
            )


def _is_frozen(value: Any) -> bool:
    """Whether a value that the program makes is the same whenever it makes it: a function is not that keeps other values."""
    if isinstance(value, FunctionType):
        kept = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        return not value.__closure__ and all(isinstance(one, _FROZEN) for one in kept)
    return isinstance(value, _FROZEN)
