import logging
import sys
import threading
import time
import timeit

import pytest
import torch

from treeplay.errors import ArgumentError, ArgumentTypeError
from treeplay.observe import PhaseFailure, Timers, phase, report, timers


def test_O2_each_run_of_a_block_appends_its_seconds():
    for _ in range(2):
        with phase("nap"):
            time.sleep(0.02)
    naps = timers.snapshot()["nap"]
    assert len(naps) == 2
    assert all(0.02 <= seconds <= 2 for seconds in naps)
    assert timers.totals()["nap"] == pytest.approx(sum(naps))


def test_O2_a_function_is_timed_under_its_qualified_name():
    @phase()
    def double(x):
        """Twice x."""
        return 2 * x

    @phase("named")
    def add_one(x):
        return x + 1

    assert (double(3), add_one(3)) == (6, 4)
    assert list(timers.snapshot()) == [double.__qualname__, "named"]
    assert double.__doc__ == "Twice x."


def test_O2_nested_timers_each_count_their_whole_time():
    timer = phase("same object")
    with phase("outer"), timer:
        time.sleep(0.002)
        with timer, phase("inner"):
            time.sleep(0.005)
    kept = timers.snapshot()
    inside, around = kept["same object"]
    assert kept["outer"][0] >= around >= inside >= kept["inner"][0] >= 0.005


def test_O2_recursion_times_every_call():
    @phase("factorial")
    def factorial(n):
        return 1 if n == 0 else n * factorial(n - 1)

    assert factorial(4) == 24
    assert len(timers.snapshot()["factorial"]) == 5


def test_O2_a_failing_block_adds_no_time_and_leaves_a_failure():
    error = KeyError("gone")
    with phase("fragile"):
        pass
    with pytest.raises(KeyError) as raised, phase("fragile"):
        raise error
    assert raised.value is error
    assert len(timers.snapshot()["fragile"]) == 1
    assert timers.failures() == [PhaseFailure("fragile", "KeyError", "'gone'")]


def test_O2_an_exception_without_a_text_is_still_the_one_raised():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    with pytest.raises(Mute), phase("fragile"):
        raise Mute
    assert timers.failures()[0].type_name == "Mute"


def test_O2_a_phase_is_an_event_of_the_profiler():
    on_cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=on_cpu) as profiler, phase("lower the graph"):
        torch.ones(2) + 1
    assert "lower the graph" in [event.name for event in profiler.events()]


def test_O2_threads_lose_no_durations():
    @phase("work")
    def work():
        pass

    threads = [threading.Thread(target=lambda: [work() for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(timers.snapshot()["work"]) == 800


def test_O2_memory_is_bounded_and_the_total_is_not_cut():
    table = Timers()
    for _ in range(5000):
        table.add("a", 0.5)
    assert len(table.snapshot()["a"]) == 4096
    assert table.totals() == {"a": 2500.0}


def test_O2_misuse_is_refused_with_advice():
    with pytest.raises(ArgumentError, match="name"), phase():
        pass
    with pytest.raises(ArgumentTypeError, match="parentheses"):

        @phase
        def work():
            pass

    with pytest.raises(ArgumentTypeError, match="block"):

        @phase()
        def numbers():
            yield 1


def test_O2_a_phase_costs_about_a_microsecond():
    def timed():
        with phase("z"):
            pass

    seconds = min(timeit.repeat(timed, number=10_000, repeat=5)) / 10_000
    assert seconds < 20e-6, "below 1 us on an idle machine; the bound leaves room for a busy one"


@pytest.fixture
def known():
    timers.add("a", 0.1)
    timers.add("a", 0.2)
    timers.add("long name", 3)


def test_O4_text_has_a_line_per_key(known):
    header, first, second = report("text").splitlines()
    assert header.split() == ["phase", "seconds"]
    assert first.split(maxsplit=1) == ["a", "0.1000, 0.2000"]
    assert second.endswith("3.0000")
    assert "0.3000" in report("text", aggregate=True)
    assert "0.1000" not in report("text", aggregate=True)


def test_O4_csv_gives_keys_and_seconds_in_one_order(known):
    assert report("csv") == (["a", "long name"], ["0.100000, 0.200000", "3.000000"])
    assert report("csv", aggregate=True) == (["a", "long name"], ["0.300000", "3.000000"])


def test_O4_total_is_one_line(known):
    assert report("total") == "TIMING: a:0.3 long name:3.0"
    timers.add("a", 0.000004)
    assert report("total").startswith("TIMING: a:0.3 ")


def test_O4_an_unknown_form_is_a_value_error():
    with pytest.raises(ValueError, match="zzz"):
        report("zzz")


def test_O4_no_data_gives_a_header_only():
    assert report().split() == ["phase", "seconds"]
    assert report("csv") == ([], [])
    assert report("total") == "TIMING:"


def test_O4_the_sums_are_logged_once_at_exit(fresh_python):
    text = """
import logging, treeplay.observe as o
logging.basicConfig(level=logging.{level}, format="%(levelname)s %(name)s %(message)s")
o.timers.add("a", 0.25); o.timers.add("a", 0.25)
"""
    _, loud = fresh_python(text.format(level="INFO"))
    assert loud.count("INFO treeplay.timing") == 1
    assert loud.count("0.5000") == 1
    assert "treeplay.timing" not in fresh_python(text.format(level="WARNING"))[1]


def test_O4_the_table_needs_no_package_but_torch(known, monkeypatch):
    for name in ("rich", "tabulate", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "0.1000" in report("text")


def test_O4_nothing_is_formatted_at_exit_for_a_logger_that_is_off(monkeypatch, caplog):
    module = sys.modules["treeplay.observe.timers"]  # the package shows the table of this name
    monkeypatch.setattr(module, "_table", lambda _: pytest.fail("formatted"))
    with caplog.at_level(logging.WARNING, logger="treeplay.timing"):
        module._log_summary()
