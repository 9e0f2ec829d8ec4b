"""A node that does not stay what it is when it is set is told, with what changed: needs no GPU."""

from __future__ import annotations

import pytest

from treeplay.device.cuda.nodes import verify
from treeplay.errors import InternalError
from treeplay.values.nodes import Kernel


class Node:
    """Reads as `before` until it is set, then as `after`: pairs of what the driver tells and of attributes."""

    def __init__(self, before, after):
        self.handle = self
        self._states = [before, after]

    def read(self):
        return self._states[0][0]

    def attributes(self):
        return self._states[0][1]

    def set_template(self):
        self._states.pop(0)


def kernel(params: bytes = b"12345678", grid: int = 1) -> Kernel:
    return Kernel("k", 1, (grid, 1, 1), (32, 1, 1), 0, (params,))


CLUSTER = {4: b"\x02\0\0\0"}


@pytest.mark.parametrize(
    ("after", "text"),
    [
        ((kernel(), CLUSTER), None),
        ((kernel(b"87654321"), CLUSTER), "read back other than they were set"),
        ((kernel(grid=2), CLUSTER), "its launch changed"),
        ((kernel(), {}), "launch attribute 4 changed"),
        ((kernel(), {4: b"\x01\0\0\0"}), "launch attribute 4 changed"),
    ],
)
def test_what_changes_when_a_node_is_set(monkeypatch, after, text):
    monkeypatch.setattr(verify, "read_node", lambda handle, shapes: handle.read())
    found = verify.unfaithful_nodes({3: Node((kernel(), CLUSTER), after)})
    assert (found == {}) if text is None else (text in found[3])


def test_every_launch_of_a_function_that_cannot_be_set_is_told(monkeypatch):
    class Stubborn(Node):
        def set_template(self):
            raise InternalError("cuGraphKernelNodeSetParams_v2 failed with CUDA driver code 1")

    monkeypatch.setattr(verify, "read_node", lambda handle, shapes: handle.read())
    same = (kernel(), CLUSTER)
    other = (kernel(grid=2), CLUSTER)
    found = verify.unfaithful_nodes({1: Stubborn(same, same), 4: Stubborn(same, same), 6: Node(other, other)})
    assert list(found) == [1, 4] and "cannot be changed: cuGraphKernelNodeSetParams_v2" in found[4]
