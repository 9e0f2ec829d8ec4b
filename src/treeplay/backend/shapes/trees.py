"""Nested values of graphs: what torch.fx froze made plain again, taken apart, compared and put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treeplay.errors import UsageError
from treeplay.torch_seam import trees as pytree
from treeplay.torch_seam.trees import TreeSpec

CONTAINERS = (list, tuple, dict)


def thawed(value: Any) -> Any:
    """`value` with the list and dict classes that torch.fx keeps arguments in replaced by Python's own."""
    if isinstance(value, dict):
        return {key: thawed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [thawed(part) for part in value]
    if isinstance(value, tuple):
        parts = [thawed(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def is_flat(values: Sequence[Any]) -> bool:
    """Whether no value is a container."""
    return not any(isinstance(value, CONTAINERS) for value in values)


def flatten_tree(value: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of `value` in order and the tree that puts them together."""
    return pytree.tree_flatten(value)


def unflatten_tree(leaves: Sequence[Any], tree: TreeSpec) -> Any:
    """Put leaves together again."""
    return pytree.tree_unflatten(leaves, tree)


def leaves_like(value: Any, tree: TreeSpec) -> list[Any]:
    """The leaves of `value`, whose tree has to be `tree`."""
    leaves, found = flatten_tree(value)
    if found != tree:
        raise UsageError(
            "the arguments are nested in another way than when the graph was compiled\n"
            f"  expected  {tree_text(tree)}\n"
            f"  found     {tree_text(found)}\n"
            "Call it with the same containers and keys, or compile the graph anew for these."
        )
    return leaves


def tree_text(tree: TreeSpec) -> str:
    """A tree as the value it stands for, with `*` for each leaf: `([*], {'a': *})`."""
    return repr(unflatten_tree([_Star()] * tree.num_leaves, tree))


class _Star:
    def __repr__(self) -> str:
        return "*"
