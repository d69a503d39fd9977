"""Who writes a memory is told while the process lives; a folder in which one was only begun counts as nothing; and a
folder may have any name but those that DuckDB cannot write.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import dualform
import dualform as dual
from dualform.errors import AlreadyExists, BadInput, Locked, NotAMemory
from dualform.store.locks import Writing, writing
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from dualform_client.cli.main import dualform as command, main
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.record.resumed_training import Training
from tests.reliability import report, rounds
from tests.store.small_memory import OTHERS, batches_of, open_writer, write
from tests.trainings import learn

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


@pytest.mark.parametrize("recording", [True], indirect=True, ids=["forked"])
def test_a_living_writer_is_named_and_a_killed_one_is_not(recording):
    folder, process = recording
    memory = Snapshot.open(folder)
    for _ in range(2):  # asking takes nothing from it
        assert memory.cut_off == goes_on(process)
    process.kill()
    process.join()
    assert memory.cut_off == "the recording was cut off after step 1."
    assert memory.recording


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


def test_a_living_recording_is_told_of_and_a_process_of_the_same_number_is_another_one(recording):
    """As in containers, where each training may be process 1. Nobody deletes of it, and its end is told anywhere."""
    folder, process = recording
    with pytest.raises(BadInput, match=r"^Still recorded, by process"):
        dualform.delete(folder, "label = 1", cut_off=True)
    with dualform.open(folder) as memory, Server(memory, ServiceConfig("127.0.0.1:0")) as server:
        for target in (str(folder), server.address):
            assert goes_on(process) in CliRunner().invoke(command, ["info", target]).output.splitlines()
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


def test_a_writer_that_is_gone_while_its_process_lives_holds_nothing(tmp_path):
    writer = open_writer(tmp_path / "deleted")
    del writer
    open_writer(tmp_path / "abandoned").abandon()
    for folder in (tmp_path / "deleted", tmp_path / "abandoned"):
        assert writing(folder / "shard-00000") == Writing(False)
        assert Snapshot.open(folder).cut_off == "the recording was cut off before its first step."


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


MOMENTS = ("_layer_writer", "_columns_known", "_set_weights", "_write_manifest")
"""Methods of the writer, in the order in which a memory is created."""


def begin(path: Path, moment: str) -> None:
    """Creates a memory, and ends as a kill would have it once this was done; as memory.json would be written."""
    from dualform.store.writing.writer import Writer

    done = getattr(Writer, moment)

    def end(*arguments: object) -> None:
        if moment != "_write_manifest":
            done(*arguments)
        os._exit(9)

    setattr(Writer, moment, end)
    open_writer(path, others=OTHERS)


def begun(path: Path, moment: str = MOMENTS[-1]) -> Path:
    process = processes.Process(target=begin, args=(path, moment))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert (path / "shard-00000").is_dir()
    assert not (path / "memory.json").exists()
    return path


@pytest.mark.parametrize("moment", MOMENTS[::3])
def test_a_memory_that_was_not_created_is_none_and_the_next_recorder_clears_it(tmp_path, moment):
    folder = begun(tmp_path / "on" / "the" / "way" / "m", moment)
    with pytest.raises(NotAMemory, match=r"^.*m does not contain a dualform memory yet: ") as told:
        dualform.open(folder)
    assert "Record into it; a new recorder removes the remains of an earlier one." in told.value.hint
    found = write(folder, [3, 2])
    assert Snapshot.open(folder).column("sample", "sample").tolist() == found.columns["sample"]


def test_anything_else_in_it_is_left_alone(tmp_path):
    folder = begun(tmp_path / "m")
    for name in ("notes.txt", "shard-00000/layers/layer-0/notes.txt", "shard-00000/layers/layer-0/keys-000000.faiss"):
        (folder / name).write_text("x")
        before = sorted(folder.rglob("*"))
        with pytest.raises(NotAMemory, match=r"is not a dualform memory \(no memory\.json\)"):
            dualform.open(folder)
        with pytest.raises(AlreadyExists, match="is not an empty folder"):
            open_writer(folder)
        assert sorted(folder.rglob("*")) == before
        (folder / name).unlink()


def test_a_memory_of_which_memory_json_was_lost_is_left_alone(tmp_path):
    """One without keys has no file that the creation does not make, but rows in its tables."""
    writer = open_writer(tmp_path / "m", layers=())
    for one in batches_of([2]):
        writer.append(type(one)(**{**vars(one), "layers": {}}))
    writer.close()
    (tmp_path / "m" / "memory.json").unlink()
    (tmp_path / "m" / "shard-00000" / "writing").write_text("")
    with pytest.raises(AlreadyExists):
        open_writer(tmp_path / "m")


def create_slowly(path: Path, begun, go_on) -> None:
    from dualform.store.writing.writer import Writer

    written = Writer._write_manifest

    def slowly(self: Writer) -> None:
        begun.set()
        go_on.wait()
        written(self)

    Writer._write_manifest = slowly
    open_writer(path)


def test_one_that_is_being_created_is_not_cleared(tmp_path):
    reached, go_on = processes.Event(), processes.Event()
    process = processes.Process(target=create_slowly, args=(tmp_path / "m", reached, go_on))
    process.start()
    assert reached.wait(60)
    with pytest.raises(Locked, match=rf"is being recorded by process {process.pid} on "):
        open_writer(tmp_path / "m")
    go_on.set()
    process.join()
    assert process.exitcode == 0
    assert Snapshot.open(tmp_path / "m").steps == 0


NAMES = [
    '-dash/ it\'s "x"; 100% %41 sta*r a[b] #1 {a} $HOME ünï 学 new\nline',
    "md:run/sqlite:run/~run/s3://b/:memory:",
]
"""Names that are quoted alike, and such as mean another place to DuckDB or to a shell."""
UNWRITABLE = ["what?", "back\\slash", os.fsdecode(b"latin-\xfc")]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_folder_may_have_any_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, [5, 6, 7])
    with dual.open(path) as memory:
        assert len(memory.topk("layer-0", np.ones((1, 6)), k=3, where="label < 9").ids) == 3
        assert memory.sql("SELECT count(*) AS n FROM slots")["n"].tolist() == [18]
        assert memory.slots([0], "sample")["step"].tolist() == [0]
        assert memory.query_set("test", "layer-0").queries.shape == (12, 6)
    assert dual.delete(path, "step = 0").samples == 5
    assert check_memory(path) == []


def test_commands_and_servers_take_such_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "md:it's sta*r"
    write(Path(name), [5, 6, 7])
    for words in (["info", "--", name], ["sql", "--", name, "SELECT 1 AS a"], ["check", "--", name]):
        assert main(words) == 0
    with dual.connect(name) as memory, Server(memory) as server, dual.connect(server.address) as client:
        assert client.info().slots == {"sample": 18}


def train(path: Path, then: Callable[[], None] = lambda: None) -> None:
    """Two steps of two slots, and what is done between them."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dual.Recorder(model, optimizer, path, quiet=True) as recorder:
        for after in (then, lambda: None):
            with recorder.step(label=1):
                learn(optimizer, model(torch.ones(2, 3)).sum())
            recorder.flush()
            after()


def test_a_folder_is_where_it_was_when_it_was_named(tmp_path, monkeypatch):
    """Whatever folder the process works in from then on."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    train(Path("run"), then=lambda: os.chdir(tmp_path))
    monkeypatch.chdir(tmp_path / "a")
    with dual.open("run") as memory, dual.open([Path("run")]) as runs:
        monkeypatch.chdir(tmp_path)
        for own in (memory, runs):
            assert len(own.topk("", np.ones((1, 3)), k=9).ids) == 4
            assert own.sql("SELECT count(*) AS n FROM slots")["n"].tolist() == [4]
            assert not own.refresh()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
@pytest.mark.parametrize("name", UNWRITABLE, ids=ascii)
def test_what_cannot_be_written_is_refused_before_anything_is(name, tmp_path):
    with pytest.raises(BadInput, match="Rename the folder"):
        train(tmp_path / name / "run")
    assert list(tmp_path.iterdir()) == []
    # Where a memory was moved there, it is read if DuckDB can, and not written.
    write(tmp_path / "memory", [5, 6])
    (tmp_path / "memory").rename(tmp_path / name)
    before = {file: file.read_bytes() for file in (tmp_path / name).rglob("*") if file.is_file()}
    if name == "what?":
        with dual.open(tmp_path / name) as memory:
            assert memory.sql("SELECT count(*) AS n FROM slots")["n"].tolist() == [11]
    else:
        with pytest.raises(BadInput, match="Rename the folder"):
            dual.open(tmp_path / name)
    with pytest.raises(BadInput, match="Rename the folder"):
        dual.delete(tmp_path / name, "step = 0")
    assert {file: file.read_bytes() for file in (tmp_path / name).rglob("*") if file.is_file()} == before


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_a_link_does_not_help(tmp_path):
    """DuckDB follows it."""
    (tmp_path / "what?").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "what?")
    with pytest.raises(BadInput, match="Rename the folder"):
        train(tmp_path / "link" / "run")
    assert list((tmp_path / "what?").iterdir()) == []
