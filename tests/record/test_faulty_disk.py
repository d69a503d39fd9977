"""Each act of a recording on the disk fails once, or for good, or is the last of its process: nothing goes unsaid, and
what is left is a memory of whole steps, with all that a flush has acknowledged.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dualform
from dualform.errors import DualformError, NotAMemory
from dualform.store.maintenance.check import check_memory
from tests.cases import some
from tests.record.faulty_disk import (
    ERRORS,
    STEPS,
    EndingDisk,
    FailingDisk,
    Training,
    WatchedDisk,
    answers,
    steps_of,
)
from tests.reliability import report, rounds, soaking

SEED = 13


@dataclass(frozen=True)
class Whole:
    """A recording in which nothing failed."""

    path: Path
    weights: bytes
    acts: list[tuple[str, Path]]
    answers: Callable[[int], list[Any]]
    """By number of steps."""

    def drawn(self, first: int = 0, part: int = 0, parts: int = 1) -> list[int]:
        """Numbers of acts from a first one on: all in the long form, and else one of each operation of a part."""
        rng, numbers = np.random.default_rng([SEED, first]), dict[str, list[int]]()
        for number, (operation, _) in enumerate(self.acts[first:], first):
            numbers.setdefault(operation, []).append(number)
        if soaking():
            return sorted(number for own in numbers.values() for number in own)
        return sorted(int(rng.choice(numbers[operation])) for operation in sorted(numbers)[part::parts])

    def check(self, path: Path, least: int) -> int:
        """Hold a memory against this one; returns its steps, which are `least` or more."""
        if not (path / "memory.json").exists():
            assert not least, "steps were acknowledged, and there is no memory"
            with pytest.raises(NotAMemory):
                dualform.open(path)
            return 0
        steps = steps_of(path)
        assert least <= steps <= STEPS
        assert check_memory(path) == []
        if steps:
            assert answers(path, steps) == self.answers(steps)
        return steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Whole:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("whole") / "m"
    for name in ("first", "m"):  # with the first one, the process learns what the file system can do
        training, disk = Training(), WatchedDisk(path.with_name(name))
        with disk.used():
            training.record(path.with_name(name))
    assert training.acknowledged == steps_of(path) == STEPS
    return Whole(path, training.weights(), disk.done, cache(partial(answers, path)))


def test_every_act_is_the_same_again(whole, tmp_path):
    """What the others count on: the acts have no other order, and no clock has a part in them."""
    disk = WatchedDisk(tmp_path / "m")
    with disk.used():
        Training().record(tmp_path / "m")
    again = [(operation, path.relative_to(tmp_path / "m")) for operation, path in disk.done]
    assert again == [(operation, path.relative_to(whole.path)) for operation, path in whole.acts]
    kinds = {operation for operation, _ in again}
    assert {"open", "write", "fsync", "close", "rename", "unlink", "mkdir"} <= kinds


def raised_by(call: Callable[[], None]) -> str:
    """What the dualform error says that a call raises; empty where it raises none."""
    try:
        call()
    except DualformError as error:
        return str(error)
    return ""


@pytest.mark.soak
def test_each_act_fails_and_the_next_step_says_so(whole, tmp_path):
    acts = whole.drawn(0, 0, 3)
    said = 0
    for number in some(acts):
        path, training = tmp_path / str(number) / "m", Training()
        path.parent.mkdir()
        disk = FailingDisk(path, number, ERRORS[number % len(ERRORS)], for_good=bool(number // len(ERRORS) % 2))

        def unsaid(disk: FailingDisk = disk) -> None:
            assert disk.failed is None or disk.harmless, f"a step ran after {disk.failed} failed"

        with disk.used():
            text = raised_by(lambda: training.record(path, entering=unsaid))  # noqa: B023 - called at once
        if text:
            assert any(str(failed) in text for failed in disk.failures), text
            assert os.strerror(ERRORS[number % len(ERRORS)]) in text
        else:
            assert disk.harmless
            assert training.acknowledged == STEPS
        said += bool(text)
        assert disk.failed is not None
        assert "dualform-writer" not in [thread.name for thread in threading.enumerate()]
        whole.check(path, training.acknowledged)
        shutil.rmtree(path.parent)
    report(
        "an open, write, fsync, close, rename, unlink, link, truncate or mkdir of a recording fails, once or for good",
        seed=SEED,
        count=len(acts),
        outcome=f"{said} raised at the next step, flush, query set or end, naming file and reason; "
        f"{len(acts) - said} closings of folders were without effect; each folder opened with whole steps, none lost "
        "that was flushed",
    )


@pytest.mark.soak
def test_each_act_fails_and_the_training_goes_on(whole, tmp_path):
    acts = whole.drawn(first_act(whole), 1, 3)
    for number in some(acts):
        path, training = tmp_path / str(number) / "m", Training()
        path.parent.mkdir()
        disk = FailingDisk(path, number, ERRORS[number % len(ERRORS)], for_good=bool(number // len(ERRORS) % 2))
        with disk.used(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            training.record(path, on_error="stop_recording")
        assert disk.failed is not None
        texts = [str(one.message) for one in warned]
        assert sum(any(str(failed) in text for failed in disk.failures) for text in texts) == (not disk.harmless), texts
        assert training.stepped == STEPS
        assert training.weights() == whole.weights
        whole.check(path, training.acknowledged)
        shutil.rmtree(path.parent)
    report(
        "the same from the first step's memory.json on, with on_error='stop_recording'",
        seed=SEED,
        count=len(acts),
        outcome="one warning each, and the training went on to the same weights, bit for bit",
    )


def first_act(whole: Whole) -> int:
    """The number of the first act once there is a memory."""
    renamed = next(n for n, (kind, path) in enumerate(whole.acts) if kind == "rename" and path.name == "memory.json")
    return renamed + 4


def until(path: Path, number: int, acknowledged: Any) -> None:
    """Record in a process that ends before the act of this number; sends what was acknowledged whenever it grows."""
    torch.set_num_threads(1)
    training = Training()
    with EndingDisk(path, number).used():
        training.record(path, entering=lambda: acknowledged.send(training.acknowledged))
    acknowledged.send(training.acknowledged)


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    # What a training loads late, too: pandas comes with DuckDB, and torch._dynamo with an optimizer's first step.
    context.set_forkserver_preload(["tests.record.faulty_disk", "dualform.query.engine", "torch._dynamo", "pandas"])
    return context


def received(pipe: Any) -> int:
    """The last number that a process sent before it ended."""
    last = 0
    try:
        while True:
            last = pipe.recv()
    except EOFError:
        return last


@pytest.mark.soak
def test_a_process_ends_before_each_act(whole, processes, tmp_path):
    acts = whole.drawn(0, 2, 3)
    steps = 0
    for number in some(acts):
        path = tmp_path / str(number) / "m"
        path.parent.mkdir()
        ours, theirs = processes.Pipe(duplex=False)
        child = processes.Process(target=until, args=(path, number, theirs))
        child.start()
        theirs.close()
        acknowledged = received(ours)
        child.join()
        assert child.exitcode == 77  # a process that asks the file system first what it can do has some acts more
        steps += whole.check(path, acknowledged)
        shutil.rmtree(path.parent)
    report(
        "a process ends right before such an act",
        seed=SEED,
        count=len(acts),
        outcome="each folder opened with whole steps, none lost that was flushed, or held no memory before the first",
    )


def limited(path: Path, most_bytes: int, said: Any) -> None:
    """Record where no file may become longer than that; sends (acknowledged, steps of the training, what was said)."""
    import resource

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    training = Training()
    with WatchedDisk(path).used():
        text = raised_by(lambda: training.record(path))
    said.send((training.acknowledged, text))


@pytest.mark.soak
@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit of a file's size")
def test_no_room_for_any_file_duckdb_s_own_too(whole, processes, tmp_path):
    """What DuckDB writes does not go through durable_files: the system refuses it."""
    largest = max(file.stat().st_size for file in whole.path.rglob("*") if file.is_file())
    limits = np.random.default_rng(SEED).integers(0, largest, rounds(2, 200))
    tables = 0
    for number, limit in enumerate(limits.tolist()):
        path = tmp_path / str(number) / "m"
        path.parent.mkdir()
        ours, theirs = processes.Pipe(duplex=False)
        child = processes.Process(target=limited, args=(path, limit, theirs))
        child.start()
        theirs.close()
        acknowledged, text = ours.recv()
        child.join()
        assert child.exitcode == 0
        assert str(path) in text
        assert "File too large" in text
        tables += "slots.duckdb" in text
        whole.check(path, acknowledged)
        shutil.rmtree(path.parent)
    assert tables
    report(
        "no file may become longer than a drawn number of bytes (RLIMIT_FSIZE), which also stops what DuckDB writes",
        seed=SEED,
        count=len(limits),
        outcome=f"raised, naming file and reason, {tables} times of slots.duckdb; each folder opened with whole steps",
    )
