"""A training that is killed at any moment keeps what it must and nothing else, and goes on as if nothing had been."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import dualform
from dualform.errors import RecordingError
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.runs import opened
from tests.record import killed_training
from tests.record.killed_training import CLOCK, KINDS, STEPS, KilledTraining
from tests.record.processes import _rank, launch
from tests.reliability import report, rounds, soaking

SEED = 35
SHORT = {"a small network": 2}
"""How often it is killed in the short form; one of two ranks is killed in test_rank_processes.py."""
LONG = {"a small network": 80, "a small network without keys": 40, "a large network": 40, "two ranks": 40}
WAIT = 240.0


class Note(NamedTuple):
    what: str
    step: int
    at: float


def notes_of(file: Path) -> list[Note]:
    """Those of whole lines."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [Note(what, int(step), float(at)) for what, step, at in map(str.split, lines)]


def start(name: str, folder: Path, notes: Path) -> list:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.record.killed_training", "tests.record.sharded_trainings", "torch._dynamo"])
    train, ranks = killed_training.record, KINDS[name].ranks
    if ranks == 1:
        started = [context.Process(target=train, args=(0, folder, name, notes))]
    else:
        meeting = notes.with_suffix(".meeting").as_uri()
        trains = partial(train, name=name, notes=notes)
        started = [context.Process(target=_rank, args=(trains, rank, ranks, meeting, folder)) for rank in range(ranks)]
    for process in started:
        process.start()
    return started


def kill(processes: list, notes: Path, after: int, seconds: float) -> list[list[Note]]:
    """Kill every rank once the first one has noted so much; returns what each noted. Where a rank was refused, it is
    over by itself.
    """
    deadline = time.monotonic() + WAIT
    first = notes.with_suffix(".0")
    while len(found := notes_of(first)) < after and not any(note.what == "ends" for note in found):
        assert time.monotonic() < deadline, "it does not get on"
        if any(process.exitcode is not None for process in processes):
            break
        time.sleep(0.001)
    time.sleep(seconds)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    for process in processes:
        process.join()
    return [notes_of(notes.with_suffix(f".{rank}")) for rank in range(len(processes))]


def check_clock(notes: list[Note]) -> None:
    """Whenever the writer looks at its clock and a step has waited for so long, it writes."""
    oldest: Note | None = None
    for note, following in zip(notes, [*notes[1:], None], strict=True):
        if note.what == "took":
            oldest = oldest or note
        elif note.what == "writes":
            oldest = None
        elif note.what == "tick" and oldest is not None and note.at - oldest.at >= CLOCK and following is not None:
            while following.what in ("begins", "ends"):  # of the other thread
                place = notes.index(following) + 1
                if place == len(notes):
                    return
                following = notes[place]
            assert following.what == "writes", f"step {oldest.step} waits for longer than the clock says"


def columns(memory) -> dict[str, list]:
    return {name: memory.column("sample", name).tolist() for name in memory.columns("sample") if name != "run"}


def check_alike(memory, whole, slots: int) -> None:
    """The first slots of both, bit for bit."""
    own, others = columns(memory), columns(whole)
    assert own == {name: column[:slots] for name, column in others.items()}
    for layer in ("0", "2"):
        if whole.layer(layer).keys:
            one, other = memory.keys(layer), whole.keys(layer)
            assert one.entry_block(0, slots).tobytes() == other.entry_block(0, slots).tobytes()
            one, other = memory.values(layer), whole.values(layer)
            assert one.block(0, slots).tobytes() == other.block(0, slots).tobytes()
    if not whole.layer("0").keys:
        found, wanted = memory.table("digests").to_pylist(), whole.table("digests").to_pylist()
        assert found == wanted[: len(found)]


@pytest.fixture(scope="module", params=KINDS if soaking() else SHORT)
def whole(request, tmp_path_factory):
    """The name of a kind, and the folder of one that nobody killed, which noted so much."""
    name, folder = request.param, tmp_path_factory.mktemp("whole")
    processes = start(name, folder, folder / "notes")
    notes = kill(processes, folder / "notes", 10**9, 0.0)  # having noted its end
    assert any(note.what == "ends" for note in notes[0])
    go_on(name, folder)
    assert opened(folder / "m").steps == STEPS
    return name, folder / "m", notes[0]


def go_on(name: str, folder: Path) -> None:
    if KINDS[name].ranks == 1:
        KilledTraining(folder, KINDS[name]).run()
    else:
        assert launch(partial(killed_training.finish, name=name), KINDS[name].ranks, folder) == [0] * KINDS[name].ranks


@pytest.mark.soak
def test_a_killed_training_keeps_what_it_must_and_goes_on(whole, tmp_path_factory):
    name, unkilled, noted = whole
    kind, count = KINDS[name], rounds(SHORT.get(name, 1), LONG[name])
    first = next(place for place, note in enumerate(noted) if note.what == "begins")
    pause = (noted[-1].at - noted[first].at) / len(noted)
    resumed = 0
    for number in range(count):
        rng = np.random.default_rng([SEED, list(KINDS).index(name), number])
        folder = tmp_path_factory.mktemp("killed")
        least = 0
        for attempt in range(1 + number % 2):
            notes = folder / f"notes-{attempt}"
            begun = KilledTraining(folder, kind).done
            processes = start(name, folder, notes)
            found = kill(processes, notes, int(rng.integers(first, len(noted))) + 1, rng.uniform(0, pause))
            for own in found:
                check_clock(own)
            kept = [max((note.step for note in own if note.what == "durable"), default=0) for own in found]
            least = max(begun, min(kept))
            check_killed(folder, unkilled, least)
            if not (folder / "checkpoint").exists():
                break
        if (folder / "checkpoint").exists():
            go_on(name, folder)
            check_ended(folder, unkilled)
            resumed += 1
        elif (folder / "m" / "memory.json").exists() and kind.ranks == 1:
            # There is no checkpoint yet: killed before the flush that comes before it, or between the two.
            with pytest.raises(RecordingError, match=r"was not flushed then|not as it was when .* was flushed"):
                go_on(name, folder)
            check_killed(folder, unkilled, least)
    outcome = "acknowledged steps and those before the clock's last write kept, nothing else there, "
    report(
        f"kill -9 while {name} is recorded",
        seed=SEED,
        count=count,
        outcome=f"{outcome}{resumed} resumed and equal to one that nobody killed (the others had no checkpoint yet)",
    )


def check_killed(folder: Path, unkilled: Path, least: int) -> None:
    if not (folder / "m" / "memory.json").exists():
        assert not least, "steps were acknowledged, and there is no memory"
        return
    whole = opened(unkilled)
    rows = whole.count("sample") // STEPS
    if not least and len(list((folder / "m").glob("shard-*/slots.duckdb"))) < len(whole.runs[0].contents.shards):
        return  # one rank had not begun yet
    memory = opened(folder / "m")
    assert memory.count("sample") % rows == 0, "a step is half there"
    assert memory.count("sample") >= least * rows, f"of {least} steps there are {memory.count('sample') // rows}"
    assert check_memory(folder / "m") == []
    assert "the recording was cut off " in memory.cut_off
    assert "still runs" not in memory.cut_off
    check_alike(memory, whole, memory.count("sample"))


def check_ended(folder: Path, unkilled: Path) -> None:
    assert check_memory(folder / "m") == []
    memory, whole = opened(folder / "m"), opened(unkilled)
    assert (memory.steps, memory.cut_off) == (STEPS, "")
    check_alike(memory, whole, whole.count("sample"))
    if whole.layer("0").keys:
        with dualform.open(folder / "m") as one, dualform.open(unkilled) as other:
            for arguments in ({}, {"where": "label <> 1"}, {"at_step": STEPS // 2}):
                weights, wanted = one.weights(**arguments), other.weights(**arguments)
                assert all(torch.equal(own, wanted[name]) for name, own in weights.items()), arguments
