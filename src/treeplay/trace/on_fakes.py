"""An operator run on fake tensors: what it gives has a shape and no data; what cannot run so is refused."""

from __future__ import annotations

from typing import Any

from treeplay.torch_seam.fakes import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from treeplay.trace.tape import KEEP_ON_DEVICE, TraceTape, spoken_name
from treeplay.values.location import Location


def run_on_fakes(tape: TraceTape, func: Any, args: Any, kwargs: Any, where: Location | None) -> Any:
    """The results of an operator; raises `Refusal` if they depend on data or it has no rule for fakes."""
    try:
        with tape.fake_mode:
            return func(*args, **kwargs)
    except DataDependentOutputException:
        raise tape.refuse(
            spoken_name(func), "its result is a Python value that depends on data", KEEP_ON_DEVICE, where
        ) from None
    except DynamicOutputShapeException:
        raise tape.refuse(
            spoken_name(func),
            "the shape of its result depends on data",
            "use a form with a fixed shape: torch.where, a mask that is multiplied in, or topk",
            where,
        ) from None
    except UnsupportedOperatorException:
        raise tape.refuse(
            spoken_name(func),
            "has no rule for running without data",
            "register one with torch.library.register_fake",
            where,
        ) from None
