"""Small files for later processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treeplay.torch_seam.kept_file import read_text, write_text


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
