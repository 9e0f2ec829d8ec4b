"""torch's default generators belong to the whole process: one thread at a time puts another state into one.

A capture swaps a device's generator for a moment; a trace in another thread gives generators seeds of its own. What one of them
sets while the other has swapped would be lost.
"""

from __future__ import annotations

from treeplay.observe.locks import shared_lock

moving = shared_lock()
"""Held for the few statements in which a generator's state is replaced or seeded."""
