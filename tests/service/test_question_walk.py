"""CONTRIBUTING's list of the stops on a question's way, held against the files that run when one is asked."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import dualform
from dualform_client import Client
from dualform_service.server import Server
from tests.store import small_memory

ROOT = Path(__file__).parents[2]
PARENTS = [ROOT / room for room in ("indexer/dualform", "protos", "service", "clients")]
MOST_STOPS = 16


def section(text: str, begin: str, end: str) -> str:
    return text.split(begin, 1)[1].split(end, 1)[0]


def paths(text: str) -> list[str]:
    """The files (*.py) and folders (ending in /) of ours that a text names in backquotes."""
    return re.findall(r"`([\w/]+(?:\.py|/))`", text)


PAGE = section((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "### A question's way", "A new score is")
STOPS = [paths(line)[0] for line in PAGE.splitlines() if re.match(r"\d+\. ", line)]
BESIDE = paths(section(PAGE, "Beside the way", "\n\n"))


class Trace:
    """The files of ours of which a function ran, in any thread that began within `tracing`."""

    def __init__(self) -> None:
        self.files = set[str]()
        self.on, self.over = False, False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.over:  # in a thread that outlives the trace, as those of the compiled loops do
            sys.setprofile(None)
        if not self.on or event != "call" or frame.f_code.co_name == "<module>":
            return
        file = Path(frame.f_code.co_filename)
        self.files |= {file.relative_to(parent).as_posix() for parent in PARENTS if file.is_relative_to(parent)}

    @contextmanager
    def tracing(self) -> Iterator[None]:
        former = sys.getprofile()
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            self.over = True
            sys.setprofile(former)
            threading.setprofile(None)

    def during(self, ask: Callable[[], Any]) -> Any:
        self.on = True
        try:
            return ask()
        finally:
            self.on = False


def test_the_stops_are_the_files_that_run(tmp_path):
    small_memory.write(tmp_path / "run", [20, 20])
    trace = Trace()
    with (
        trace.tracing(),
        dualform.open(tmp_path / "run", backend="int8") as engine,
        Server(engine) as server,
        Client(server.address) as client,
    ):
        hits = trace.during(lambda: client.topk("layer-0", np.ones(6), k=2, where="label < 7"))
        assert hits.scan.slots_matching < hits.scan.slots_scanned == 40
    assert len(hits.slots[0]) == 2
    named = [*STOPS, *(path for path in BESIDE if not path.endswith("/"))]
    folders = tuple(path for path in BESIDE if path.endswith("/"))
    assert [file for file in sorted(trace.files) if file not in named and not file.startswith(folders)] == []
    assert [stop for stop in STOPS if stop not in trace.files] == []


def test_there_are_few_stops_and_each_is_named_once():
    assert 0 < len(STOPS) <= MOST_STOPS
    assert len({*STOPS, *BESIDE}) == len(STOPS) + len(BESIDE)
