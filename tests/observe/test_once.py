import inspect
import types
import warnings

import pytest
import torch

from treeplay import observe
from treeplay.observe import warn_once
from treeplay.observe.once import KEPT_TEXTS


def test_O8_a_text_is_warned_once_with_the_callers_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            line = inspect.currentframe().f_lineno + 1
            warn_once("slow path")
    assert [str(warning.message) for warning in caught] == ["slow path"]
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


@pytest.mark.parametrize("later", ["default", "error", "ignore"])
def test_O8_no_filter_brings_it_back(later):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_once("once", category=FutureWarning)
        warnings.simplefilter(later)
        warn_once("once", category=FutureWarning)
    assert [warning.category for warning in caught] == [FutureWarning]


def test_O8_as_an_error_it_is_raised_once():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="strict"):
            warn_once("strict")
        warn_once("strict")


def test_O8_the_named_frame_is_the_first_outside_treeplay_and_torch():
    """user (this file) ─▶ torch.func code ─▶ a module of treeplay ─▶ warn_once"""
    ours = types.ModuleType("treeplay.generated")
    ours.warn_once = warn_once
    exec(compile("def work(x):\n    warn_once('deep')\n    return x", "<generated>", "exec"), ours.__dict__)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.func.functional_call(torch.nn.Identity(), {}, torch.ones(1))
        torch.vmap(ours.work)(torch.ones(2))
    assert [warning.filename for warning in caught] == [__file__]


def test_O8_reset_lets_a_text_be_said_again():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            warn_once("again")
            observe.reset()
    assert len(caught) == 2


def test_O8_a_text_that_is_said_again_is_remembered_longer_than_others():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_once("kept")
        warn_once("forgotten")
        for number in range(KEPT_TEXTS - 1):
            warn_once("kept")
            warn_once(str(number))
        warn_once("kept")
        warn_once("forgotten")
    texts = [str(warning.message) for warning in caught]
    assert texts.count("kept") == 1 and texts.count("forgotten") == 2
