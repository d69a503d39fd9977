"""CONTRIBUTING's walk of a batch is the way that a batch takes: what runs is on it, and what is on it runs."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dualform import Recorder
from dualform.store import writer
from dualform.store.snapshot import Snapshot

ROOT = Path(__file__).parents[1]
ROOM = ROOT / "indexer" / "dualform"
MOST_STOPS = 22
FILE = re.compile(r"`([\w/]+\.py)`")


def section() -> str:
    """What CONTRIBUTING says of a batch's way."""
    return (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n### A batch's way\n")[2].partition("\n#")[0]
    )


def stops() -> list[str]:
    """The file of each numbered line, in order."""
    return [found[1] for line in re.findall(r"^\d+\. .*", section(), re.MULTILINE) if (found := FILE.search(line))]


def beside() -> list[str]:
    """The files, and folders with all that is in them, that stand beside the way."""
    return re.findall(r"`([\w/]+(?:\.py|/))`", section().partition("Beside the way")[2])


class Trace:
    """Notes the files of ours of which a function is called, on every thread that begins inside, while it is on."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self.on = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self.on and event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(ROOM)):
            self.ran.add(str(Path(code.co_filename).relative_to(ROOM)))

    def __enter__(self) -> Trace:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> set[str]:
    """The files that run from a step's beginning until its batch was journaled, committed and opened."""
    path = tmp_path_factory.mktemp("walk") / "m"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.MonkeyPatch.context() as patch, Trace() as trace:
        patch.setattr(writer, "JOURNAL_SECONDS", 0.0)
        with Recorder(model, optimizer, path) as recorder:
            step(recorder, model, optimizer, rows=6)
            trace.on = True
            step(recorder, model, optimizer, rows=5)  # another shape, so that it is aligned anew
            recorder.flush()
            Snapshot.open(path)
            trace.on = False
    return trace.ran


def step(recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer, rows: int) -> None:
    x, y = torch.randn(rows, 4), torch.arange(rows) % 3
    with recorder.step(label=y, sample=torch.arange(rows)):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def test_everything_that_runs_is_a_stop_or_beside_the_way(ran):
    named = {*stops(), *beside()}
    folders = tuple(name for name in named if name.endswith("/"))
    assert sorted(file for file in ran if file not in named and not file.startswith(folders)) == []


def test_every_stop_runs(ran):
    assert [file for file in stops() if file not in ran] == []


def test_the_stops_are_few_and_none_stands_beside_the_way():
    assert 10 < len(stops()) <= MOST_STOPS
    assert len(set(stops())) == len(stops())
    assert not set(stops()) & set(beside())


def test_both_threads_are_traced(ran):
    assert {"record/recorder.py", "record/sink.py", "store/journal.py", "store/shard.py"} <= ran
