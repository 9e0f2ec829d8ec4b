"""A fork waits for what threads of treeplay's own import."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from support.children import in_a_child
from treeplay.observe.progress import own_threads
from treeplay.sandbox.forks import forks_wait_for_imports

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_waits_for_an_import_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\nis_whole = True\n")
    monkeypatch.syspath_prepend(tmp_path)

    forks_wait_for_imports()

    def load() -> bool:
        return bool(importlib.import_module("slow_to_import").is_whole)

    def in_the_background() -> None:
        own_threads.add(threading.get_ident())
        load()
        own_threads.discard(threading.get_ident())

    thread = threading.Thread(target=in_the_background)
    thread.start()
    while "slow_to_import" not in sys.modules:
        time.sleep(0.001)
    assert in_a_child(load)
    thread.join()
