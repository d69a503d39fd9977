"""A folder in which a memory was begun and not created, as a kill leaves it, counts as nothing."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

import dualform
from dualform.errors import AlreadyExists, Locked, NotAMemory
from dualform.store.reading.snapshot import Snapshot
from tests.record.resumed_training import Training
from tests.store.small_memory import OTHERS, batches_of, open_writer, write

MOMENTS = ("_layer_writer", "_columns_known", "_set_weights", "_write_manifest")
"""Methods of the writer, in the order in which a memory is created."""
processes = multiprocessing.get_context("forkserver")


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


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_memory_that_was_not_created_is_none_and_the_next_recorder_clears_it(tmp_path, moment):
    folder = begun(tmp_path / "on" / "the" / "way" / "m", moment)
    with pytest.raises(NotAMemory, match=r"^.*m does not contain a dualform memory yet: ") as told:
        dualform.open(folder)
    assert "Record into it; a new recorder removes the remains of an earlier one." in told.value.hint
    found = write(folder, [3, 2])
    assert Snapshot.open(folder).column("sample", "sample").tolist() == found.columns["sample"]


@pytest.mark.parametrize("resume", [False, True])
def test_a_training_begins_anew_in_it(tmp_path, resume):
    Training().run(begun(tmp_path / "m"), 3, resume=resume)
    with dualform.open(tmp_path / "m") as memory:
        assert (memory.info().steps, memory.info().cut_off) == (3, "")
        assert all(reconstruction.exact for reconstruction in memory.verify().values())


@pytest.mark.parametrize(
    "name", ["notes.txt", "shard-00000/layers/layer-0/notes.txt", "shard-00000/layers/layer-0/keys-000000.faiss"]
)
def test_anything_else_in_it_is_left_alone(tmp_path, name):
    folder = begun(tmp_path / "m")
    (folder / name).write_text("x")
    before = sorted(folder.rglob("*"))
    with pytest.raises(NotAMemory, match=r"is not a dualform memory \(no memory\.json\)"):
        dualform.open(folder)
    with pytest.raises(AlreadyExists, match="is not an empty folder"):
        open_writer(folder)
    assert sorted(folder.rglob("*")) == before


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
