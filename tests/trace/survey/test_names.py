"""Names on the way to a value: whose classes are followed."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from treeplay.trace.survey.names import computes_keys, is_of_library


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("torch.nn", True),
        ("numpy", True),
        ("builtins", True),
        ("collections.abc", True),
        ("math", True),
        ("profile", True),
        ("types", False),  # namespaces hold settings
        ("__main__", False),
        ("a_package_of_mine.inner", False),
    ],
)
def test_classes_of_libraries_are_not_followed(module: str, expected: bool) -> None:
    assert is_of_library(module) == expected


def test_of_a_package_that_is_named_like_one_of_the_standard_library_the_file_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = types.ModuleType("profile")
    module.__file__ = str(tmp_path / "profile" / "__init__.py")
    monkeypatch.setitem(sys.modules, "profile", module)
    assert not is_of_library("profile.trainer")


@pytest.mark.parametrize("text", ["t[k]", "t[k] += 1", "t[k] = 1", "del t[k]", "t.items()", "f(**t)", "{**t}"])
def test_code_that_computes_strings_of_a_dictionary(text: str) -> None:
    assert computes_keys(compile(text, "", "exec"))


@pytest.mark.parametrize("text", ["t['k']", "t['k'] += 1", "t['k'] = 1", "t[1:]", "t[0, 1]", "t.k", "f(k=t)"])
def test_code_that_spells_out_all_strings_of_dictionaries(text: str) -> None:
    assert not computes_keys(compile(text, "", "exec"))
