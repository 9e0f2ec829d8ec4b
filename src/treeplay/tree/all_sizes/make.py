"""A recording for all sizes: all but its call function, which is written once it is known what was asked of the sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from treeplay.codegen import Source
from treeplay.torch_seam import dynamo
from treeplay.trace.call import Call
from treeplay.tree.all_sizes.compile import MadeForAllSizes, not_yet
from treeplay.tree.table import Recording
from treeplay.values.boxed import Boxed
from treeplay.values.failing import ToKeep
from treeplay.values.launch import LaunchFacts
from treeplay.values.plan import Plan
from treeplay.values.signature import Signature
from treeplay.values.sizes import AskedOfSizes
from treeplay.wrap.ambience import Ambience
from treeplay.wrap.emit import CallParts, emit_recording_call
from treeplay.wrap.found import current_inputs
from treeplay.wrap.of_signature import checked_tensors, with_classes
from treeplay.wrap.take_back import TakeBack


def make_for_all_sizes(
    signature: Signature,
    plan: Plan,
    compile_it: Callable[[], tuple[Boxed, AskedOfSizes]],
    call: Call,
    changing: Mapping[int, frozenset[int]],
    seconds: dict[str, float],
    *,
    operators: int,
    name: str,
) -> MadeForAllSizes:
    """What records calls like `call`, with any size in the dimensions of its leaves that are in `changing`. What runs is what
    `compile_it` gives, with what has to hold of the sizes."""
    inputs = current_inputs(signature, call)
    signature, checked = with_classes(signature, call, inputs), checked_tensors(signature, call, inputs)
    # Reversed: of a tensor that is given twice, the first place counts.
    places = {id(tensor): at for at, tensor in reversed(list(enumerate(checked)))}
    check = dynamo.tensor_check(checked, {places[id(call.leaves[at])]: changing[at] for at in changing})
    write = partial(_write, check=check, ambience=Ambience.now(), name=name)
    on_the_host = LaunchFacts("cpu", "bound")
    recording = Recording(
        call=not_yet,
        signature=signature,
        plan=plan,
        lowering="inductor",
        operators=operators,
        source="",
        seconds=seconds,
        launch=lambda: on_the_host,
        free=lambda: None,
        draws=False,
        tier="Inductor compiles it for all sizes in the background",
    )

    def compiled() -> Callable[[Recording], Source]:
        run, asked = compile_it()
        return partial(write, run, asked)

    return MadeForAllSizes(recording, compiled)


def _write(
    run: Boxed, asked: AskedOfSizes, recording: Recording, *, check: Any, ambience: Ambience, name: str
) -> Source:
    recording.signature = replace(recording.signature, sizes=asked)
    # Nothing is written, and nothing drawn: a call whose operators fail runs as it is.
    parts = CallParts(run=_without_numbers(run), check=check, back=TakeBack(ToKeep(), ()))
    return emit_recording_call(recording.signature, ambience, parts, name=f"call {name} for all sizes")


def _without_numbers(run: Boxed) -> Callable[[list[Any], Sequence[float]], Sequence[torch.Tensor]]:
    return lambda tensors, _: run(tensors)
