"""Reads back what patching sets: a graph can take new parameters with success and lose what it was launched with.

Parameters of an executable cannot be read; those of the graph it came from can. Each node is given its own parameters there,
unchanged, and then compared: bytes, sizes of the launch and every launch attribute that the driver lets one read.
"""

from __future__ import annotations

from collections.abc import Mapping

from treeplay.device.cuda.nodes.own import OwnNode
from treeplay.device.cuda.nodes.reading import Shapes, read_node
from treeplay.errors import InternalError


def unfaithful_nodes(nodes: Mapping[int, OwnNode]) -> dict[int, str]:
    """The nodes that cannot be set, or do not stay what they are, each with what happened. To be asked before anything moves.

    Of the launches of one function with as many threads one is asked about: what is lost is lost by the driver's call.
    """
    shapes: Shapes = {}
    told: dict[object, str | None] = {}
    found: dict[int, str] = {}
    for index, node in nodes.items():
        frame = read_node(node.handle, shapes).frame
        if frame not in told:
            told[frame] = _what_went_wrong(node, shapes)
        wrong = told[frame]
        if wrong is not None:
            found[index] = wrong
    return found


def _what_went_wrong(node: OwnNode, shapes: Shapes) -> str | None:
    before, attributes = read_node(node.handle, shapes), node.attributes()
    try:
        node.set_template()
    except InternalError as error:
        return f"its node cannot be changed: {error}"
    after, attributes_after = read_node(node.handle, shapes), node.attributes()
    if before.frame != after.frame:
        return "its launch changed when its parameters were set"
    if before.buffers != after.buffers:
        return "its parameters read back other than they were set"
    if attributes != attributes_after:
        changed = sorted(set(attributes.items()) ^ set(attributes_after.items()))
        return f"launch attribute {changed[0][0]} changed when its parameters were set"
    return None
