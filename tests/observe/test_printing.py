import logging
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from treeplay.errors import ArgumentTypeError
from treeplay.observe import code, tabular


def add_one(x):
    return x + 1


@pytest.fixture
def traced():
    return make_fx(add_one)(torch.ones(3, 4))


def test_O28_the_table_has_a_row_per_node():
    header, rule, *rows = str(tabular(torch.fx.symbolic_trace(add_one))).splitlines()
    assert header.split() == ["kind", "name", "target", "args", "kwargs"]
    assert set(rule) == {"-", " "}
    assert [row.split()[0] for row in rows] == ["placeholder", "call_function", "output"]
    assert "_operator.add" in rows[1] and "(x, 1)" in rows[1]


def test_O28_the_table_lines_up_and_names_operators(traced):
    lines = tabular(traced.graph).splitlines()
    start = lines[0].index("target")
    assert [line[start:].split()[0] for line in lines[2:]] == ["x_1", "aten.add.Tensor", "output"]


def test_O28_code_shows_shapes_strides_and_devices(traced):
    text = code(traced)
    assert "[3, 4]" in text and "[4, 1]" in text and "cpu" in text
    bare = code(traced, strides=False, devices=False)
    assert "[3, 4]" in bare and "[4, 1]" not in bare and "cpu" not in bare


def test_O28_colour_is_off_unless_asked_for(traced):
    assert "\x1b" not in code(traced)
    assert "\x1b" in code(traced, colored=True)


def test_O28_a_logger_that_is_off_formats_nothing(traced, monkeypatch, caplog):
    module = sys.modules["treeplay.observe.printing"]
    made = []
    monkeypatch.setattr(module, "_table", lambda rows: made.append("table") or "the table")
    monkeypatch.setattr(module, "_code_text", lambda *_: made.append("code") or "the code")
    log = logging.getLogger("treeplay.test_printing")
    with caplog.at_level(logging.INFO, logger=log.name):
        log.debug("%s %s", tabular(traced), code(traced))
        assert made == []
        log.info("%s %s", tabular(traced), code(traced))
    assert made == ["table", "code"]
    assert caplog.messages == ["the table the code"]


def test_O28_a_text_is_made_once(traced, monkeypatch):
    made = []
    module = sys.modules["treeplay.observe.printing"]
    monkeypatch.setattr(module, "_table", lambda rows: made.append(1) or "t")
    text = tabular(traced)
    assert (str(text), f"{text}", len(text), text == "t", made) == ("t", "t", 1, True, [1])
    with pytest.raises(AttributeError):
        _ = text.nonsense


def test_O28_the_table_needs_no_other_package(traced, monkeypatch):
    for name in ("tabulate", "rich"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "aten.add.Tensor" in tabular(traced)


def test_O28_other_things_are_refused():
    with pytest.raises(ArgumentTypeError, match="Linear"):
        tabular(torch.nn.Linear(1, 1))
    with pytest.raises(ArgumentTypeError, match="Graph"):
        code(torch.fx.Graph())
