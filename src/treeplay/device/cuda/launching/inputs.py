"""Lines of a launch function that bring numbers and arguments to where the graph reads them.

Numbers are filled into their vector. State is asked about in one go, since it seldom moves. The address of an argument that
moves goes into the graph; one whose address cannot is copied.
"""

from __future__ import annotations

from typing import Any

from treeplay.device.cuda.launching.parts import LaunchParts, Patched
from treeplay.device.cuda.launching.text import FEW, LaunchText, lines_of_move


def write_inputs(text: LaunchText, parts: LaunchParts) -> None:
    """Lines that bring numbers and arguments to where the graph reads them."""
    if parts.vector is not None:
        text.add(f"{text.use('fill', parts.vector.fill)}(numbers)")
    if parts.steady:
        addresses, steady = text.use("addresses", parts.addresses), text.use("steady", list(parts.steady))
        text.add(f"if not {text.are_at()}(tensors, {addresses}, {steady}):")
        text.add(f"    {text.use('moved', parts.moved)}(tensors)")
    _write_patched(text, parts)
    for copied in parts.copied:
        text.add(f"{text.use(f'buffer{copied.index}', copied.buffer)}.copy_(tensors[{copied.index}])")


def _write_patched(text: LaunchText, parts: LaunchParts) -> None:
    """Lines for the arguments that move."""
    if len(parts.patched) <= FEW:
        for item in parts.patched:
            _write_move(text, item, parts.align, at=text.keep(f"at{item.index}", item.address))
        return
    count = max(item.index for item in parts.patched) + 1
    captured = {item.index: item.address for item in parts.patched}
    # Of all, since one index is for both lists; and as captured, which need not be where the first call's tensors lie.
    given_at = text.use("given_at", [captured.get(at, 0) for at in range(count)])
    given = text.use("given", [item.index for item in parts.patched])
    with text.block(f"if not {text.are_at()}(tensors, {given_at}, {given}):"):
        for item in parts.patched:
            _write_move(text, item, parts.align, at=f"{given_at}[{item.index}]")


def _write_move(text: LaunchText, item: Patched, align: Any, *, at: str) -> None:
    """Lines for one argument; where it lies is kept in `at`."""
    text.add(f"p = tensors[{item.index}].data_ptr()")
    with text.block(f"if p != {at}:"):
        if item.modulus > 1:
            with text.block(f"if p % {item.modulus} != {item.residue}:"):
                if item.is_mutated:
                    text.add("raise Unplaced")
                else:
                    aligned = f"{text.use('align', align)}(tensors[{item.index}], {item.residue}, {item.modulus})"
                    # The name keeps the copy alive until it is launched: `p` is only its address.
                    text.add(f"aligned{item.index} = {aligned}", f"p = aligned{item.index}.data_ptr()")
        text.add(*lines_of_move(at, text.use(f"move{item.index}", item.move)))
