"""Generated source becomes a function that tracebacks can show."""

from __future__ import annotations

import gc
import linecache
import traceback

from treeplay.codegen import Source, load_source


def test_a_traceback_shows_the_generated_line():
    function = load_source(Source("test", "def run(x):\n    return x / zero\n", {"zero": 0}, "run"))
    try:
        function(1)
    except ZeroDivisionError as error:
        text = "".join(traceback.format_exception(error))
    assert "return x / zero" in text
    assert "<treeplay test" in text


def test_names_are_the_functions_own():
    first = load_source(Source("test", "def run():\n    return value\n", {"value": 1}, "run"))
    second = load_source(Source("test", "def run():\n    return value\n", {"value": 2}, "run"))
    assert (first(), second()) == (1, 2)


def test_the_text_of_a_function_goes_with_it():
    def kept() -> int:
        return sum(file.startswith("<treeplay short-lived") for file in linecache.cache)

    functions = [load_source(Source("short-lived", "def run():\n    return 1\n", {}, "run")) for _ in range(3)]
    assert kept() == 3
    functions.clear()
    gc.collect()
    assert kept() == 0
