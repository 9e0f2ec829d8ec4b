"""Programs that change a namespace, or what a module holds: what code spells out a replay does too, the rest is refused."""

from __future__ import annotations

import itertools
import math
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import treeplay
from support.follows import Story, follows

Tensor = torch.Tensor
_numbers = itertools.count()


def _name() -> str:
    """Another one for each side of a story."""
    return f"treeplay_{next(_numbers)}"


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    path, modules, environment, own = [*sys.path], {**sys.modules}, dict(os.environ), {**globals()}
    yield
    for name in [name for name in globals() if name not in own]:
        del globals()[name]
    for name in [name for name in sys.modules if name not in modules and name.startswith("treeplay_")]:
        del sys.modules[name]
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)


def _module() -> Any:
    made = types.ModuleType(_name())
    made.__file__ = __file__  # as one of the user's own
    made.table = {"odd": False}  # type: ignore[attr-defined]
    made.total = 0  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made
    return made


def _of_text(change: str, **names: Any) -> dict[str, Any]:
    """A namespace of its own with a program in it."""
    exec(f"def program(x):\n    {change}\n    return x * 2 - 1", names)
    return names


@pytest.mark.parametrize(
    "change",
    [
        "globals()['total'] = total + 1",
        "globals()['total'] += 1",
        "vars(module)['total'] = module.total + 1",
        "module.__dict__['total'] = module.total + 1",
        "import {name}; {name}.total += 1",
    ],
)
def test_a_count_in_a_namespace_is_counted_by_each_replay(change: str) -> None:
    @follows(calls=8, recordings=1)
    def story() -> Story:
        module = _module()
        made = _of_text(change.format(name=module.__name__), total=0, module=module)
        yield made["program"], lambda: (made["total"], module.total)

    story()


@pytest.mark.parametrize(
    "change",
    [
        "import {name}; {name}.table['odd'] = not {name}.table['odd']",
        "from {name} import table; table['odd'] = not table['odd']",
        "globals().pop('odd') if 'odd' in globals() else globals().__setitem__('odd', 1)",
    ],
)
def test_an_entry_that_changes_is_changed_by_each_replay(change: str) -> None:
    @follows(calls=8, recordings=2)
    def story() -> Story:
        module = _module()
        made = _of_text(change.format(name=module.__name__))
        yield made["program"], lambda: ("odd" in made, module.table["odd"])

    story()


@pytest.mark.parametrize(
    "change",
    [
        "globals().update(total=1 - total)",
        "globals()['to' + 'tal'[:3]] = 1 - total",
        "exec('global total; total = 1 - total')",
        "holder.module.table['odd'] = not holder.module.table['odd']",
        "vars(holder.module)['total'] = 1 - holder.module.total",
    ],
)
def test_what_no_name_leads_to_is_put_back_and_refused(change: str) -> None:
    @follows(calls=6, refused="")
    def story() -> Story:
        module = _module()
        made = _of_text(change, total=0, holder=types.SimpleNamespace(module=module))
        yield made["program"], lambda: (made["total"], module.total, module.table["odd"])

    story()


def _of_library() -> Callable[[], Any]:
    name = _name()
    setattr(math, name, False)

    def change() -> Any:
        vars(math)[name] = not vars(math)[name]
        return vars(math)[name]

    return change


def _environment() -> Callable[[], Any]:
    name = _name()

    def change() -> Any:
        if name in os.environ:
            del os.environ[name]
        else:
            os.environ[name] = "1"
        return name in os.environ

    return change


def _path() -> Callable[[], Any]:
    name = _name()

    def change() -> Any:
        if name in sys.path:
            sys.path.remove(name)
        else:
            sys.path.insert(0, name)
        return name in sys.path

    return change


def _modules() -> Callable[[], Any]:
    def change() -> Any:
        if "treeplay_loaded" in sys.modules:
            del sys.modules["treeplay_loaded"]
        else:
            sys.modules["treeplay_loaded"] = types
        return "treeplay_loaded" in sys.modules

    return change


PLACES = {"a library's module": _of_library, "os.environ": _environment, "sys.path": _path, "sys.modules": _modules}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process without other threads, one of which may have done what nothing shows to be the program's."""
    monkeypatch.setattr("treeplay.trace.jit.has_company", lambda: False)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("what", PLACES)
def test_what_a_program_changes_in_a_library_is_put_back_and_refused(what: str) -> None:
    change = PLACES[what]()

    def program(x: Tensor) -> Tensor:
        change()
        return x * 2 - 1

    step = treeplay.jit(program, lower="aten", on_refusal="raise")
    step(torch.ones(2))
    with pytest.raises(treeplay.Refusal) as raised:
        step(torch.ones(2))
    assert raised.value.where is not None
    assert raised.value.where.file == __file__
    assert change() is False  # as after one call


def test_the_environment_that_c_code_reads_is_put_back() -> None:
    name = _name()

    def program(x: Tensor) -> Tensor:
        os.environ[name] = os.environ.get(name, "") + "1"
        return x * 2 - 1

    step = treeplay.jit(program, lower="aten", on_refusal="raise")
    step(torch.ones(2))
    with pytest.raises(treeplay.Refusal):
        step(torch.ones(2))
    assert os.environ[name] == "1"
    assert os.popen(f"echo ${name}").read() == "1\n"


def test_what_a_refused_program_assigns_to_a_module_is_put_back() -> None:
    name = _name()
    setattr(math, name, 0)

    def program(x: Tensor) -> Tensor:
        setattr(math, name, getattr(math, name) + 1)
        return x * float(x.sum())

    step = treeplay.jit(program, lower="aten", on_refusal="raise")
    step(torch.ones(2))
    with pytest.raises(treeplay.Refusal):
        step(torch.ones(2))
    assert getattr(math, name) == 1
