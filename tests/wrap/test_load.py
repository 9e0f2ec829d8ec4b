"""Generated source becomes a function that tracebacks can show."""

from __future__ import annotations

import traceback

from treeplay.facts.source import Source
from treeplay.wrap.load import load_source


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
