"""The user's line and the call on it."""

from __future__ import annotations

import site
import sysconfig

import pytest
import torch

from treeplay.observe.lines import failed_call, is_user_file, is_users, is_users_or_text, running_call, user_location


def test_torch_and_treeplay_are_not_the_users() -> None:
    assert is_users(__file__)
    assert not is_users(torch.__file__) and not is_users(torch.nn.__file__)


def test_the_running_line_is_found_below_library_code() -> None:
    found = []
    hook = torch.nn.Identity()
    hook.register_forward_hook(lambda *_: found.append(user_location()))
    hook(torch.ones(1))
    assert found[0].file == __file__ and found[0].function == "<lambda>"


def failed(body):
    try:
        body()
    except Exception as error:
        return failed_call(error.__traceback__)


def test_a_failed_call_is_named_by_its_last_attribute() -> None:
    call = failed(lambda: torch.ones(2).sum().reshape(5))
    assert call.name == "reshape" and call.where.file == __file__
    assert call.source == "torch.ones(2).sum().reshape(5)"


def test_a_call_over_several_lines_and_with_wide_characters() -> None:
    word = "größer"
    call = failed(
        lambda: (word, torch.ones(2).reshape(
            7,
        ))
    )  # fmt: skip
    assert call.name == "reshape" and call.source.endswith(")")


def test_indexing_and_plain_names() -> None:
    x = torch.ones(2)
    assert failed(lambda: x[5]).name == "indexing"
    assert failed(lambda: int("x")).name == "int"
    assert failed(lambda: x + torch.ones(3)).name is None


def test_the_running_call_knows_its_keywords() -> None:
    found = []

    def draw(*, generator):
        exec(compile("found.append(look())", torch.__file__, "exec"), {"found": found, "look": running_call})

    hidden = draw
    hidden.__code__ = draw.__code__.replace(co_filename=torch.__file__)
    mine = 3
    hidden(generator=mine)
    assert found[0].name == "hidden" and found[0].keyword("generator") == "mine"
    assert found[0].keyword("other") is None


def test_without_a_users_line_there_is_nothing_to_say() -> None:
    call = failed_call(None)
    assert (call.name, call.where, call.source, call.keyword("x")) == (None, None, "", None)


def test_typing_extensions_is_no_code_of_a_users() -> None:
    """Any import runs it, and what it asks for the type of was no number of the program's."""
    extensions = pytest.importorskip("typing_extensions")
    assert not is_users(extensions.__file__) and not is_users_or_text(extensions.__file__)


@pytest.mark.parametrize(
    "folder",
    [
        sysconfig.get_paths()["purelib"],
        site.getusersitepackages(),
        "/another/environment/lib/python3.11/site-packages",
        f"{sysconfig.get_paths()['stdlib']}/site-packages",
        "/usr/lib/python3/dist-packages",
    ],
)
def test_packages_are_installed_in_folders_of_other_environments_too(folder: str) -> None:
    assert is_users(f"{folder}/a_library/layers.py") and not is_user_file(f"{folder}/a_library/layers.py")
    assert not is_users(f"{folder}/typing_extensions.py")
