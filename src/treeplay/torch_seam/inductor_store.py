"""Inductor's store of compiled graphs, on disk: one that is there is loaded by its key, without the compiler around it.

That takes a tenth of what importing the compiler does. And what compiled code depends on: torch's settings, the machine.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._dynamo.convert_frame import compile_lock as compile_lock
from torch._inductor import cpu_vec_isa
from torch._inductor.codecache import FxGraphCache
from torch._inductor.output_code import CompiledFxGraphConstants
from torch._inductor.triton_bundler import TritonBundler
from torch._inductor.utils import BoxedBool

from treeplay.torch_seam import flags
from treeplay.torch_seam.vector_isa import first_vector_instructions
from treeplay.values.boxed import Boxed

_PREFIXES = ("TORCHINDUCTOR_", "TORCH_", "PYTORCH_", "TRITON_")
_NAMES = frozenset(("CXX", "CC", "CPATH", "ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS", "MKL_NUM_THREADS"))
_ELSEWHERE = frozenset(("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_LOGS", "TORCH_TRACE"))


def is_in_use() -> bool:
    """Whether compiled graphs are kept at all."""
    return bool(inductor_config.fx_graph_cache) and not inductor_config.force_disable_caches


def key_in_store(compiled: Any) -> str | None:
    """By which key Inductor finds a compiled graph again; None if it keeps it not."""
    return getattr(compiled, "_fx_graph_cache_key", None)


def stored_graph(key: str, options: Mapping[str, Any]) -> Boxed | None:
    """The graph, compiled for known sizes under `options`, that Inductor has stored under `key`; None if there is none.

    What a file that is damaged raises, or a compiler that is gone, is raised."""
    with first_vector_instructions(), inductor_config.patch(dict(options)):
        # An entry with guards on sizes is another one than was asked for: its guards do not hold.
        found: Any = FxGraphCache.find_guarded_entry(key, True, None, lambda condition, sizes: False, [])[0]
        if found is None:
            return None
        if found._triton_bundle:
            TritonBundler.read_and_emit(found._triton_bundle)
        constants = CompiledFxGraphConstants()
        found.after_deserialization(constants)
        found.post_compile((), constants, {"cudagraphs": BoxedBool(False), "is_backward": False})
    call: Boxed | None = found.current_callable
    return call


def passes_of_the_users() -> bool:
    """Whether code of the user's takes part in compiling."""
    values = inductor_config.get_config_copy().values()
    common = sys.modules.get("torch._inductor.codegen.common")
    of_backends = [one for one in getattr(common, "custom_backend_passes", {}).values() if one is not None]
    return bool(of_backends) or any(callable(value) or hasattr(value, "uuid") for value in values)


def circumstances(device: torch.device) -> dict[str, Any]:
    """What besides the graph its compiled code depends on: versions, settings, the machine."""
    left_out = _ELSEWHERE | _set_by_torch()
    return {
        "torch": (str(torch.__version__), torch.version.git_version, torch.version.cuda, torch.version.hip),
        "python": sys.version,
        "inductor": inductor_config.save_config_portable(ignore_private_configs=False),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        ),
        "numbers": (torch.get_default_dtype(), flags.precisions()),
        "libraries": {what: flags.mode_value(read) for what, read in flags.LIBRARY_MODES.items()},
        "threads": torch.get_num_threads(),
        "machine": _machine(device),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if (name.startswith(_PREFIXES) or name in _NAMES) and name not in left_out
        },
    }


def _set_by_torch() -> frozenset[str]:
    """Variables that torch has set by itself: its first compile for a GPU sets this one, so that later ones would be others."""
    is_own = Path(os.environ.get("TRITON_PTXAS_PATH", "")).is_relative_to(Path(torch.__file__).parent)
    return frozenset({"TRITON_PTXAS_PATH"}) if is_own else frozenset()


def _machine(device: torch.device) -> tuple[Any, ...]:
    processor = (platform.machine(), sorted(cpu_vec_isa.x86_isa_checker()))
    if device.type != "cuda":
        return processor
    properties = torch.cuda.get_device_properties(device)
    return (*processor, properties.name, properties.multi_processor_count, version("triton"))
