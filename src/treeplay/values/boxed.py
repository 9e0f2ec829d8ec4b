"""How a compiled graph is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Boxed = Callable[[list[Any]], Sequence[Any]]
"""Takes its arguments in one list, which it empties, so that each can die at its last use."""
