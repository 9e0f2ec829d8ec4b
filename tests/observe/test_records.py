import json
import logging
from dataclasses import dataclass, field

import pytest

from treeplay.errors import ArgumentError, ArgumentTypeError
from treeplay.observe import RecordRing, compile_records, records


@dataclass(frozen=True, slots=True)
class Fact:
    number: int
    causes: frozenset[str] = frozenset()
    inner: object = None


@dataclass
class Loose:
    number: int = 0
    items: list[int] = field(default_factory=list)


def filled(count, **options):
    ring = RecordRing(**options)
    for number in range(1, count + 1):
        ring.add(Fact(number))
    return ring


def numbers(ring):
    return [record.number for record in ring.records()]


def test_O7_the_ring_keeps_the_newest_64():
    ring = filled(70)
    assert numbers(ring) == list(range(7, 71))


def test_O7_a_smaller_limit_keeps_the_newest_and_a_larger_one_all():
    ring = filled(70)
    ring.limit = 10
    assert numbers(ring) == list(range(61, 71))
    ring.limit = 100
    ring.add(Fact(71))
    assert numbers(ring) == list(range(61, 72))
    assert ring.limit == 100
    for bad in (0, -1, 2.5):
        with pytest.raises(ArgumentError):
            ring.limit = bad


def test_O7_the_returned_list_is_the_callers_own():
    ring = filled(3)
    ring.records().clear()
    assert numbers(ring) == [1, 2, 3]
    ring.clear()
    assert ring.records() == []


def test_O7_the_process_has_one_ring_for_compiles():
    compile_records.add(Fact(5))
    assert records() == [Fact(5)]


def test_O7_a_sink_gets_plain_values_under_a_name_for_the_direction():
    got = []
    ring = RecordRing()
    ring.set_sink(lambda name, fields: got.append((name, fields)))
    ring.add(Fact(1, frozenset({"b", "a"})), direction="backward")
    ring.add(Fact(2, frozenset({"x", 1}), Fact(3, inner=("t", {"k": {2, 1}}))))
    ring.set_sink(None)
    ring.add(Fact(4))
    assert got[0] == ("treeplay_compile_backward", {"number": 1, "causes": ["a", "b"], "inner": None})
    name, fields = got[1]
    assert (name, fields["causes"]) == ("treeplay_compile_forward", [1, "x"])
    assert fields["inner"]["inner"] == ["t", {"k": [1, 2]}]
    assert len(got) == 2


def test_O7_a_failing_sink_is_logged_once_and_breaks_nothing(caplog):
    ring = RecordRing()

    def broken(name, fields):
        raise OSError("disk full")

    ring.set_sink(broken)
    with caplog.at_level(logging.ERROR, logger="treeplay.records"):
        for number in range(3):
            ring.add(Fact(number))
    assert numbers(ring) == [0, 1, 2]
    assert len(caplog.records) == 1
    assert "disk full" in caplog.text


def test_O7_the_structured_trace_log_gets_the_record():
    trace = logging.getLogger("torch.__trace")
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.metadata)

    handler = Keep()
    level = trace.level
    trace.addHandler(handler)
    trace.setLevel(logging.DEBUG)
    try:
        RecordRing().add(Fact(1, frozenset({"b", "a"}), inner=object), direction="backward")
    finally:
        trace.removeHandler(handler)
        trace.setLevel(level)
    sent = [line["treeplay_compile_backward"] for line in lines if "treeplay_compile_backward" in line]
    assert len(sent) == 1
    assert sent[0]["causes"] == ["a", "b"]
    json.dumps(sent)


@pytest.mark.parametrize("bad", [Loose(), Fact, {"number": 1}, None])
def test_O7_only_frozen_dataclasses_are_records(bad):
    with pytest.raises(ArgumentTypeError, match="frozen"):
        RecordRing().add(bad)
