"""The names that code uses, told by its instructions."""

from __future__ import annotations

import dis
import gc
from types import CodeType, FunctionType
from typing import Any

import pytest

from treeplay.guards.reads.names import (
    asks_its_own,
    computes_names,
    globals_in,
    globals_within,
    goes_behind,
    imports_in,
    inner_code,
    named_steps,
    names_in,
    names_within,
    stores_within,
    strings_within,
    takes_tables,
    values_within,
)


def test_steps_with_names_are_those_that_dis_finds() -> None:
    functions = [found for found in gc.get_objects() if type(found) is FunctionType]
    for function in functions[:: max(1, len(functions) // 500)]:
        code = function.__code__
        steps = [step for step in dis.get_instructions(code) if step.opcode in dis.hasname]
        # Since Python 3.12 a method is loaded by `LOAD_ATTR`, with a flag.
        is_method = [step.opname == "LOAD_ATTR" and "NULL|self" in step.argrepr for step in steps]
        names = ["LOAD_METHOD" if method else step.opname for method, step in zip(is_method, steps, strict=True)]
        assert [*named_steps(code)] == [*zip(names, (step.argval for step in steps), strict=True)]


def code_of(text: str) -> CodeType:
    scope: dict[str, Any] = {}
    body = "\n".join(f"    {line}" for line in text.splitlines())
    exec(f"def f(x):\n{body}", scope)
    code: CodeType = scope["f"].__code__
    return code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("return x + a", {"a"}),
        ("return a.b.c", {"a"}),
        ("return a.b(x)", {"a"}),
        ("return len(x)", {"len"}),
        ("global a\na = 1", {"a"}),
        ("global a\ndel a", {"a"}),
        ("x.a = b\ndel x.c", {"b"}),
        ("import a.b\nreturn a", set()),
        ("from a import b\nreturn b", set()),
        ("b = 1\nreturn b", set()),
        ("return lambda: a", set()),
        ("class A:\n    b = c\nreturn A", set()),
        ("return x", set()),
    ],
)
def test_globals_are_told_from_attributes_imports_and_locals(text: str, expected: set[str]) -> None:
    assert globals_in(code_of(text)) == expected


def test_names_of_a_class_body_count_where_it_runs() -> None:
    inner = next(c for c in code_of("class A:\n    b = c").co_consts if isinstance(c, CodeType))
    assert globals_in(inner) >= {"c"}


def test_globals_of_functions_inside_count_and_attributes_do_not() -> None:
    code = code_of("def outer():\n    def inner():\n        y.a = b\n        return c.d()\n    return inner")
    (outer,) = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    assert globals_within(outer) == {"y", "b", "c"}


def test_imports_are_named_with_their_packages() -> None:
    assert imports_in(code_of("import a.b.c\nfrom d import e")) == {"a", "a.b", "a.b.c", "d"}
    assert imports_in(code_of("from . import e")) == {""}
    assert not imports_in(code_of("return x"))


def test_names_are_those_of_instructions_and_strings_that_could_be_names() -> None:
    found = names_in(code_of("return getattr(x.rate, 'scale.inner') + table['no name'] + '2'"))
    assert {"getattr", "rate", "scale", "inner", "table"} <= found
    assert not {"no name", "2", "x"} & found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("return getattr(x, 'a')", False),
        ("return getattr(x, 'a', None)", False),
        ("return getattr(x.b[0].c(1), 'a', {})", False),
        ("return getattr(getattr(x, 'a'), 'b')", False),
        ("return hasattr(x, 'a') and hasattr(x.b, 'c')", False),
        ("return f(x, 'a')", False),
        ("return getattr(x, y)", True),
        ("return getattr(x, y, 'a')", True),
        ("return getattr(x, 'a' + y)", True),
        ("return getattr(x, y, f('a'))", True),
        ("return getattr(getattr(x, y), 'a')", True),
        ("return getattr(x, 'a' if y else 'b')", True),
        ("return f(x, 'a'), getattr(x, y)", True),
        ("return getattr(*x)", True),
        ("return map(getattr, x, y)", True),
        ("f = getattr\nreturn f(x, 'a')", True),
        ("return vars(x)", True),
        ("return dir(x)", True),
        ("return x.getattr(y)", False),
    ],
)
def test_names_that_are_computed_are_told_from_those_that_are_spelled_out(text: str, expected: bool) -> None:
    assert computes_names(code_of(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("return x.__dict__", True),
        ("return x.__dict__[y]", True),
        ("return [f(a) for a in x.__dict__.items()]", True),
        ("return x.__dict__['a'], y.__dict__", True),
        ("return getattr(x, '__dict__')", True),
        ("return x.__dict__['a']", False),
        ("return x.__dict__.get('a', y)", False),
        ("return self.__dict__", False),
        ("return vars(x)", False),
    ],
)
def test_code_that_takes_the_dictionary_of_something_but_its_own_object(text: str, expected: bool) -> None:
    codes = [code_of(text), *inner_code(code_of(text))]
    assert any(map(takes_tables, codes)) == expected


def test_names_in_a_format_count() -> None:
    assert {"gain", "bias"} <= names_in(code_of("return '{0.gain!s} {0[bias]}'.format(x)"))


class Passing:
    def store(self, name: str, value: object) -> None:
        super().__setattr__(name, value)

    def load(self, name: str) -> object:
        return super().__getattribute__(name)

    def both(self, other: object) -> None:
        super().__setattr__("a", 1)
        object.__setattr__(other, "a", 1)

    def elsewhere(self, other: object) -> object:
        return object.__getattribute__(other, "a")

    def kept(self) -> object:
        return super().__setattr__

    def behind(self, name: str) -> object:
        return object.__getattribute__(self, name)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        *(("store", True), ("load", True), ("kept", True), ("behind", True)),
        *(("both", False), ("elsewhere", False)),
    ],
)
def test_what_goes_to_super_is_told_from_what_goes_to_others(method: str, expected: bool) -> None:
    assert asks_its_own(vars(Passing)[method].__code__) is expected


READERS = {
    "super().__getattribute__(name)": False,
    "object.__getattribute__(self, name)": False,
    "super().__getattribute__('a')": True,
    "object.__getattribute__(self, 'a')": True,
    "object.__getattribute__(other, name)": True,
    "super().__getattribute__(name) if name != 'a' else super().__getattribute__('b')": True,
    "self.__dict__[name]": False,
}


@pytest.mark.parametrize("kind", ["__getattribute__", "__getattr__"])
@pytest.mark.parametrize("text", READERS)
def test_a_method_that_asks_for_another_name_goes_behind_its_class(text: str, kind: str) -> None:
    made: dict[str, Any] = {}
    exec(f"class Reader:\n  def {kind}(self, name):\n    return {text}", made)
    assert goes_behind(vars(made["Reader"])[kind].__code__) is READERS[text]


def test_a_method_that_asks_for_its_name_under_another_goes_behind_its_class() -> None:
    made: dict[str, Any] = {}
    text = "class Reader:\n  def __getattribute__(self, name):\n    name = names.get(name, name)\n    "
    exec(f"{text}return super().__getattribute__(name)", made)
    assert goes_behind(vars(made["Reader"])["__getattribute__"].__code__)


def program(x: Any, opt: Any, table: Any) -> Any:
    global COUNT
    COUNT = scale(x)  # type: ignore[name-defined]  # noqa: F821
    opt.step()
    opt.rate = table["key"]
    return lambda: inner.attribute  # type: ignore[name-defined]  # noqa: F821


def test_all_names_include_methods_and_inner_functions() -> None:
    assert {"COUNT", "scale", "step", "rate", "inner", "attribute"} <= names_within(program.__code__)


def test_a_method_call_reads_no_value_of_that_name() -> None:
    values = values_within(program.__code__)
    assert {"scale", "inner", "attribute", "rate"} <= values and "step" not in values


def test_stores_are_what_is_assigned_or_deleted() -> None:
    assert {"COUNT", "rate"} <= stores_within(program.__code__) and "scale" not in stores_within(program.__code__)


def test_strings_are_the_keys_a_function_may_look_up() -> None:
    assert "key" in strings_within(program.__code__)
