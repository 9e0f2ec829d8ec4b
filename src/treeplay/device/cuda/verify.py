"""Reads back what patching sets: a graph can take new parameters with success and lose what it was launched with.

Parameters of an executable cannot be read; those of the graph it came from can. Each node is given its own parameters there,
unchanged, and then compared: bytes, sizes of the launch and every launch attribute that the driver lets one read.
"""

from __future__ import annotations

from treeplay.device.cuda.nodes import Shapes, read_node
from treeplay.device.cuda.patch import Patcher


def unfaithful_nodes(patcher: Patcher) -> dict[int, str]:
    """The nodes that do not stay what they are when set, each with what changed. To be asked before anything moves.

    Of the launches of one function with as many threads one is asked about: what is lost is lost by the driver's call.
    """
    shapes: Shapes = {}
    found: dict[int, str] = {}
    asked = set()
    for index, node in patcher.nodes.items():
        before = read_node(node.handle, shapes)
        if before.frame in asked:
            continue
        asked.add(before.frame)
        attributes = node.attributes()
        node.set_template()
        after, attributes_after = read_node(node.handle, shapes), node.attributes()
        if before.frame != after.frame:
            found[index] = "its launch changed when its parameters were set"
        elif before.buffers != after.buffers:
            found[index] = "its parameters read back other than they were set"
        elif attributes != attributes_after:
            changed = sorted(set(attributes.items()) ^ set(attributes_after.items()))
            found[index] = f"launch attribute {changed[0][0]} changed when its parameters were set"
    return found
