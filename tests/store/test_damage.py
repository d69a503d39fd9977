"""A file cut short or with one bit flipped is refused by name, or has no effect on anything that is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import Damaged, DualformError, NotAMemory
from dualform.store.check import check_memory
from dualform.store.snapshot import Snapshot
from tests.damage import flip, flipped
from tests.store.small_memory import write

FLIPS_PER_FILE = 5
FLIPS_OF_THE_TABLES = 40


def everything(path: Path) -> list[bytes]:
    """All that a question could come from, as bytes."""
    memory = Snapshot.open(path)
    found = [repr((memory.commits, memory.steps, memory.layers, memory.skipped, memory.probes)).encode()]
    for layer in memory.layers:
        keys = memory.keys(layer)
        found += [keys.entry_block(0, keys.entries).tobytes(), memory.values(layer).block(0, keys.entries).tobytes()]
    for weights in (memory.initial(), memory.final() or {}):
        found += [name.encode() + weights[name].tobytes() for name in sorted(weights)]
    assert memory.others is not None
    for at_step in memory.others.moments:
        found += [own.tobytes() for own in (memory.others.at(at_step) or {}).values()]
    probe = memory.probe("test")
    assert probe.labels is not None
    assert probe.outputs is not None
    found += [probe.labels.tobytes(), probe.outputs.tobytes()]
    found += [probe.queries(layer).tobytes() for layer in probe.layers]
    # Behind the files, of which a damaged one is found sooner then; and at once, which is faster than one by one.
    memory.whole_tables(memory.manifest.tables())
    found += [repr(memory.column("sample", name).tolist()).encode() for name in memory.columns("sample")]
    return found + [repr(memory.table(n).to_pylist()).encode() for n in ("steps", "factors", "defects", "labels")]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "memory"
    write(path, [4, 3, 5])
    return path


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def refused(path: Path, file: str, before: list[bytes]) -> bool:
    """True where reading raised an error that names the file; False where everything reads as before."""
    try:
        after = everything(path)
    except (Damaged, NotAMemory) as error:
        named = path if isinstance(error, NotAMemory) else path / file
        assert str(named) in error.message  # noqa: PT017  either outcome is right, as long as it is one of the two
        return True
    assert after == before
    return False


def test_every_file_cut_short_is_refused_by_name(sound, tmp_path):
    before = everything(sound)
    for file in files(sound):
        size = (sound / file).stat().st_size
        for kept in (0, size // 2, size - 1):
            shutil.copytree(sound, tmp_path / "memory")
            with open(tmp_path / "memory" / file, "r+b") as damaged:
                damaged.truncate(kept)
            assert refused(tmp_path / "memory", file, before), f"{file} cut to {kept} of {size} bytes went unnoticed"
            shutil.rmtree(tmp_path / "memory")


def test_every_missing_file_is_refused_by_name(sound, tmp_path):
    before = everything(sound)
    for file in files(sound):
        shutil.copytree(sound, tmp_path / "memory")
        (tmp_path / "memory" / file).unlink()
        assert refused(tmp_path / "memory", file, before)
        shutil.rmtree(tmp_path / "memory")


def test_one_flipped_bit_is_refused_by_name_or_without_effect(sound, tmp_path):
    before = everything(sound)
    rng = np.random.default_rng(0)
    shutil.copytree(sound, tmp_path / "memory")
    for file in files(sound):
        content = (sound / file).read_bytes()
        tables = file.endswith(".duckdb")
        caught = 0
        tries = FLIPS_OF_THE_TABLES if tables else FLIPS_PER_FILE
        for bit in rng.integers(0, 8 * len(content), tries):
            (tmp_path / "memory" / file).write_bytes(flipped(content, bit))
            caught += refused(tmp_path / "memory", file, before)
        (tmp_path / "memory" / file).write_bytes(content)
        # DuckDB's file has unused room, and memory.json white space; every byte of the others counts.
        assert caught == tries or tables or file == "memory.json"


def test_check_names_every_damaged_file(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "memory")
    assert check_memory(tmp_path / "memory") == []
    altered = [file for file in files(sound) if file.endswith((".faiss", ".npy", ".safetensors"))]
    for file in altered:
        flip(tmp_path / "memory" / file)
    problems = check_memory(tmp_path / "memory")
    assert len(problems) == len(altered)
    assert all(any(str(tmp_path / "memory" / file) in problem for problem in problems) for file in altered)


def test_rows_that_a_cut_off_commit_left_behind_are_not_seen(sound, tmp_path):
    """A cut between the DuckDB transaction and memory.json leaves the memory as of the commit before."""
    path = tmp_path / "memory"
    shutil.copytree(sound, path)
    older = tmp_path / "older"
    write(older, [4, 3], finish=False)
    # The same first commit, then one more whose memory.json never arrived.
    manifest = (older / "memory.json").read_bytes()
    write(tmp_path / "longer", [4, 3, 5, 6], finish=False)
    (tmp_path / "longer" / "memory.json").write_bytes(manifest)
    try:
        assert Snapshot.open(tmp_path / "longer").count("sample") == 7
    except DualformError as error:
        pytest.fail(f"a sound commit was refused: {error}")
