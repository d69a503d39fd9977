"""A recording that is killed loses nothing that is durable, and readers see whole steps at any moment."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import NotAMemory
from dualform.store.batch import Batch
from dualform.store.maintenance.check import check_memory, how_it_ended
from dualform.store.reading.snapshot import Snapshot
from tests.reliability import report, rounds
from tests.store.small_memory import LAYERS, OTHERS, Expected, batches_of, expected, other_row, other_values

STEPS, BATCH, FLUSH_EVERY = 60, 16, 6
NEVER = 10_000.0


def record(
    path: Path, acknowledged: Path, *, flush_every: int, journal_seconds: float, pause: float, ends: bool = False
) -> None:
    """Put the same batches every time; what is durable, or was put, is acknowledged with the moment.

    Unless it `ends`, the training goes on then, with nothing new to record, until somebody kills it.
    """
    from dualform.record.sink import SinkThread
    from dualform.store.batch import Ending, Header
    from dualform.store.writing import writer

    writer.JOURNAL_SECONDS = journal_seconds
    log = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ones = {"layer-0.weight": (5, 6), "layer-0.bias": (5,), "layer-1.weight": (3, 5)}
    initial = {name: np.ones(shape, np.float32) for name, shape in ones.items()}
    header = Header(path, LAYERS, "SGD", "sgd", "", initial, label_names={"first": ["zero", "one"]}, others=OTHERS)
    sink = SinkThread(lambda: writer.Writer(header))
    for step, one in enumerate(batches()):
        sink.put(replace(one, others=[other_row(step)]))
        if flush_every and step % flush_every == flush_every - 1:
            sink.flush()
        if not flush_every or step % flush_every == flush_every - 1:
            os.write(log, f"{step + 1} {time.monotonic()}\n".encode())
        time.sleep(pause)
    while not ends:
        time.sleep(1)
    sink.close(Ending(final={}))


def batches() -> list[Batch]:
    return batches_of([BATCH] * STEPS)


def acknowledgements(log: Path) -> list[tuple[int, float]]:
    """(steps, moment) of whole lines."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(int(line.split()[0]), float(line.split()[1])) for line in lines]


@pytest.fixture(scope="module")
def whole() -> Expected:
    return expected(batches(), LAYERS)


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dualform.record.sink", "tests.store.small_memory"])
    return context


def begun(processes, folder: Path, **options):
    """The process of a recording."""
    process = processes.Process(target=record, args=(folder / "memory", folder / "log"), kwargs=options)
    process.start()
    assert process.pid is not None
    return process


@pytest.fixture(scope="module")
def interval(processes, tmp_path_factory) -> float:
    """The seconds between two acknowledgements of a recording that nobody kills."""
    folder = tmp_path_factory.mktemp("whole")
    options = {"flush_every": FLUSH_EVERY, "journal_seconds": NEVER, "pause": 0.0, "ends": True}
    process = begun(processes, folder, **options)
    process.join()
    assert process.exitcode == 0
    moments = [moment for _, moment in acknowledgements(folder / "log")]
    return (moments[-1] - moments[0]) / (len(moments) - 1)


def check(path: Path, whole: Expected, least: int) -> int:
    """Hold a memory against the recording that was not killed; returns its steps."""
    memory = Snapshot.open(path)
    steps = check_steps(memory, whole)
    assert steps >= least
    assert memory.recording
    assert check_memory(path) == []
    after = f"after step {memory.steps - 1}" if memory.steps else "before its first step"
    torn = r"( The last frame of \S+/journal-\d{6} is incomplete and was ignored\.)?"
    assert re.fullmatch(rf"the recording was cut off {after}\.{torn}", how_it_ended(path))
    return steps


def check_steps(memory: Snapshot, whole: Expected) -> int:
    """Hold what a memory shows against the first steps of the recording; returns how many it shows."""
    slots = memory.count("sample")
    assert slots % BATCH == 0, "a step is half there"
    assert slots <= STEPS * BATCH
    if not slots:  # and no columns yet, for the first step says what they are
        return 0
    for layer in LAYERS:
        keys, values = memory.keys(layer.name), memory.values(layer.name)
        assert keys.entry_block(0, slots).tobytes() == whole.keys[layer.name][:slots].tobytes()
        assert values.block(0, slots).tobytes() == whole.values[layer.name][:slots].tobytes()
    for column in ("slot", "step", "row", "label", "sample", "dataset", "weight"):
        assert memory.column("sample", column).tolist() == whole.columns[column][:slots]
    assert memory.table("steps")["step"].to_pylist() == list(range(slots // BATCH))
    assert memory.others.moments == list(range(slots // BATCH))
    for at_step in memory.others.moments:
        assert all(np.array_equal(own, other_values(at_step)[n]) for n, own in memory.others.at(at_step).items())
    return slots // BATCH


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_recording_holds_every_acknowledged_slot(whole, interval, processes, tmp_path, seed):
    rng = np.random.default_rng(seed)
    # Half of the recordings write frames as well, as often as they can.
    options = {"flush_every": FLUSH_EVERY, "journal_seconds": 0.0 if seed % 2 else NEVER, "pause": 0.0}
    process = begun(processes, tmp_path, **options)
    wanted = rng.integers(0, STEPS // FLUSH_EVERY - 2)
    while process.is_alive() and len(acknowledgements(tmp_path / "log")) < wanted:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, interval))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL

    acknowledged = max((steps for steps, _ in acknowledgements(tmp_path / "log")), default=0)
    if not (tmp_path / "memory" / "memory.json").exists():
        assert not acknowledged, "steps were acknowledged, and there is no memory"
        with pytest.raises(NotAMemory):
            Snapshot.open(tmp_path / "memory")
        return
    check(tmp_path / "memory", whole, acknowledged)


def test_a_recording_that_never_flushes_loses_its_last_seconds(whole, processes, tmp_path):
    journal_seconds, slack = 0.2, 2.0  # what a busy machine takes to write a frame
    options = {"flush_every": 0, "journal_seconds": journal_seconds, "pause": 0.08}
    process = begun(processes, tmp_path, **options)
    while len(acknowledgements(tmp_path / "log")) < STEPS // 2:
        time.sleep(0.005)
    killed = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    put = acknowledgements(tmp_path / "log")
    check(tmp_path / "memory", whole, max((n for n, at in put if at < killed - journal_seconds - slack), default=0))


def test_a_recording_that_pauses_loses_nothing(whole, processes, tmp_path):
    options = {"flush_every": 0, "journal_seconds": 0.3, "pause": 0.0}
    process = begun(processes, tmp_path, **options)
    while len(acknowledgements(tmp_path / "log")) < STEPS:
        time.sleep(0.01)
    journal = tmp_path / "memory" / "shard-00000" / "journal-000000"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and Snapshot.open(tmp_path / "memory").steps < STEPS:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert journal.stat().st_size > 0
    assert check(tmp_path / "memory", whole, STEPS) == STEPS


@pytest.mark.soak
def test_a_reader_during_writing_sees_whole_steps_and_keeps_them(whole, processes, tmp_path):
    count, moments = rounds(1, 20), list[int]()
    for number in range(count):
        path = tmp_path / str(number)
        path.mkdir()
        # Every second recording writes a frame of its journal for each step, too.
        options = {"flush_every": FLUSH_EVERY, "journal_seconds": 1e4 if number % 2 else 0.0}
        options |= {"pause": 0.01, "ends": True}
        writing = begun(processes, path, **options)
        held, seen = [], 0
        while writing.is_alive():
            try:
                memory = Snapshot.open(path / "memory")
            except NotAMemory:
                assert not held, "a memory that was there is gone"
                continue
            steps = check_steps(memory, whole)
            assert steps >= seen, "what was there is gone"
            if steps > seen:
                held.append((memory, steps))
                moments.append(steps)
            seen = steps
            time.sleep(0.01)
        writing.join()
        assert writing.exitcode == 0
        for memory, steps in held:
            assert check_steps(memory, whole) == steps, "what a reader holds has changed"
        assert check_steps(Snapshot.open(path / "memory"), whole) == STEPS
    assert any(0 < steps < STEPS for steps in moments)
    report(
        "a memory opened again and again while another process writes it",
        seed=0,
        count=len(moments),
        outcome="each time whole steps, none of them gone again, and the same ones once the writing has ended",
    )
