"""A backup is a whole memory of one moment, or nothing; a repair keeps what is whole of a damaged one in a new memory,
which says what was dropped.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import AlreadyExists, BadInput, Damaged, NotAMemory
from dualform.store.maintenance import copying
from dualform.store.maintenance.check import check_memory
from dualform.store.maintenance.copying import copy_memory, repair
from dualform.store.manifest import Manifest
from dualform.store.query_sets import QuerySetArrays
from dualform.store.reading.runs import opened
from dualform.store.reading.snapshot import Snapshot
from dualform_client.cli.main import main
from tests.damage import flip, flipped
from tests.record.resumed_training import Training
from tests.reliability import report, rounds
from tests.store.small_memory import LAYERS, OTHERS, batches_of, open_writer, write

STEPS = 150
SIZES, SEED = [3, 2, 4, 1, 5, 2, 3], 350


def record(path: Path, reached, enough) -> None:
    """Steps of two rows, with a frame or a commit now and then, until it is `enough`."""
    writer = open_writer(path, others=OTHERS, journal_seconds=0.01)
    for step, one in enumerate(batches_of([2] * STEPS)):
        writer.append(one)
        if step % 7 == 6:
            writer.commit()
        if step == 9:
            reached.set()
        if enough.wait(0.02):
            break
    enough.wait()
    os._exit(9)


@pytest.fixture
def recording(tmp_path):
    context = multiprocessing.get_context("forkserver")
    reached, enough = context.Event(), context.Event()
    process = context.Process(target=record, args=(tmp_path / "m", reached, enough))
    process.start()
    assert reached.wait(60)
    yield tmp_path / "m"
    enough.set()
    process.join()
    assert process.exitcode == 9


def same(copy: Snapshot, source: Snapshot) -> None:
    """Every slot of the copy is the source's."""
    slots = copy.count("sample")
    for name in copy.columns("sample"):
        assert copy.column("sample", name).tolist() == source.column("sample", name)[:slots].tolist()
    for layer in LAYERS:
        for kind in ("keys", "values"):
            one, other = (getattr(memory, kind)(layer.name) for memory in (copy, source))
            read = "entry_block" if kind == "keys" else "block"
            assert getattr(one, read)(0, slots).tobytes() == getattr(other, read)(0, slots).tobytes()


def test_a_memory_is_copied_while_another_process_records_it(recording, tmp_path):
    copies = []
    for number in range(2):
        before = opened(recording).steps
        copies.append(copy_memory(recording, tmp_path / str(number)))
        assert copies[-1].steps >= before
    for number, copy in enumerate(copies):
        same(copy, opened(recording))
        assert check_memory(tmp_path / str(number)) == []
        assert copy.cut_off == f"the recording was cut off after step {copy.steps - 1}."


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A memory of four commits, which is only read."""
    path = tmp_path_factory.mktemp("sound") / "m"
    write(path, SIZES, commit_every=2)
    return path


@pytest.fixture
def memory(sound, tmp_path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "m"))


@pytest.fixture(scope="module")
def whole(sound) -> Snapshot:
    return Snapshot.open(sound)


def test_a_copy_shares_no_file_and_leaves_behind_what_is_derived_or_a_killed_copy_left(memory, whole, tmp_path):
    (memory / "shard-00000" / "layers" / "layer-0" / "keys-000000.faiss.codes").write_bytes(b"derived")
    shutil.copytree(memory / "weights", tmp_path / "there" / ".copy.partial" / "weights")
    copy = copy_memory(memory, tmp_path / "there" / "copy")
    same(copy, whole)
    assert (copy.cut_off, check_memory(tmp_path / "there" / "copy")) == ("", [])
    files = {
        folder: {path.relative_to(tmp_path / folder).as_posix(): path.stat().st_ino for path in found if path.is_file()}
        for folder in ("m", "there/copy")
        for found in [sorted((tmp_path / folder).rglob("*"))]
    }
    assert set(files["m"]) - set(files["there/copy"]) == {"shard-00000/layers/layer-0/keys-000000.faiss.codes"}
    assert not set(files["m"].values()) & set(files["there/copy"].values())
    assert names(tmp_path / "there") == ["copy"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("file", ["keys-000000.faiss", "slots.duckdb", "initial.safetensors"])
def test_a_damaged_memory_is_not_copied(memory, tmp_path, file):
    found = next(memory.rglob(file))
    flip(found)
    with pytest.raises(Damaged) as told:
        copy_memory(memory, tmp_path / "copy")
    assert str(found) in told.value.message
    assert names(tmp_path) == ["m"]


def test_where_it_fails_nothing_is_left(memory, tmp_path, monkeypatch):
    copied = copying.copy_file

    def full(source: Path, target: Path) -> None:
        copied(source, target)
        if target.name.startswith("values"):
            raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(copying, "copy_file", full)
    with pytest.raises(OSError, match="No space left"):
        copy_memory(memory, tmp_path / "copy")
    assert names(tmp_path) == ["m"]


def test_places_where_nothing_is_copied_to(memory, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(AlreadyExists, match="there already exists"):
        copy_memory(tmp_path / "m", tmp_path / "there")
    with pytest.raises(BadInput, match="is inside"):
        copy_memory(tmp_path / "m", tmp_path / "m" / "copy")
    with pytest.raises(NotAMemory):
        copy_memory(tmp_path / "there", tmp_path / "copy")
    assert names(tmp_path) == ["m", "there"]


@pytest.mark.parametrize(("commit", "how"), [(1, "altered"), (2, "missing")])
def test_a_damaged_segment_costs_its_commit_and_those_behind(memory, whole, tmp_path, commit, how):
    name = f"shard-00000/layers/layer-1/values-{commit:06d}.npy"
    content = (memory / name).read_bytes()
    if how == "missing":
        (memory / name).unlink()
    else:
        (memory / name).write_bytes(flipped(content, -1))
    dropped, copy = repair(memory, tmp_path / "copy")
    assert dropped == [f"{4 - commit} of 4 commits of shard-00000 were dropped: {name} is damaged."]
    assert copy.steps == 2 * commit
    same(copy, whole)
    assert check_memory(tmp_path / "copy") == []
    assert copy.recording
    assert copy.final() is None
    assert copy.cut_off == f"the recording was cut off after step {2 * commit - 1}. {dropped[0]}"
    assert Manifest.read(tmp_path / "copy").repaired == dropped
    # What came before is not copied byte for byte.
    for file, linked in ((name.replace(f"{commit:06d}", "000000"), True), ("shard-00000/slots.duckdb", False)):
        assert (tmp_path / "copy" / file).samefile(memory / file) == linked


def test_a_copy_has_no_links_of_its_source(memory, tmp_path):
    (tmp_path / "away").mkdir()
    for linked in ("shard-00000", "weights/initial.safetensors"):
        (memory / linked).rename(tmp_path / "away" / Path(linked).name)
        (memory / linked).symlink_to(Path(*[".."] * len(Path(linked).parts), "away", Path(linked).name))
    for write_copy in (repair, copy_memory):
        write_copy(memory, tmp_path / write_copy.__name__)
        assert not [path for path in (tmp_path / write_copy.__name__).rglob("*") if path.is_symlink()]


def test_a_query_set_that_was_taken_behind_what_is_left_is_dropped(tmp_path):
    writer = open_writer(tmp_path / "m")
    for step, one in enumerate(batches_of(SIZES)):
        writer.append(one)
        if step % 2:
            writer.commit()
            queries = {"layer-0": np.full((2, 6), step, np.float32)}
            writer.add_query_set(QuerySetArrays(f"query_set-{step}", queries, None, None, steps=step + 1))
    writer.close()
    flip(tmp_path / "m" / "shard-00000" / "layers" / "layer-1" / "values-000002.npy")
    dropped, copy = repair(tmp_path / "m", tmp_path / "copy")
    assert copy.steps == 4
    assert list(copy.query_sets) == ["query_set-1", "query_set-3"]
    assert copy.query_set("query_set-3").queries("layer-0").tolist() == [[3.0] * 6] * 2
    assert dropped[1:] == ["The query set 'query_set-5' was dropped: it was taken after the last step that is left."]
    assert Manifest.read(tmp_path / "copy").repaired == dropped
    assert sorted(path.name for path in (tmp_path / "copy" / "probes").iterdir()) == ["query_set-1", "query_set-3"]
    assert check_memory(tmp_path / "copy") == []


def test_a_training_may_still_be_resumed_at_the_last_step_that_is_left(tmp_path):
    Training().run(tmp_path / "m", 4, saved=(2, 3))
    assert [mark.step for mark in Manifest.read(tmp_path / "m").marks] == [2, 3, 4]
    flip(next((tmp_path / "m").rglob("values-000001.npy")))
    _, copy = repair(tmp_path / "m", tmp_path / "copy")
    assert copy.steps == 2
    assert [mark.step for mark in Manifest.read(tmp_path / "copy").marks] == [2]


def test_weights_of_the_end_and_query_sets_are_done_without(memory, whole, tmp_path):
    flip(memory / "weights" / "final.safetensors")
    flip(next((memory / "probes").glob("*/queries-*.npy")))
    dropped, copy = repair(memory, tmp_path / "copy")
    assert len(dropped) == 2
    assert (copy.steps, copy.final(), copy.query_sets) == (len(SIZES), None, {})
    same(copy, whole)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("weights/initial.safetensors", "initial.safetensors"),
        ("shard-00000/slots.duckdb", "slots.duckdb"),
        ("memory.json", "memory.json"),
        ("shard-00000/layers/layer-1/values-000000.npy", "has no undamaged step. 4 of 4 commits of shard-00000 were"),
    ],
)
def test_without_these_there_is_no_memory(memory, tmp_path, name, said):
    flip(memory / name)
    with pytest.raises(Damaged, match=re.escape(said)):
        repair(memory, tmp_path / "copy")
    assert names(tmp_path) == ["m"]


def test_the_command_line_says_what_was_dropped(memory, tmp_path, capsys):
    assert main(["check", str(memory), "--repair", "--out", str(tmp_path / "copy")]) == 0
    assert capsys.readouterr().out.splitlines() == ["no problems", "nothing to repair: no copy was made"]
    flip(memory / "shard-00000" / "layers" / "layer-0" / "values-000001.npy")
    assert main(["check", str(memory), "--repair"]) == 2
    assert main(["check", str(memory), "--repair", "--out", str(tmp_path / "copy")]) == 0
    *_, dropped, last = capsys.readouterr().out.splitlines()
    assert dropped.startswith("3 of 4 commits of shard-00000 were dropped")
    assert last == f"{tmp_path / 'copy'} has the undamaged part, up to step 1, and passed every check"


@pytest.mark.soak
def test_whatever_file_is_damaged_the_copy_is_a_prefix_or_there_is_none(memory, whole, tmp_path):
    rng, count, repaired = np.random.default_rng(SEED), rounds(4, 200), 0
    files = sorted(path for path in memory.rglob("*") if path.is_file())
    for number in range(count):
        file = files[rng.integers(len(files))]
        content = file.read_bytes()
        bit = int(rng.integers(8 * len(content)))
        file.write_bytes(flipped(content, bit) if number % 2 else content[: bit // 8])
        try:
            _, copy = repair(memory, tmp_path / f"copy-{number}")
        except Damaged:
            assert not (tmp_path / f"copy-{number}").exists()
        else:
            assert check_memory(tmp_path / f"copy-{number}") == []
            repaired += 1
            same(copy, whole)
        finally:
            file.write_bytes(content)
    assert repaired > count // 3
    report(
        "a file altered or cut short, then repaired",
        seed=SEED,
        count=count,
        outcome=f"{repaired} repaired, each a prefix that passes every check; else refused, and nothing left",
    )
