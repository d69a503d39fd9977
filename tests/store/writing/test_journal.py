"""What a journal gives back: every whole frame, a torn last one left out, anything else refused by name."""

from __future__ import annotations

import itertools
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import Damaged
from dualform.store.batch import Batch
from dualform.store.journal import JournalWriter, journal_path, read_frames
from dualform.store.maintenance.check import check_memory, how_it_ended
from dualform.store.maintenance.copying import copy_memory, repair
from dualform.store.manifest import Manifest
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some
from tests.damage import flipped
from tests.store.small_memory import TOKENS, append_all, open_writer, token_batch

HEADER = 96


def recorded(path: Path, steps: int, commits: int = 0) -> list[Batch]:
    """A recording that stopped without a word: `commits` commits of one step each, then a frame for each step."""
    rng = np.random.default_rng(0)
    batches = [token_batch(rng, step, 3) for step in range(commits + steps)]
    append_all(open_writer(path, layers=TOKENS, journal_seconds=0.0), batches, range(commits))
    return batches


def frames_of(path: Path):
    manifest = Manifest.read(path)
    return read_frames(path / "shard-00000", manifest.shards[0].commits, manifest.tables())


def starts(content: bytes) -> list[int]:
    """Where frames begin, and the end."""
    found = [0]
    while found[-1] < len(content):
        (size,) = struct.unpack_from("<Q", content, found[-1] + 40)
        found.append(found[-1] + HEADER + size)
    return found


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "memory"


def test_a_frame_waits_for_its_time_and_none_is_written_while_nothing_came(path, tmp_path):
    writer = open_writer(tmp_path / "at once", layers=TOKENS, journal_seconds=0.0)
    writer.append(token_batch(np.random.default_rng(0), 0, 2))
    size = journal_path(writer.path / "shard-00000", 0).stat().st_size
    for _ in range(3):
        assert writer.tick() == 0.0
    assert journal_path(writer.path / "shard-00000", 0).stat().st_size == size
    writer = open_writer(path, layers=TOKENS, journal_seconds=60.0)
    writer.append(token_batch(np.random.default_rng(0), 0, 2))
    assert 59 < writer.tick() <= 60
    assert frames_of(path) is None


def test_wherever_the_last_frame_is_cut_those_before_it_stand(path):
    recorded(path, 3)
    journal = journal_path(path / "shard-00000", 0)
    content = journal.read_bytes()
    cuts = starts(content)
    rng = np.random.default_rng(0)
    for frame, (start, stop) in some(enumerate(itertools.pairwise(cuts))):
        for size in {
            start + 1,
            start + HEADER - 1,
            start + HEADER,
            stop - 1,
            *rng.integers(start + 1, stop, 3).tolist(),
        }:
            journal.write_bytes(content[:size])
            frames = frames_of(path)
            assert (frames.count, frames.torn) == (frame, True)
            assert frames.tables["samples"].num_rows == 4 * frame if frame else not frames.tables
        journal.write_bytes(content[:stop])
        assert (frames_of(path).count, frames_of(path).torn) == (frame + 1, False)


def test_a_flipped_bit_before_the_last_frame_is_refused_by_name(path):
    recorded(path, 3)
    journal = journal_path(path / "shard-00000", 0)
    content = journal.read_bytes()
    _, second, last, end = starts(content)
    rng = np.random.default_rng(0)
    bits = [8 * place + place % 8 for place in range(0, HEADER, 3)]
    bits += [8 * second + bit for bit in bits] + rng.integers(0, 8 * last, 30).tolist()
    for bit in bits:
        journal.write_bytes(flipped(content, bit))
        with pytest.raises(Damaged) as raised:
            frames_of(path)
        number = 0 if bit < 8 * second else 1
        assert raised.value.message == f"{journal} was altered: frame {number} is not what was written."
    for bit in rng.integers(8 * last, 8 * end, 20).tolist():
        journal.write_bytes(flipped(content, bit))
        assert (frames_of(path).count, frames_of(path).torn) == (2, True)


def test_frames_of_another_journal_are_refused(path, tmp_path):
    recorded(path, 3)
    recorded(tmp_path / "other", 3)
    journal = journal_path(path / "shard-00000", 0)
    mine, other = (journal_path(p / "shard-00000", 0).read_bytes() for p in (path, tmp_path / "other"))
    cuts = starts(mine)
    for content in (
        mine[: cuts[1]] + mine[cuts[2] :],  # a frame is missing
        mine[: cuts[1]] + mine[: cuts[1]] + mine[cuts[1] :],  # one stands twice
        mine[: cuts[1]] + other[starts(other)[1] :],  # the same rows of another recording
        mine[cuts[1] :],
    ):
        journal.write_bytes(content)
        with pytest.raises(Damaged, match=r"was altered: frame \d is not what was written"):
            frames_of(path)
    journal.write_bytes(mine)
    journal.rename(journal_path(path / "shard-00000", 1))
    with pytest.raises(Damaged, match="frame 0 is not what was written"):
        read_frames(path / "shard-00000", 1, Manifest.read(path).tables())


@pytest.mark.parametrize(
    ("commits", "how"),
    [(0, "removed"), (0, "of another"), (0, "emptied"), (1, "cut to its id"), (1, "cut within its first frame")],
)
def test_a_journal_that_was_begun_is_missed(path, tmp_path, commits, how):
    recorded(path, 2, commits)
    file = journal_path(path / "shard-00000", commits)
    assert Manifest.read(path).shards[0].journal
    if how == "removed":
        file.unlink()
    elif how == "of another":
        recorded(tmp_path / "other", 2, commits)
        file.write_bytes(journal_path(tmp_path / "other" / "shard-00000", commits).read_bytes())
    else:
        file.write_bytes(file.read_bytes()[: {"emptied": 0, "cut to its id": 24}.get(how, 500)])
    said = {"removed": "is missing, with the steps since commit", "of another": "is the journal of another recording"}
    with pytest.raises(Damaged, match=re.escape(f"{file} {said.get(how, 'was cut short within its first frame')}")):
        Snapshot.open(path)
    (problem,) = check_memory(path)
    assert problem.startswith(str(file))
    with pytest.raises(Damaged, match=str(file)):
        copy_memory(path, tmp_path / "copy")
    if not commits:
        with pytest.raises(Damaged, match="has no undamaged step"):
            repair(path, tmp_path / "copy")
        return
    dropped, copy = repair(path, tmp_path / "copy")
    assert dropped[0].startswith("The steps since the last commit of shard-00000 were dropped: shard-00000/journal-")
    assert (copy.steps, check_memory(tmp_path / "copy")) == (commits, [])


def test_a_memory_of_before_names_no_journal_and_check_names_one_whose_last_frame_is_not_whole(path):
    recorded(path, 3)
    manifest = Manifest.read(path)
    manifest.shards[0].journal = ""
    manifest.write(path)
    assert Snapshot.open(path).steps == 3
    file = journal_path(path / "shard-00000", 0)
    assert "incomplete" not in how_it_ended(path)
    file.write_bytes(flipped(file.read_bytes(), -1))
    assert check_memory(path) == []
    assert how_it_ended(path).endswith(f" The last frame of {file} is incomplete and was ignored.")


def test_a_write_that_takes_a_part_goes_on(path, tmp_path, monkeypatch):
    recorded(path, 2)
    whole = journal_path(path / "shard-00000", 0).read_bytes()
    written = os.writev
    monkeypatch.setattr(os, "writev", lambda handle, parts: written(handle, [parts[0][:1000]]))
    recorded(tmp_path / "parts", 2)
    monkeypatch.undo()
    parts = frames_of(tmp_path / "parts")
    assert parts.count == 2
    assert len(journal_path(tmp_path / "parts" / "shard-00000", 0).read_bytes()) == len(whole)
    assert parts.tables == frames_of(path).tables


def test_a_journal_is_never_written_over(tmp_path):
    journal_path(tmp_path, 3).write_bytes(b"")
    with pytest.raises(FileExistsError):
        JournalWriter(tmp_path, 3)._opened()


def test_much_at_once_is_committed_instead(path, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr("dualform.store.writing.writer.FRAME_BYTES", 3000)
    writer = open_writer(path, layers=TOKENS, journal_seconds=0.0)
    seen = []
    for step, rows in enumerate((2, 2, 90, 2)):
        writer.append(token_batch(rng, step, rows))
        frames = frames_of(path)
        seen.append((Manifest.read(path).shards[0].commits, frames.count if frames else 0))
    assert seen == [(0, 1), (0, 2), (1, 0), (1, 1)]
    writer.abandon()
