"""Generated functions: one writer of their text, one loader, and the phrases that several of them have in common.

    plan, signature, guards ─ an emitter, with a Writer ─▶ Source(name, text, names) ─ load_source ─▶ function

An emitter is pure: it runs nothing and returns a `Source`, a value. Each stays with what it writes for: the call function
(`wrap/emit.py`), a compiled graph's call and node (`wrap/aot/`), the operators of a graph (`lower/aten/`), a launch and its
moves (`device/cuda/`), the check of guards (`guards/`). `compiler.py` finds the compilers of C++, of C and for GPUs,
and `library.py` compiles what the package has in C.
"""

from treeplay.codegen.load import hide_from_dynamo, load_source
from treeplay.codegen.writer import Source, Writer, list_of, tuple_of

__all__ = ["Source", "Writer", "hide_from_dynamo", "list_of", "load_source", "tuple_of"]
