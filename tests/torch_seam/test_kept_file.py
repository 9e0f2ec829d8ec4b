"""Small files for later processes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from treeplay.torch_seam.kept_file import alone, read_text, write_text


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_what_is_written_is_read(folder: Path) -> None:
    assert write_text("a/b.json", "first") and write_text("a/b.json", "second")
    assert read_text("a/b.json") == "second"
    assert os.listdir(folder / "a") == ["b.json"]


def test_what_is_not_there_or_no_text_is_none(folder: Path) -> None:
    (folder / "bytes").write_bytes(b"\xff\xfe\x00")
    assert read_text("nothing") is None and read_text("bytes") is None


def test_a_folder_that_cannot_be_made_is_no_error(folder: Path) -> None:
    (folder / "a").write_text("a file where the folder should be")
    assert not write_text("a/b.json", "text")


def test_a_write_that_fails_leaves_the_file_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text("a/b.json", "before")

    def fail(source: str, target: Path) -> None:
        raise PermissionError(target)

    monkeypatch.setattr(os, "replace", fail)
    assert not write_text("a/b.json", "after")
    assert read_text("a/b.json") == "before" and os.listdir(folder / "a") == ["b.json"]


def test_of_those_that_begin_at_once_one_finds_out_and_the_others_read() -> None:
    found, together = [], threading.Barrier(3)

    def find_out() -> None:
        together.wait(30)
        with alone("a/b.json"):
            if read_text("a/b.json") is None:
                found.append(threading.get_ident())
                write_text("a/b.json", "known")

    threads = [threading.Thread(target=find_out) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 1 and read_text("a/b.json") == "known"


def test_where_no_lock_can_be_had_there_is_no_wait(folder: Path) -> None:
    (folder / "a").write_text("a file where the folder should be")
    with alone("a/b.json"):
        pass
