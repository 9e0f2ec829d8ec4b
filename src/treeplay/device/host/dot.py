"""A tape as DOT text: one node per operator, an edge from each that must run before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treeplay.device.host.tape import Operation


def dot_of(operations: Sequence[Operation]) -> str:
    """The text; it starts with `digraph`."""
    nodes = [f'  n{index} [label="{index} {operation.name}"];' for index, operation in enumerate(operations)]
    edges = [f"  n{before} -> n{after};" for before, after in edges_of(operations)]
    return "\n".join(["digraph recording {", *nodes, *edges, "}", ""])


def edges_of(operations: Sequence[Operation]) -> Iterator[tuple[int, int]]:
    """Pairs that must keep their order because they share memory: write then read, write then write, read then write."""
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    for index, operation in enumerate(operations):
        before = {writer[storage] for storage in operation.reads | operation.writes if storage in writer}
        for storage in operation.writes:
            before |= readers.pop(storage, set())
            writer[storage] = index
        for storage in operation.reads - operation.writes:
            readers.setdefault(storage, set()).add(index)
        yield from ((earlier, index) for earlier in sorted(before - {index}))
