"""A segment's blocks are read and verified when their rows are first asked for, and no others are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dualform.errors import Damaged
from dualform.store.files import segment
from dualform.store.files.durable_files import Blocks
from dualform.store.files.segment import BLOCK_BYTES, RecentBlocks, Segment, SegmentCache, flat_index
from dualform.store.rows import Rows
from dualform.store.sources import segment_rows
from dualform.store.sources.segment_rows import SegmentRows
from dualform.store.writing.rows_writer import MatrixWriter
from tests.damage import flip

WIDTH = 300
ROWS = 4 * BLOCK_BYTES // (4 * WIDTH) + 17


@pytest.fixture
def stored(tmp_path):
    """Rows of four blocks and a bit, some across two of them."""
    matrix = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    writer = MatrixWriter(tmp_path / "keys.faiss", flat_index(WIDTH), Blocks())
    writer.append(matrix)
    size, checksums = writer.finish()
    assert size > 4 * BLOCK_BYTES
    return matrix, Segment(tmp_path / "keys.faiss", 0, ROWS, size, checksums)


@pytest.fixture
def read(monkeypatch):
    """The numbers of the blocks that were read."""
    blocks = []
    read_block = segment._read_block

    def counted(of, file, block, part):
        blocks.append(block)
        read_block(of, file, block, part)

    monkeypatch.setattr(segment, "_read_block", counted)
    return blocks


def rows_of(stored, cache=None):
    return SegmentRows(stored[1], flat_index(WIDTH), cache or SegmentCache())


def across(block):
    """A row that begins in one block and ends in the next."""
    return (BLOCK_BYTES * (block + 1) - 45) // (4 * WIDTH)


def test_rows_are_those_that_were_written_and_only_their_blocks_are_read(stored, read):
    matrix, _ = stored
    source = rows_of(stored)
    few = np.array([across(1) + 5, 2, across(1) + 5])
    assert source.holding(few)[0][few].tobytes() == matrix[few].tobytes()
    assert sorted(read) == [0, 2]
    assert source.holding(np.array([across(0)]))[0][across(0)].tobytes() == matrix[across(0)].tobytes()
    assert sorted(read) == [0, 1, 2]
    assert source.read(ROWS - 3, ROWS).tobytes() == matrix[-3:].tobytes()
    assert sorted(read) == [0, 1, 2, 4]
    assert source.read(0, ROWS).tobytes() == matrix.tobytes()
    assert sorted(read) == [0, 1, 2, 3, 4], "each block is read once"
    assert source.read(0, ROWS).ctypes.data % 64 == 0


def test_a_damaged_block_is_an_error_once_its_rows_are_asked_for(stored):
    matrix, made = stored
    flip(made.path, 3 * BLOCK_BYTES + 11)
    source = rows_of(stored)
    assert source.read(0, 5).tobytes() == matrix[:5].tobytes()
    for _ in range(2):
        with pytest.raises(Damaged) as caught:
            source.read(0, ROWS)
        assert caught.value.message == (f"{made.path} was altered: its checksum does not match.")
    assert source.read(0, 5).tobytes() == matrix[:5].tobytes()
    with pytest.raises(Damaged, match="was altered"):
        source.verify()


def test_a_file_that_was_cut_short_or_is_gone_is_named(stored):
    _, made = stored
    size = made.path.stat().st_size
    with open(made.path, "r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(Damaged, match=f"has {size - 1} bytes instead of {size}"):
        rows_of(stored).read(0, 1)
    made.path.unlink()
    with pytest.raises(Damaged, match=r"keys\.faiss cannot be read: No such file or directory"):
        rows_of(stored).read(0, 1)


def test_the_cache_holds_what_was_read_and_drops_the_least_used(stored, read):
    matrix, made = stored
    cache = SegmentCache(most_bytes=made.size)
    source = rows_of(stored, cache)
    source.read(0, 2)
    source.read(1, 3)
    assert read == [0]
    other = Segment(made.path.with_name("copy"), 0, ROWS, made.size, made.checksums)
    other.path.write_bytes(made.path.read_bytes())
    assert SegmentRows(other, flat_index(WIDTH), cache).read(0, ROWS).tobytes() == matrix.tobytes()
    source.read(0, 2)
    assert read.count(0) == 3, "what was read first had to go"
    none = rows_of(stored, SegmentCache(most_bytes=0))
    none.read(0, 1)
    none.read(0, 1)
    assert read.count(0) == 5


@pytest.mark.parametrize("passing", [False, True])
def test_threads_that_ask_at_once_read_a_block_once(stored, read, passing):
    matrix, source = stored[0], rows_of(stored)
    source = source.passing() if passing else source
    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(source.read, 0, ROWS - 20) for _ in range(6)]
    assert [one.result().tobytes() for one in asking] == [matrix[: ROWS - 20].tobytes()] * 6
    assert sorted(read) == [0, 1, 2, 3]


def test_rows_that_are_gone_through_once_are_not_kept_unless_all_of_them_are_held(stored, read):
    matrix, damaged = stored
    cache = SegmentCache()
    rows = Rows([rows_of(stored, cache)], WIDTH)
    for _ in range(2):
        assert rows.passing().block(3, 9).tobytes() == matrix[3:9].tobytes()
    assert rows.passing().take(np.array([5, 1])).tobytes() == matrix[[5, 1]].tobytes()
    assert (read, cache.nbytes) == ([0, 0, 0], 0)
    rows.block(0, 9)  # kept, which says nothing of other rows
    assert rows.passing().block(ROWS - 3, ROWS).tobytes() == matrix[-3:].tobytes()
    assert read == [0, 0, 0, 0, 4]
    rows.block(0, ROWS)
    read.clear()
    assert rows.passing().block(0, ROWS).tobytes() == matrix.tobytes()
    assert not read
    flip(damaged.path, 100)
    with pytest.raises(Damaged, match=f"{damaged.path} was altered"):
        Rows([rows_of(stored)], WIDTH).passing().block(0, 1)


def test_a_pass_in_large_pieces_reads_their_blocks_alone(stored, read, monkeypatch):
    monkeypatch.setattr(segment_rows, "SMALL_BYTES", 1000)  # so that pieces of this file are large
    matrix, file = stored
    own = rows_of(stored).passing()
    ranges = {(0, ROWS): [0, 1, 2, 3, 4], (across(0) + 1, across(2)): [1, 2], (across(2), ROWS): [2, 3, 4]}
    for (first, last), blocks in ranges.items():
        for at in (np.arange(first, last), np.delete(np.arange(first, last), 9)):
            found, places = own.holding(at)
            assert found[places].tobytes() == matrix[at].tobytes()
            assert read == blocks
            read.clear()
        found = own.read(first, last)
        assert (found.tobytes(), found.ctypes.data % 64) == (matrix[first:last].tobytes(), 0)
        read.clear()
    few = np.arange(0, ROWS, 40)
    assert np.take(*own.holding(few), axis=0).tobytes() == matrix[few].tobytes()
    flip(file.path, BLOCK_BYTES + 7)
    with pytest.raises(Damaged, match=f"{file.path} was altered"):
        own.read(0, ROWS)


def test_rows_that_a_file_does_not_have_are_damage(stored):
    matrix, file = stored
    longer = Segment(file.path, 0, ROWS + 9, file.size, file.checksums)
    size, form = file.size + 9 * 4 * WIDTH, flat_index(WIDTH)
    for read in (
        lambda: RecentBlocks().rows(object(), longer, form, len(matrix), len(matrix) + 1),
        lambda: segment.read_rows(longer, form, len(matrix), len(matrix) + 1),
        lambda: segment.SegmentBuffer(longer, form),
    ):
        with pytest.raises(Damaged, match=f"{file.path} has {file.size} bytes instead of {size}"):
            read()


def test_few_rows_of_a_first_question_are_copied_out_of_their_blocks(stored, read):
    matrix, file = stored
    cache = SegmentCache()
    source = rows_of(stored, cache)
    few = np.array([across(0), 2, across(0), ROWS - 1, across(2)])
    found, places = source.passing(first=True).holding(few)
    assert (found[places].tobytes(), found.shape) == (matrix[few].tobytes(), (5, WIDTH))
    assert (read, cache.nbytes) == ([0, 1, 2, 3, 4], 0)
    read.clear()
    kept, places = source.passing(first=True).holding(few)  # asked again, by a process that goes on
    assert (kept[places].tobytes(), sorted(read)) == (matrix[few].tobytes(), [0, 1, 2, 3, 4])
    flip(file.path, BLOCK_BYTES + 7)
    again = rows_of(stored)
    with pytest.raises(Damaged, match=f"{file.path} was altered"):
        again.passing(first=True).holding(few)
    file.path.unlink()
    with pytest.raises(Damaged, match=r"cannot be read: No such file"):
        again.passing().holding(few)
