"""What is whole of a damaged memory is kept in a new one, which says what was dropped; else nothing is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualform.errors import Damaged
from dualform.store.maintenance.check import check_memory
from dualform.store.maintenance.copying import copy_memory, repair
from dualform.store.manifest import Manifest
from dualform.store.query_sets import QuerySetArrays
from dualform.store.reading.snapshot import Snapshot
from tests.damage import flip
from tests.reliability import report, rounds
from tests.store.small_memory import batches_of, open_writer, write
from tests.store.test_copying import same

SIZES = [3, 2, 4, 1, 5, 2, 3]
SEED = 350


def recorded(folder: Path) -> Snapshot:
    write(folder, SIZES, commit_every=2)
    return Snapshot.open(folder)


@pytest.mark.parametrize("how", ["altered", "missing", "cut short"])
@pytest.mark.parametrize("commit", [1, 2])
def test_a_damaged_segment_costs_its_commit_and_those_behind(tmp_path, commit, how):
    whole = recorded(tmp_path / "m")
    file = tmp_path / "m" / "shard-00000" / "layers" / "layer-1" / f"values-{commit:06d}.npy"
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "cut short":
        file.write_bytes(content[:-8])
    else:
        flip(file)
    dropped, copy = repair(tmp_path / "m", tmp_path / "copy")
    name = f"shard-00000/layers/layer-1/values-{commit:06d}.npy"
    assert dropped == [f"{4 - commit} of 4 commits of shard-00000 were dropped: {name} is damaged."]
    assert copy.steps == 2 * commit
    file.write_bytes(content)  # the new memory may have it under another name, where it was not dropped
    same(copy, whole)
    assert check_memory(tmp_path / "copy") == []
    assert copy.recording
    assert copy.final() is None
    assert copy.cut_off == f"the recording was cut off after step {2 * commit - 1}. {dropped[0]}"
    assert Manifest.read(tmp_path / "copy").repaired == dropped


def test_where_no_step_is_whole_there_is_no_copy(tmp_path):
    recorded(tmp_path / "m")
    flip(tmp_path / "m" / "shard-00000" / "layers" / "layer-1" / "values-000000.npy")
    with pytest.raises(Damaged, match=r"has no undamaged step\. 4 of 4 commits of shard-00000 were dropped"):
        repair(tmp_path / "m", tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_what_came_before_is_not_copied_byte_for_byte(tmp_path):
    recorded(tmp_path / "m")
    layers = Path("shard-00000", "layers", "layer-1")
    flip(tmp_path / "m" / layers / "values-000003.npy")
    repair(tmp_path / "m", tmp_path / "copy")
    assert (tmp_path / "copy" / layers / "values-000002.npy").samefile(tmp_path / "m" / layers / "values-000002.npy")
    database = Path("shard-00000", "slots.duckdb")
    assert not (tmp_path / "copy" / database).samefile(tmp_path / "m" / database)


@pytest.mark.parametrize("linked", ["shard-00000", "shard-00000/layers/layer-1/values-000002.npy"])
def test_a_copy_has_no_links_of_its_source(tmp_path, linked):
    recorded(tmp_path / "m")
    (tmp_path / "away").mkdir()
    (tmp_path / "m" / linked).rename(tmp_path / "away" / "target")
    (tmp_path / "m" / linked).symlink_to(Path(*[".."] * len(Path(linked).parts), "away", "target"))
    for write_copy in (repair, copy_memory):
        write_copy(tmp_path / "m", tmp_path / write_copy.__name__)
        assert not [path for path in (tmp_path / write_copy.__name__).rglob("*") if path.is_symlink()]


def test_a_damaged_journal_costs_what_came_since_the_last_commit(tmp_path):
    writer = open_writer(tmp_path / "m", journal_seconds=0.0)
    for step, one in enumerate(batches_of([2] * 6)):
        writer.append(one)
        if step == 2:
            writer.commit()
    del writer
    journal = tmp_path / "m" / "shard-00000" / "journal-000001"
    content = bytearray(journal.read_bytes())
    content[200] ^= 1
    journal.write_bytes(content)
    assert check_memory(tmp_path / "m")
    dropped, copy = repair(tmp_path / "m", tmp_path / "copy")
    assert copy.steps == 3
    assert dropped[0].startswith("The steps since the last commit of shard-00000 were dropped: shard-00000/journal-")


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


def test_weights_of_the_end_and_query_sets_are_done_without(tmp_path):
    whole = recorded(tmp_path / "m")
    flip(tmp_path / "m" / "weights" / "final.safetensors")
    query_set = next((tmp_path / "m" / "probes").iterdir())
    flip(next(query_set.glob("queries-*.npy")))
    dropped, copy = repair(tmp_path / "m", tmp_path / "copy")
    assert len(dropped) == 2
    assert (copy.steps, copy.final(), copy.query_sets) == (len(SIZES), None, {})
    same(copy, whole)


@pytest.mark.parametrize("name", ["weights/initial.safetensors", "shard-00000/slots.duckdb", "memory.json"])
def test_without_these_there_is_no_memory(tmp_path, name):
    recorded(tmp_path / "m")
    flip(tmp_path / "m" / name)
    with pytest.raises(Damaged, match=Path(name).name):
        repair(tmp_path / "m", tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_the_command_line_says_what_was_dropped(tmp_path, capsys):
    from dualform_client.cli.main import main

    recorded(tmp_path / "m")
    assert main(["check", str(tmp_path / "m"), "--repair", "--out", str(tmp_path / "copy")]) == 0
    assert capsys.readouterr().out.splitlines() == ["no problems", "nothing to repair: no copy was made"]
    flip(tmp_path / "m" / "shard-00000" / "layers" / "layer-0" / "values-000001.npy")
    assert main(["check", str(tmp_path / "m"), "--repair"]) == 2
    assert main(["check", str(tmp_path / "m"), "--repair", "--out", str(tmp_path / "copy")]) == 0
    *_, dropped, last = capsys.readouterr().out.splitlines()
    assert dropped.startswith("3 of 4 commits of shard-00000 were dropped")
    assert last == f"{tmp_path / 'copy'} has the undamaged part, up to step 1, and passed every check"
    assert main(["check", str(tmp_path / "copy")]) == 0


@pytest.mark.soak
def test_whatever_file_is_damaged_the_copy_is_a_prefix_or_there_is_none(tmp_path):
    rng = np.random.default_rng(SEED)
    whole, count = recorded(tmp_path / "m"), rounds(5, 200)
    files = sorted(path for path in (tmp_path / "m").rglob("*") if path.is_file())
    repaired = 0
    for number in range(count):
        file = files[rng.integers(len(files))]
        content = file.read_bytes()
        altered = bytearray(content)
        place = int(rng.integers(len(altered)))
        altered[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(altered if number % 2 else content[:place])
        try:
            _, copy = repair(tmp_path / "m", tmp_path / f"copy-{number}")
        except Damaged:
            assert not (tmp_path / f"copy-{number}").exists()
        else:
            assert check_memory(tmp_path / f"copy-{number}") == []
            repaired += 1
            same(copy, whole) if file.suffix in (".duckdb", ".json", ".safetensors") else None
        finally:
            file.write_bytes(content)
        if (tmp_path / f"copy-{number}").exists():
            same(Snapshot.open(tmp_path / f"copy-{number}"), whole)
    assert repaired > count // 3
    report(
        "a file altered or cut short, then repaired",
        seed=SEED,
        count=count,
        outcome=f"{repaired} repaired, each a prefix that passes every check; else refused, and nothing left",
    )
