"""Who writes a memory is told for as long as the process lives, and no longer."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import dualform
from dualform.errors import BadInput, Locked
from dualform.store.locks import Writing, writing
from dualform.store.reading.snapshot import Snapshot
from dualform_client.cli.main import dualform as command
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.record.resumed_training import Training
from tests.reliability import report, rounds
from tests.store.small_memory import batches_of, open_writer

processes = multiprocessing.get_context("forkserver")


def record(path: Path, pipe, fork: bool) -> None:
    """Two steps, and then waits to be killed; of a fork that outlives it, the process is sent as well."""
    writer = open_writer(path)
    for one in batches_of([2, 3]):
        writer.append(one)
    writer.commit()
    child = os.fork() if fork else 0
    if fork and not child:
        signal.pause()
    pipe.send(child)
    signal.pause()


@pytest.fixture
def recording(request, tmp_path):
    """A folder and the living process that records into it."""
    ours, theirs = processes.Pipe()
    process = processes.Process(target=record, args=(tmp_path / "m", theirs, getattr(request, "param", False)))
    process.start()
    assert ours.poll(60)
    child = ours.recv()
    yield tmp_path / "m", process
    process.kill()
    process.join()
    if child:
        os.kill(child, signal.SIGKILL)


def goes_on(process) -> str:
    return f"still recorded, by process {process.pid} on {socket.gethostname()}; read here up to step 1."


@pytest.mark.parametrize("recording", [False, True], indirect=True, ids=["alone", "forked"])
def test_a_living_writer_is_named_and_a_killed_one_is_not(recording):
    folder, process = recording
    memory = Snapshot.open(folder)
    for _ in range(2):  # asking takes nothing from it
        assert memory.cut_off == goes_on(process)
    process.kill()
    process.join()
    assert memory.cut_off == "the recording was cut off after step 1."
    assert memory.recording


def test_the_command_line_and_the_wire_tell_it(recording):
    folder, process = recording
    sentence = goes_on(process)
    with dualform.open(folder) as memory, Server(memory, ServiceConfig("127.0.0.1:0")) as server:
        for target in (str(folder), server.address):
            assert sentence in CliRunner().invoke(command, ["info", target]).output.splitlines()


@pytest.mark.soak
def test_a_second_recorder_is_refused_naming_the_first(recording):
    """At once: the first lives on, so that whoever waited for it would wait for ever."""
    folder, process = recording
    count, training = rounds(2, 200), Training()
    before = Snapshot.open(folder).count("sample")
    began = time.process_time()
    for number in range(count):
        with pytest.raises(Locked, match=rf"is being recorded by process {process.pid} on ") as told:
            training.recorder(folder, resume=bool(number % 2))
        assert "End that process, or record into another folder." in told.value.hint
    assert time.process_time() - began < count, "a second each, at most"
    assert Snapshot.open(folder).count("sample") == before
    report(
        "a second recorder of a folder that another process records into, every other time to resume it",
        seed=0,
        count=count,
        outcome="refused, naming the process, within a second of the processor; what was recorded stayed as it was",
    )


def test_a_process_of_the_same_number_is_another_one(recording):
    """As in containers, where each training may be process 1."""
    folder, _ = recording
    said = folder / "shard-00000" / "writing"
    said.write_text(json.dumps({**json.loads(said.read_text()), "process": os.getpid()}))
    with pytest.raises(Locked, match="is being recorded by process"):
        Training().recorder(folder, resume=True)


def test_a_writer_of_this_process_is_asked_and_not_its_file(tmp_path):
    """Closing any descriptor of the file would let go of the lock."""
    writer = open_writer(tmp_path / "m")
    found = writing(tmp_path / "m" / "shard-00000")
    assert (found.going_on, found.here, found.by.host, found.by.process) == (
        True,
        True,
        socket.gethostname(),
        os.getpid(),
    )
    with processes.Pool(1) as pool:
        assert pool.apply(writing, (tmp_path / "m" / "shard-00000",)) == Writing(True, found.by)
    writer.close()
    assert not (tmp_path / "m" / "shard-00000" / "writing").exists()
    assert Snapshot.open(tmp_path / "m").cut_off == ""


def test_nobody_deletes_samples_of_what_is_being_recorded(recording):
    with pytest.raises(BadInput, match=r"^Still recorded, by process"):
        dualform.delete(recording[0], "label = 1", cut_off=True)


@pytest.mark.parametrize("how", ["abandoned", "deleted"])
def test_a_writer_that_is_gone_while_its_process_lives_holds_nothing(tmp_path, how):
    writer = open_writer(tmp_path / "m")
    if how == "abandoned":
        writer.abandon()
    else:
        del writer
    assert writing(tmp_path / "m" / "shard-00000") == Writing(False)
    assert Snapshot.open(tmp_path / "m").cut_off == "the recording was cut off before its first step."


def test_where_it_cannot_be_told_nothing_is_claimed(tmp_path):
    open_writer(tmp_path / "m")
    shutil.copytree(tmp_path / "m", tmp_path / "elsewhere")
    file = tmp_path / "elsewhere" / "shard-00000" / "writing"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"host": "another.example"}))
    assert writing(file.parent) == Writing(None)  # its file system may keep locks to itself
    file.unlink()
    assert writing(file.parent) == Writing(None)
    memory = Snapshot.open(tmp_path / "elsewhere")
    assert memory.cut_off == "the recording was cut off before its first step, or still runs."
