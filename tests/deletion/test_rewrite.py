"""A memory without some samples is, bit for bit, what batches without them make, and nothing of them is left, nor of
what they looked like.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import dualform
from dualform import PreviewSet
from dualform.deletion.delete import planned_deletion
from dualform.errors import BadInput, EmptyMask, NotFound
from dualform.store.batch import Batch, Ending, Extent, LayerRows
from dualform.store.maintenance.check import check_memory, leftovers
from dualform.store.reading.runs import opened
from dualform.store.reading.snapshot import Snapshot
from tests.record.resumed_training import Training
from tests.record.test_previews import Small
from tests.store.small_memory import (
    LAYERS,
    OTHERS,
    SETTINGS,
    TOKENS,
    Expected,
    append_all,
    batches_of,
    check_rows,
    expected,
    open_writer,
    other_row,
    other_values,
    samples,
    token_rows,
    write as write_whole_memory,
)
from tests.trainings import take_steps

TYPES = dict.fromkeys(SETTINGS, "DOUBLE") | dict.fromkeys(("nesterov", "maximize"), "BOOLEAN")


def write(path: Path, batches: list[Batch], layers=LAYERS, finish: bool = True, number: int = 0, shards: int = 1):
    """One shard, committed once within; what comes behind in a recording that is cut off is in a journal."""
    others = None if number else OTHERS
    initial = {f"{layer.name}.weight": np.ones((layer.d_out, layer.d_in), np.float32) for layer in TOKENS}
    options = {"shard_number": number, "shards": shards, "settings": TYPES, "further": initial}
    writer = open_writer(path, layers, others=others, journal_seconds=None if finish else 0.0, **options)
    rows = (replace(one, others=[other_row(step)] if step and others else []) for step, one in enumerate(batches))
    append_all(writer, rows, (1,))
    if finish:
        writer.close(Ending(final={"layer-0.weight": np.full((5, 6), 2, np.float32)}))
    else:
        writer.abandon()


def token_batches(steps: int, seed: int = 0) -> list[Batch]:
    """Of two calls, the second with rows and positions of its own; every row is known."""
    rng = np.random.default_rng(seed)
    found = []
    for step in range(steps):
        rows = int(rng.integers(1, 5))
        row = rng.integers(0, rows, rows + 2).astype(np.int32)
        words = np.array([None, "the", f"word of step {step}"] * 4 * rows, dtype=object)[: 4 * rows]
        extents = [
            Extent("token", 0, rows, 4, columns={"token": rng.integers(0, 9, 4 * rows), "word": words}),
            Extent("token", 1, rows, 4, row, rng.integers(0, 99, rows + 2)),
        ]
        layers = {
            "every": [token_rows(rng, 0, 4 * rows, 4), token_rows(rng, 1, rows + 2, 4)],
            "digested": [token_rows(rng, 0, 4 * rows, 3)],
        }
        if step % 2:
            layers["some"] = [token_rows(rng, 1, rows + 2, 3)]
        joined = [layer for layer in TOKENS if layer.name == "some"] if step == 1 else []
        found.append(Batch(step, samples(rng, rng.integers(0, 20, rows)), extents, layers, joined=joined))
    return found


def without(batches: list[Batch], gone: set[int]) -> list[Batch]:
    """The batches as they would be without some samples, by plain loops over rows and slots."""
    found = []
    for one in batches:
        stays = [int(sample) not in gone for sample in one.samples["sample"]]
        row_of = np.cumsum(stays) - 1
        extents, kept = [], {}
        for extent in one.extents:
            row = extent.row if extent.row is not None else np.arange(extent.slots) // (extent.length or 1)
            own = kept[extent.call] = np.array([stays[r] for r in row], dtype=bool)
            listed = None if extent.row is None else row_of[extent.row[own]].astype(np.int32)
            position = None if extent.position is None else extent.position[own]
            columns = {name: column[own] for name, column in extent.columns.items()}
            extents.append(replace(extent, rows=sum(stays), row=listed, position=position, columns=columns))
        layers = {
            name: [LayerRows(r.call, r.keys[kept[r.call]], r.values[kept[r.call]]) for r in rows]
            for name, rows in one.layers.items()
        }
        said = {name: column[np.array(stays)] for name, column in one.samples.items()}
        found.append(replace(one, samples=said, extents=extents, layers=layers))
    return found


def check_holds(memory: Snapshot, space: str, wanted: Expected, columns: dict[str, list], layers) -> None:
    for name, column in columns.items():
        assert memory.column(space, name).tolist() == column, name
    check_rows(memory, layers, wanted)
    found = {row.tobytes() for layer in layers if layer.repeats for row in wanted.keys[layer.name]}
    stored = sum(memory.keys(layer.name).rows for layer in layers if layer.repeats)
    assert stored >= len(found)


def picked(batches: list[Batch], gone: set[int]) -> set[int]:
    return gone & {int(sample) for one in batches for sample in one.samples["sample"]}


@settings(max_examples=3, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=6), st.sets(st.integers(0, 11), max_size=7), st.booleans())
def test_it_is_what_batches_without_them_make(sizes, gone, finish):
    batches = batches_of(sizes)
    gone = picked(batches, gone)
    left = without(batches, gone)
    if not gone or not any(len(one.samples["sample"]) for one in left):
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory"
        write(path, batches, finish=finish)
        done = dualform.delete(path, f"sample IN ({', '.join(map(str, gone))})", cut_off=not finish)
        wanted = expected(left, LAYERS)
        memory = Snapshot.open(path)
        assert done.samples == sum(sizes) - len(wanted.columns["slot"])
        check_holds(memory, "sample", wanted, wanted.columns, LAYERS)
        distinct = {row.tobytes() for row in wanted.keys["layer-0"]}
        assert memory.keys("layer-0").rows == len(distinct)
        assert (memory.steps, memory.recording, memory.frames) == (len(sizes), not finish, 0)
        assert memory.others is not None
        first = min(step for step, one in enumerate(batches) if gone & set(one.samples["sample"].tolist()))
        assert memory.others.moments == list(range(1, min(first + 1, len(sizes))))
        for step in memory.others.moments:
            for name, own in other_values(step).items():
                assert np.array_equal(memory.others.at(step)[name], own)
        assert memory.table("factors")["step"].to_pylist() == [s for s in range(len(sizes)) for _ in range(3)]
        with duckdb.connect(path / memory.manifest.shards[0].folder / "slots.duckdb", read_only=True) as tables:
            found = tables.sql("SELECT * FROM slots ORDER BY slot").to_arrow_table().to_pydict()
        assert found == wanted.columns
        assert check_memory(path) == []


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 999), st.sets(st.integers(0, 19), max_size=12))
def test_lists_of_single_slots_and_entries_lose_theirs(seed, gone):
    batches = token_batches(6, seed)
    gone = picked(batches, gone)
    left = without(batches, gone)
    if not gone or not any(len(one.samples["sample"]) for one in left):
        return
    with tempfile.TemporaryDirectory() as folder:
        path, first = Path(folder) / "memory", tuple(layer for layer in TOKENS if layer.name != "some")
        write(path, batches, layers=first)
        dualform.delete(path, f"sample IN ({', '.join(map(str, gone))})")
        wanted = expected(left, TOKENS)
        memory = Snapshot.open(path)
        check_holds(memory, "token", wanted, wanted.tokens, TOKENS)
        assert memory.table("digests").num_rows == 0
        assert check_memory(path) == []
        with duckdb.connect(path / memory.manifest.shards[0].folder / "slots.duckdb", read_only=True) as tables:
            found = tables.sql("SELECT * FROM slots ORDER BY slot").to_arrow_table().to_pydict()
        assert found == wanted.tokens


def test_several_shards_lose_theirs(tmp_path):
    parts, gone = [batches_of([4, 3], seed) for seed in range(2)], {1, 4, 6}
    for number, batches in enumerate(parts):
        write(tmp_path / "memory", batches, number=number, shards=2)
    dualform.delete(tmp_path / "memory", "sample IN (1, 4, 6)")
    left = zip(*(without(batches, gone) for batches in parts), strict=True)
    wanted = expected([one for of_step in left for one in of_step], LAYERS)
    check_holds(opened(tmp_path / "memory"), "sample", wanted, wanted.columns, LAYERS)
    assert check_memory(tmp_path / "memory") == []


def test_no_byte_of_theirs_is_left(tmp_path):
    """Keys, values and texts that only they had; the same search finds all of them before."""
    batches = batches_of([6, 6, 6, 6, 6])
    for one in batches:
        sample = one.samples["sample"]
        one.samples["dataset"] = np.array([f"dataset of person {s}" for s in sample], dtype=object)
        one.samples["letter"] = np.array([f"a letter that number {s} wrote" for s in sample], dtype=object)
    write(tmp_path / "memory", batches)
    gone = {int(batches[0].samples["sample"][0]), int(batches[3].samples["sample"][0])}
    theirs = list[bytes]()
    for one in batches:
        for row, sample in enumerate(one.samples["sample"]):
            if int(sample) in gone:
                theirs += [one.layers[name][0].keys[row].tobytes() for name in ("layer-0", "layer-1")]
                theirs += [one.layers[name][0].values[row].tobytes() for name in ("layer-0", "layer-1")]
                theirs += [one.samples[name][row].encode() for name in ("dataset", "letter")]
    theirs = [own for own in theirs if any(own)]

    def left() -> set[bytes]:
        contents = [path.read_bytes() for path in (tmp_path / "memory").rglob("*") if path.is_file()]
        return {own for own in theirs if any(own in content for content in contents)}

    assert left() == set(theirs)
    dualform.delete(tmp_path / "memory", f"sample IN ({', '.join(map(str, gone))})")
    assert left() == set()


def test_names_of_labels_go_with_the_last_sample_that_has_them(tmp_path):
    batches = batches_of([6, 6, 6])
    for one in batches:
        one.samples["dataset"] = np.array(["first"] * 6, dtype=object)
        one.samples["label"] = (one.samples["sample"] == 0).astype(np.int64)
    batches[0].samples["sample"][0] = 0
    batches[0].samples["label"][0] = 1
    write(tmp_path / "memory", batches)
    dualform.delete(tmp_path / "memory", "label = 1")
    assert Snapshot.open(tmp_path / "memory").table("labels")["name"].to_pylist() == ["zero"]


def test_the_name_of_a_dataset_goes_with_its_last_sample(tmp_path):
    """Also from the names of labels that no sample had."""
    batches = batches_of([6, 6])
    for one, dataset in zip(batches, ("first", "second"), strict=True):
        one.samples["dataset"] = np.array([dataset] * 6, dtype=object)
        one.samples["label"] = np.zeros(6, np.int64)
    write(tmp_path / "memory", batches)
    dualform.delete(tmp_path / "memory", "dataset = 'first'")
    assert Snapshot.open(tmp_path / "memory").table("labels").num_rows == 0


def test_what_cannot_be_deleted_is_refused_and_nothing_changes(tmp_path):
    path = tmp_path / "memory"
    write(path, token_batches(4), layers=tuple(layer for layer in TOKENS if layer.name != "some"), finish=False)
    for own in ("weights/final.safetensors", "memory.json.tmp", "weights/epoch-5.pt", "probes/notes.txt"):
        (path / own).parent.mkdir(exist_ok=True)  # what its recorder is about to name, and what others put there
        (path / own).write_bytes(b"content")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(BadInput, match="cut off after step 3") as refused:
        dualform.delete(path, "sample = 1")
    assert "cut_off=True" in refused.value.hint
    for error, said, where, options in (
        (BadInput, "'token' is a column of single slots", "token = 1", {}),
        (BadInput, "where matches every sample", "step >= 0", {}),
        (EmptyMask, "where matches no sample:", "sample = 99", {}),
        (NotFound, "no slot column 'person'", "person = 1", {}),
        (NotFound, "no query set 'mine'", "sample >= 10", {"query_sets": ("mine",)}),
    ):
        with pytest.raises(error, match=said):
            dualform.delete(path, where, cut_off=True, **options)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "memory"
    write_whole_memory(path, [6, 6, 6])
    return path


@pytest.mark.parametrize(
    "linked",
    [
        "memory.json",
        "shard-00000",
        "shard-00000/layers/layer-1/values-000000.npy",
        "weights",
        "probes/test/labels.npy",
        "gallery/first/samples-000000.arrow",
        "shard-00000-1",
        "run-00001",
    ],
)
def test_a_link_among_its_files_is_refused_by_name_and_nothing_changes(sound, tmp_path, linked):
    shutil.copytree(sound, tmp_path / "memory")
    path, away = tmp_path / "memory" / linked, tmp_path / "away"
    away.mkdir()
    if path.exists():
        shutil.move(path, away / "target")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(away / "target")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for call in (planned_deletion, dualform.delete):
        with pytest.raises(BadInput, match=re.escape(f"{path} is a symbolic link to {away / 'target'}")):
            call(tmp_path / "memory", "sample < 3")
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_link_to_the_whole_memory_is_followed_and_links_of_others_are_left(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "memory")
    for place, own in (("weights/best.pt", b"theirs"), ("notes.txt", b"notes")):
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / Path(place).name).write_bytes(own)
        (tmp_path / "memory" / place).symlink_to(tmp_path / "own" / Path(place).name)
    (tmp_path / "link").symlink_to(tmp_path / "memory")
    dualform.delete(tmp_path / "link", "sample < 3")
    assert not (tmp_path / "memory" / "shard-00000").exists()
    assert (tmp_path / "memory" / "weights" / "best.pt").read_bytes() == b"theirs"
    assert check_memory(tmp_path / "memory") == []


def record(path: Path, *steps: tuple[str | None, list[int] | None]) -> None:
    """A step of each dataset and samples, each with a preview set of twenty texts that name it."""
    training = Small(path)
    with training.recorder as recorder:
        take_steps(
            recorder,
            training.optimizer,
            ((dataset, samples, torch.arange(4)) for dataset, samples in steps),
            lambda dataset, samples, index: training.model(training.inputs[index]).sum(),
            dataset=lambda dataset, samples, index: dataset,
            sample=lambda dataset, samples, index: samples,
        )
        for dataset in {dataset for dataset, _ in steps}:
            recorder.previews(dataset, PreviewSet.texts([f"{dataset} secret {number}." for number in range(20)]))


def bytes_in(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())


def test_what_only_they_looked_like_is_gone(tmp_path):
    path = tmp_path / "m"
    record(path, ("a", [1, 2, 3, 4]), ("b", [2, 3, 4, 5]), ("a", [2, 3, 4, 5]))
    told = planned_deletion(path, "dataset = 'a' AND step = 0")
    assert (told.shown, told.preview_sets) == ({"a": 1}, ())
    dualform.delete(path, "dataset = 'a' AND step = 0")
    with dualform.open(path) as memory:
        assert memory.previews([1, 2, 7], "a").texts == (None, "a secret 2.", "a secret 7.")
        assert memory.previews([1, 2], "b").texts == ("b secret 1.", "b secret 2.")
    content = bytes_in(path)
    assert b"a secret 1." not in content
    assert b"b secret 1." in content
    assert check_memory(path) == []
    assert leftovers(path) == []
    dualform.delete(path, "dataset = 'a' AND sample = 2")
    assert dualform.open(path).previews([1, 2, 3], "a").texts == (None, None, "a secret 3.")


def test_of_a_dataset_that_is_gone_no_preview_set_is_left(tmp_path):
    path = tmp_path / "m"
    record(path, ("a", [1, 2, 3, 4]), (None, [2, 3, 4, 5]))
    told = dualform.delete(path, "dataset IS NULL")
    assert (told.shown, told.preview_sets) == ({}, ("",))
    with dualform.open(path) as memory, pytest.raises(NotFound, match="no preview set for samples without a dataset"):
        memory.previews([2])
    assert b"None secret" not in bytes_in(path)
    assert b"a secret 2." in bytes_in(path)
    assert check_memory(path) == []


def test_where_samples_have_no_number_the_whole_preview_set_goes(tmp_path):
    path = tmp_path / "m"
    record(path, ("a", [1, 2, 3, 4]), ("a", None), ("b", [2, 3, 4, 5]))
    told = dualform.delete(path, "dataset = 'a' AND step = 1")
    assert told.preview_sets == ("a",)
    assert b"a secret" not in bytes_in(path)
    assert dualform.open(path).info().previews == {"b": "texts"}


def test_preview_sets_of_later_runs_lose_them_too(tmp_path):
    path = tmp_path / "run"
    Training().run(path, 6, saved=(4,), checkpoint=tmp_path / "checkpoint.pt")
    texts = [f"secret {number}." for number in range(20)]
    PreviewSet.texts(texts).store(path, "even")
    training = Training()
    training.load(tmp_path / "checkpoint.pt")
    with training.recorder(path, resume=True) as recorder:
        recorder.previews("even", PreviewSet.texts(texts))
        for _ in range(4):
            training.step(recorder)
    with dualform.open(path) as memory:
        found = memory.sql("SELECT sample FROM slots WHERE dataset = 'even' ORDER BY sample")["sample"]
    assert {3, 4} <= set(np.asarray(found).tolist())
    dualform.delete(path, "sample = 3")
    assert dualform.open(path).previews([3, 4], "even").texts == (None, "secret 4.")
    assert b"secret 3." not in bytes_in(path)
    assert check_memory(path) == []


def test_a_preview_set_that_loses_nothing_is_the_same_file(tmp_path):
    path = tmp_path / "m"
    record(path, ("a", [1, 2, 3, 4]), ("b", [2, 3, 4, 5]))
    before = {file: file.stat().st_ino for file in path.glob("gallery/b/*")}
    dualform.delete(path, "dataset = 'a' AND sample = 1")
    assert {file: file.stat().st_ino for file in path.glob("gallery/b/*")} == before
