"""Around a replay: arguments out of their list, and a list of results put together of what was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.backend.recording.compiled_graph import CompiledGraph, WrongKind
from treeplay.backend.recording.returns import ResultMaker, Returns
from treeplay.backend.recording.saved_block import SavedBlock
from treeplay.codegen import Source, Writer, list_of
from treeplay.codegen.idioms import is_exactly
from treeplay.device.protocol import InBlock, Replay, Work
from treeplay.errors import InternalError
from treeplay.values.block import SavedLayout
from treeplay.values.boxed import Boxed


@dataclass(frozen=True, slots=True)
class GraphBoxing:
    """Before a replay: the arguments with tensors at `places` are taken out of their list, and with other values than `fixed`
    the graph runs `as_compiled`. After it, `returns` are put together of what was made, with what lies in a `block` there."""

    places: tuple[int, ...]
    fixed: dict[int, Any]
    returns: Returns
    as_compiled: Boxed
    wrong_kind: WrongKind
    block: SavedBlock | None = None

    @contextmanager
    def around(self, text: Writer) -> Iterator[None]:
        """Lines around those that launch. The list is emptied last: a copy of it would take longer than some launches."""
        text.use("wrong_kind", self.wrong_kind)
        with text.block("try:"):
            for at, value in self.fixed.items():
                other = f"{text.use('as_compiled', self.as_compiled)}(args)"
                text.add(f"if not ({is_exactly(text, f'args[{at}]', value)}): return {other}")
            text.add(f"tensors = {list_of(f'args[{at}]' for at in self.places) if self.fixed else 'args'}")
            yield
        # Whoever calls compares types, mostly. They are asked for here when something failed, as it does before a launch.
        with text.block("except Exception as error:"):
            text.add("told = wrong_kind(args) if args else None", "args.clear()")
            text.add("if told is not None: raise told from error", "raise")

    def returned(self, text: Writer, made: Sequence[str], block: str | None = None) -> None:
        """Lines that return a list of the results."""
        items = self._listed(ResultMaker.of_text(text, made), block)
        text.add(f"results = {list_of(items)}", "args.clear()", "return results")

    def put_together(self, args: list[Any], made: Sequence[torch.Tensor]) -> list[Any]:
        """The results of a call that did not go the usual way."""
        block = None
        if isinstance(made, InBlock):
            *others, block = made
            made = self._saved().spread(others, len(self.returns.owners))
        results = self._listed(ResultMaker.of_values(args, made), block)
        args.clear()
        return results

    def _listed(self, result: ResultMaker, block: Any) -> list[Any]:
        refs = self.returns.refs
        return [*map(result, refs)] if block is None else self._saved().listed(refs, result, block)

    def _saved(self) -> SavedBlock:
        if self.block is None:
            raise InternalError("outputs came in a block that nobody asked for")
        return self.block

    def as_replay(self, call: Boxed) -> Replay:
        """A call function as one that takes tensors and gives new memory."""

        def replay(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
            results = call(self.arguments(tensors))
            if self.block is not None and type(results[-1]) is SavedLayout:
                return self.block.parted(results, self.returns.owners)
            return self.returns.bases_of(results)

        return replay

    def arguments(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """All arguments, in order."""
        given = {**self.fixed, **dict(zip(self.places, tensors, strict=True))}
        return [given[at] for at in range(len(given))]


def emit_boxed_call(name: str, boxing: GraphBoxing, replay: Replay) -> Source:
    """`call(args)` around a replay that is another function."""
    text = Writer(replay=replay)
    made = [f"made[{at}]" for at in range(len(boxing.returns.owners))]
    with text.block("def call(args):"):
        with boxing.around(text):
            text.add("made = replay(tensors, ())")
        if boxing.block is not None:
            with text.block(f"if type(made) is {text.use('InBlock', InBlock)}:"):
                boxing.returned(text, boxing.block.spread(made, len(made)), "made[-1]")
        boxing.returned(text, made)
    return text.source(f"replay of {name}", entry="call")


def work_of(graph: CompiledGraph, boxing: GraphBoxing, run: Boxed) -> Work:
    """The graph as work over its tensors alone, which gives new memory alone."""
    body = boxing.as_replay(run)
    tensor_at = {place: at for at, place in enumerate(boxing.places)}
    return Work(
        graph.name,
        body,
        lambda tensors: body(tensors, ()),
        names=tuple(graph.names[at] for at in boxing.places),
        mutated=frozenset(tensor_at[at] for at in graph.written if at in tensor_at),
        state=frozenset(tensor_at[at] for at in graph.static if at in tensor_at),
        tells=graph.tells,
        draws=graph.draws,
        generators=tuple(value for value in boxing.fixed.values() if isinstance(value, torch.Generator)),
        has_run=True,
        # On the host a body is taped; nothing of it lies elsewhere than it is told.
        is_opaque=True,
        boxing=boxing,
        block=boxing.block.block if boxing.block is not None else None,
    )
