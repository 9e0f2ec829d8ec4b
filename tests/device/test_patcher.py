"""What a patcher writes and issues, with a driver that only takes notes: needs no GPU."""

from __future__ import annotations

import ctypes
from ctypes import addressof

import pytest

from treeplay.device.cuda.nodes import patch
from treeplay.device.cuda.nodes.own import Calls, OwnNode
from treeplay.device.cuda.nodes.patch import Patcher
from treeplay.errors import InternalError
from treeplay.relocate import Relocation, Row, Site, joined
from treeplay.relocate.policy import Costs

GRAPH, EXECUTABLE, CONTEXT = 7, 9, 5
ONE_BY_ONE = Costs(update_us=1e9)
AT_ONCE = Costs(update_us=0, update_node_us=0, template_node_us=0, least_saved_us=0)
MIXED = Costs(patch_node_us=1, update_us=1, update_node_us=0, template_node_us=0, least_saved_us=0)


class Driver:
    """Notes each call; `code` is what it answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.code = 0

    def function(self, name: str):
        def noted(*args):
            self.calls.append((name, args[:2]))
            return self.code

        return noted

    def call(self, name: str, *args: object) -> None:
        self.calls.append((name, args[:2]))

    def take(self) -> list[tuple[str, tuple[int, ...]]]:
        taken, self.calls = self.calls, []
        return taken


@pytest.fixture
def driver(monkeypatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(patch, "function", made.function)
    monkeypatch.setattr("treeplay.device.cuda.nodes.own.call", made.call)
    monkeypatch.setattr("treeplay.device.cuda.contexts.current_context", lambda: CONTEXT)
    return made


def make(*rows: Row, costs: Costs = ONE_BY_ONE) -> Patcher:
    """A patcher over nodes of four words each; node 1 is a memcpy."""
    nodes = {}
    for index in {site.node for row in rows for site in row.sites}:
        memory = (ctypes.c_uint64 * 4)()
        calls = Calls("set copy", "set executable copy", (CONTEXT,)) if index == 1 else Calls("set", "set executable")
        nodes[index] = OwnNode(100 + index, calls, memory, (addressof(memory),))  # type: ignore[arg-type]
    words = {site.place: nodes[site.node].word(site.buffer, site.offset) for row in rows for site in row.sites}
    return Patcher(GRAPH, EXECUTABLE, Relocation(rows, (), 5), nodes, words, costs)


def words_of(patcher: Patcher, node: int) -> list[int]:
    return list(patcher.nodes[node].params)  # type: ignore[call-overload]


X = Row("tensor", 0, 0, 256, (Site(0, 0, 0, 0), Site(0, 0, 16, 64), Site(1, 0, 8, -8)))
Y = Row("tensor", 1, 0, 256, (Site(0, 0, 8, 0),))
Z = Row("tensor", 2, 0, 256, (Site(2, 0, 0, 0),))


def test_a_mover_writes_each_word_and_issues_each_node_once(driver):
    patcher = make(X, Y)
    patcher.mover(X)(1000)
    assert (words_of(patcher, 0), words_of(patcher, 1)) == ([1000, 0, 1064, 0], [0, 992, 0, 0])
    assert driver.take() == [("set executable", (EXECUTABLE, 100)), ("set executable copy", (EXECUTABLE, 101))]


def test_a_mover_of_one_site_is_two_statements(driver):
    assert make(X, Y).source(Y).text == (
        "def move(address0):\n"
        "    here.has_context\n"
        "    word0.value = address0\n"
        "    code = set0(executable, node0, params0)\n"
        "    if code: raise failed('set executable', code)\n"
    )


def test_moving_several_issues_a_shared_node_once(driver):
    patcher = make(X, Y)
    patcher.move_many([(X, 1000), (Y, 2000)])
    assert words_of(patcher, 0) == [1000, 2000, 1064, 0]
    assert [args for _, args in driver.take()] == [(EXECUTABLE, 100), (EXECUTABLE, 101)]


def test_a_mover_of_several_takes_an_address_for_each(driver):
    patcher = make(X, Y)
    patcher.mover(Y, X)(2000, 1000)
    assert words_of(patcher, 0) == [1000, 2000, 1064, 0]
    assert len(driver.take()) == 2


def test_many_nodes_go_through_the_graph_and_one_update(driver):
    patcher = make(X, Y, costs=AT_ONCE)
    patcher.mover(X)(1000)
    assert [(name, args[0]) for name, args in driver.take()] == [
        ("set", 100),
        ("set copy", 101),
        ("cuGraphExecUpdate_v2", EXECUTABLE),
    ]
    patcher.mover(Y)(3000)
    assert [name for name, _ in driver.take()] == ["set", "cuGraphExecUpdate_v2"]


def test_an_update_takes_along_what_was_moved_one_by_one_before(driver):
    """Moving Z touches one node, moving X two: the update for X must not take Z back."""
    patcher = make(X, Z, costs=MIXED)
    patcher.mover(Z)(500)
    assert [name for name, _ in driver.take()] == ["set executable"]
    patcher.mover(X)(1000)
    assert [(name, args[0]) for name, args in driver.take()] == [
        ("set", 102),
        ("set", 100),
        ("set copy", 101),
        ("cuGraphExecUpdate_v2", EXECUTABLE),
    ]
    patcher.mover(X)(2000)
    assert [args[0] for _, args in driver.take()] == [100, 101, EXECUTABLE]


def test_a_refusal_of_the_driver_is_an_error_with_its_code(driver):
    move = make(X, Y).mover(Y)
    driver.code = 1
    with pytest.raises(InternalError, match="set executable failed with CUDA driver code 1"):
        move(1000)


def test_a_row_without_sites_moves_nothing(driver):
    row = Row("tensor", 0, 0, 256)
    patcher = make(row)
    patcher.mover(row)(1000)
    patcher.move_many([(row, 1000)])
    assert driver.take() == []


def test_what_lies_at_fixed_distances_moves_as_one_and_each_node_is_issued_once(driver):
    """Two outputs in one block: words are the block's address, and where each begins there, and what was added before."""
    patcher = make(X, Y, Z)
    together = joined([(X, 512), (Y, 1536)])
    assert together.nodes == (0, 1)
    patcher.mover(together)(10_000)
    assert (words_of(patcher, 0), words_of(patcher, 1)) == ([10_512, 11_536, 10_576, 0], [0, 10_504, 0, 0])
    assert [args for _, args in driver.take()] == [(EXECUTABLE, 100), (EXECUTABLE, 101)]
