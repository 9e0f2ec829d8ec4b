"""Nested values taken apart into leaves, and put together."""

from __future__ import annotations

from torch.utils._pytree import TreeSpec as TreeSpec
from torch.utils._pytree import arg_tree_leaves as arg_tree_leaves
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_iter as tree_iter
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_unflatten as tree_unflatten
