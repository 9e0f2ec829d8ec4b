"""Code of installed packages, and modules named like those of the standard library, are guarded like one's own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.follows import Story, follows

Tensor = torch.Tensor

SOURCE = """
import functools

GAIN = 2.0
TABLE = {"shift": 1.0, "list": [1.0, 2.0]}

def scaled(x, power=1, *, shift=0.5):
    return x * GAIN ** power - shift

def from_table(x):
    for name, value in TABLE.items():
        x = x * 2 - (value if name != "list" else sum(value))
    return x

def make(factor):
    def inner(x):
        return x * factor[0] - 1
    return inner

class Base:
    rate = 3.0

    def __init__(self):
        self.scale = 2.0
        self.mode = "add"
        self.options = {"a": 1.0}

    def __call__(self, x):
        return self.forward(x)

    def forward(self, x):
        x = x * self.scale - self.rate
        return x + self.options["a"] if self.mode == "add" else x - self.options["a"]

    @property
    def total(self):
        return self.scale * self.rate

    @staticmethod
    def static(x):
        return x * GAIN - 3

    @classmethod
    def of_class(cls, x):
        return x * cls.rate - 3

class Heir(Base):
    def forward(self, x):
        return super().forward(x) * 2 - 1

class Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 2.0

    def apply(self, x):
        return x * self.scale - 1
"""


def _write(folder: Path, name: str) -> Any:
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


def _installed(_: Path, name: str) -> Any:
    """A module whose file lies where this Python installs packages, without writing there."""
    file = str(Path(sysconfig.get_paths()["purelib"]) / name / "__init__.py")
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    exec(compile(SOURCE, file, "exec"), vars(module))
    return module


def _from_file(folder: Path, name: str) -> Any:
    """A file next to the program, imported under a name that the standard library has too."""
    file = folder / f"{name}.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _object(_: Path, name: str) -> Any:
    module = types.ModuleType(name)
    exec(SOURCE, vars(module))
    return module


KINDS: dict[str, tuple[Callable[[Path, str], Any], str]] = {
    "in site-packages": (lambda path, name: _write(path / "lib" / "site-packages", name), "a_package_of_a_test"),
    "installed": (_installed, "an_installed_package_of_a_test"),
    "beside the program": (_write, "a_local_package_of_a_test"),
    "file named config": (_from_file, "config"),
    "file named queue": (_from_file, "queue"),
    "file named statistics": (_from_file, "statistics"),
    "file named types": (_from_file, "types"),
    "object named numpy": (_object, "numpy"),
    "object named random": (_object, "random"),
}


@pytest.fixture(params=KINDS)
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Makes the module anew."""
    make, name = KINDS[request.param]
    before = sys.modules.get(name)
    count = iter(range(9))

    def made() -> Any:
        is_importable = name.endswith("test")
        folder = tmp_path / str(next(count))
        folder.mkdir()
        if is_importable:
            sys.modules.pop(name, None)
        return make(folder, name)

    yield made
    if before is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = before


CHANGES: dict[str, tuple[Callable[[Any, Any, Tensor], Tensor], Callable[[Any, Any], Any]]] = {
    "a global": (lambda m, o, x: m.scaled(x), lambda m, o: setattr(m, "GAIN", 5.0)),
    "a table": (lambda m, o, x: m.from_table(x), lambda m, o: m.TABLE.update(shift=5.0)),
    "a list in a table": (lambda m, o, x: m.from_table(x), lambda m, o: m.TABLE["list"].append(5.0)),
    "a function": (lambda m, o, x: m.scaled(x), lambda m, o: setattr(m, "scaled", lambda x: x - 5)),
    "defaults": (lambda m, o, x: m.scaled(x), lambda m, o: setattr(m.scaled, "__defaults__", (2,))),
    "keyword defaults": (lambda m, o, x: m.scaled(x), lambda m, o: m.scaled.__kwdefaults__.update(shift=5.0)),
    "an attribute of an instance": (lambda m, o, x: o(x), lambda m, o: setattr(o, "scale", 5.0)),
    "a string of an instance": (lambda m, o, x: o(x), lambda m, o: setattr(o, "mode", "take")),
    "a dict of an instance": (lambda m, o, x: o(x), lambda m, o: o.options.update(a=5.0)),
    "an attribute of a class": (lambda m, o, x: o(x), lambda m, o: setattr(m.Base, "rate", 5.0)),
    "an attribute of an heir": (lambda m, o, x: o(x), lambda m, o: setattr(m.Heir, "rate", 5.0)),
    "a method": (lambda m, o, x: o(x), lambda m, o: setattr(m.Base, "forward", lambda self, x: x - 5)),
    "a method of an heir": (lambda m, o, x: o(x), lambda m, o: setattr(m.Heir, "forward", lambda self, x: x - 5)),
    "a method of an instance": (lambda m, o, x: o(x), lambda m, o: vars(o).update(forward=lambda x: x - 5)),
    "a property": (
        lambda m, o, x: x * o.total - 1,
        lambda m, o: setattr(m.Base, "total", property(lambda self: 5.0)),
    ),
    "what a property reads": (lambda m, o, x: x * o.total - 1, lambda m, o: setattr(o, "scale", 5.0)),
    "what a static method reads": (lambda m, o, x: o.static(x), lambda m, o: setattr(m, "GAIN", 5.0)),
    "a static method": (
        lambda m, o, x: o.static(x),
        lambda m, o: setattr(m.Base, "static", staticmethod(lambda x: x - 5)),
    ),
    "what a class method reads": (lambda m, o, x: o.of_class(x), lambda m, o: setattr(m.Heir, "rate", 5.0)),
    "a class": (lambda m, o, x: m.Base()(x), lambda m, o: setattr(m, "Base", m.Heir)),
    "a class made inside": (lambda m, o, x: m.Heir()(x), lambda m, o: setattr(m.Base, "rate", 5.0)),
}


@pytest.mark.parametrize(("use", "change"), CHANGES.values(), ids=CHANGES)
@follows()
def test_what_changes_in_a_package(package: Any, use: Any, change: Any) -> Story:
    module = package()
    owner = module.Heir()
    yield lambda x: use(module, owner, x)
    change(module, owner)
    yield


@pytest.fixture
def code_module(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Makes a package named `code`, as the standard library has a module of that name."""
    before = sys.modules.get("code")

    def made() -> Any:
        module = sys.modules["code"] = types.ModuleType("code")
        module.__file__ = str(tmp_path / "code" / "__init__.py")
        exec(compile(SOURCE, module.__file__, "exec"), vars(module))
        return module

    yield made
    if before is None:
        del sys.modules["code"]
    else:
        sys.modules["code"] = before


@follows(calls=6, recordings=2)
def test_what_an_object_of_a_package_named_like_one_of_the_standard_library_keeps(code_module: Any) -> Story:
    def program(x: Tensor) -> Tensor:
        owner.options["is_odd"] = not owner.options.get("is_odd", False)
        return x * 2 - 1

    owner = code_module().Base()
    owner.options["is_odd"] = True
    yield program, lambda: dict(owner.options)


@follows()
def test_an_instance_of_a_package_with_slots_and_a_closure(package: Any) -> Story:
    module = package()
    factor = [2.0]
    owner, inner = module.Slotted(), module.make(factor)
    yield lambda x: owner.apply(inner(x))
    owner.scale = 5.0
    yield
    factor[0] = 7.0
    yield


@follows()
def test_a_package_used_by_the_name_of_a_global(package: Any) -> Story:
    module = package()
    table: dict[str, Any] = {"package": module}
    exec("def program(x):\n    return package.scaled(x) * package.TABLE['shift'] - package.Base.rate", table)
    yield table["program"]
    module.GAIN = 5.0
    yield
    module.TABLE["shift"] = 7.0
    yield
    module.Base.rate = 9.0
    yield
