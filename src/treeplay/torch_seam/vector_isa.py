"""The vector instructions that Inductor compiles for: found out with as little as it takes, and once for a machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._inductor import cpu_vec_isa
from torch._inductor.cpp_builder import get_cpp_compiler

from treeplay.torch_seam.kept_file import alone, read_text, write_text
from treeplay.torch_seam.patched import Shared


def _valid_vector_instructions(
    original: Callable[[], list[Any]], is_wanted: Callable[[], bool]
) -> Callable[[], list[Any]]:
    def valid_vec_isa_list() -> list[Any]:
        if not is_wanted() or not _takes_the_first():
            return original()
        has = cpu_vec_isa.x86_isa_checker()
        wanted = [isa for isa in cpu_vec_isa.supported_vec_isa_list if all(flag in has for flag in str(isa).split())]
        where = _where(has)
        return _known(wanted, where) or _found_out(wanted, where)

    return valid_vec_isa_list


def _takes_the_first() -> bool:
    """Whether Inductor compiles for the first set of vector instructions that works, and not for one that is asked for."""
    is_asked_for = os.getenv("ATEN_CPU_CAPABILITY") or inductor_config.cpp.simdlen is not None
    is_known = sys.platform == "linux" and platform.machine() == "x86_64"
    return is_known and not is_asked_for and hasattr(cpu_vec_isa, "supported_vec_isa_list")


first_vector_instructions = Shared(cpu_vec_isa, "valid_vec_isa_list", _valid_vector_instructions).wanted
"""A context in which Inductor tries no more sets of vector instructions than it needs. It compiles and loads a library for
each, which takes five to ten seconds for all of them, or one once they are compiled, and then takes the first that works.
Which that was is kept beside the libraries: a later process loads none."""

_FILE = "treeplay/vector_instructions.json"


def _known(wanted: Sequence[Any], where: Any) -> list[Any]:
    """The set that an earlier process found; none if nothing is known of this processor with this compiler."""
    try:
        kept = json.loads(read_text(_FILE) or "null")
        names = [kept["works"]] if where is not None and kept["where"] == where else []
    except (ValueError, TypeError, KeyError):  # somebody else's words
        return []
    return [isa for isa in wanted if str(isa) in names]


def _found_out(wanted: Sequence[Any], where: Any) -> list[Any]:
    # One process for all that begin at once, such as the ranks of a machine: torch loads the libraries one after the other.
    with alone(_FILE):
        works = ([isa] for isa in wanted if isa)  # asking one compiles and loads its library
        found = _known(wanted, where) or next(works, [])
        if found and where is not None:
            write_text(_FILE, json.dumps({"where": where, "works": str(found[0])}))
    return found


def _where(has: Sequence[str]) -> list[Any] | None:
    """What the answer depends on; None without a compiler, or one that is no file."""
    try:
        compiler = os.path.realpath(shutil.which(get_cpp_compiler()) or "")
        status = os.stat(compiler)
    except (OSError, RuntimeError):
        return None
    return [str(torch.__version__), sorted(has), compiler, status.st_size, status.st_mtime_ns]
