"""CONTRIBUTING's walk of a shell's question is the way that one takes: what runs is on it, and what is on it runs."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from dualform_client.cli.main import main, prepare
from tests.store import small_memory
from tests.walk import Trace, Walk, walk

MOST_STOPS = 10
WALK = walk("A question from the shell")
ON = walk("A question's way")
"""What takes over at the engine."""
PACKAGES = {"__init__.py"}
"""Whose names are loaded when they are first asked for."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("walk")
    small_memory.write(folder / "run", [20, 20])
    np.save(folder / "query.npy", np.ones((1, 6), np.float32))
    asked = ["topk", str(folder / "run"), "--layer", "layer-0", "--query", str(folder / "query.npy"), "-k", "2"]
    with pytest.MonkeyPatch.context() as patch, (folder / "said").open("w") as said, Trace() as trace:
        patch.setattr("sys.stdout", said)
        # What a process is prepared for is not for the tests that come after in this one.
        patch.setattr("sys.meta_path", list(sys.meta_path))
        patch.setattr("gc.set_threshold", lambda objects: None)
        trace.on = True
        prepare([*asked, "--json"])
        code = main([*asked, "--json"])
        trace.on = False
    assert code == 0
    assert len(json.loads((folder / "said").read_text())["hits"]) == 2
    return trace.ran


def unnamed(walk: Walk, ran: set[str]) -> list[str]:
    """The files that ran and stand neither on this way, nor on that of every question."""
    return [file for file in walk.unnamed(ran) if file in ON.unnamed(ran) and file not in PACKAGES]


def test_everything_that_runs_is_named(ran):
    assert unnamed(WALK, ran) == []


def test_every_stop_runs(ran):
    assert [file for file in WALK.stops if file not in ran] == []
    assert 5 < len(WALK.stops) <= MOST_STOPS


@pytest.mark.parametrize("file", ["dualform_client/cli/main.py", "dualform_client/cli/ask.py"])
def test_a_file_that_no_line_names_is_found(ran, file):
    assert unnamed(WALK._replace(stops=[one for one in WALK.stops if one != file]), ran) == [file]
