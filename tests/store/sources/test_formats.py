"""What the manifest says of key sources, what a writer takes of each, and what a reader makes of them."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import dualform
from dualform.errors import BadInput, NotAMemory
from dualform.store.batch import Batch
from dualform.store.layer import Layer
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from dualform.store.reading.stored_layers import some_columns
from dualform.store.rows import OrderedRows, Rows
from dualform.store.sources import FORMATS
from dualform.store.sources.key_format import HeldRows
from dualform.store.sources.row_numbers import RowNumbers
from dualform.store.sources.rows import Bfloat16, Float16
from tests.store.small_memory import log
from tests.store.sources.twins import GEOMETRY, LAYERS, PAIRS, batch, layer, writer

PLAIN = settings(deadline=None)


def test_a_layer_reads_back_from_json():
    for each in LAYERS:
        assert Layer.from_json(each.to_json()) == each
    assert "geometry" not in LAYERS[0].to_json(), "what older versions know of no layer"


def test_every_source_has_a_twin_in_these_tests():
    assert {pair.layer.source for pair in PAIRS} | {"rows", "none"} == set(FORMATS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": "sketches"}, "source 'sketches', which this version of dualform does not read"),
        ({"geometry": GEOMETRY | {"groups": (2,)}}, "geometry .*groups.*, which this version of dualform does not"),
        ({"source": "rows"}, "geometry .*, which this version of dualform does not"),
        ({"value_source": "row numbers"}, "value source 'row numbers', which this version of dualform does not read"),
        ({"d_in": 11}, "its patches have 12 numbers, but its keys have 11"),
    ],
)
def test_what_only_a_later_version_can_have_written_is_refused(change, said):
    conv = layer("conv", "patch", 12, "patches", geometry=GEOMETRY)
    with pytest.raises(NotAMemory, match=said):
        Layer.from_json(conv.to_json() | change)


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("half", np.ones((4, 5)), r"layer 'half': its keys are float64\[4, 5\], and must be float32\[n, 5\]"),
        ("half-rows", np.ones((4, 6), np.float32), r"layer 'half-rows': its keys are float32\[4, 6\]"),
        ("numbers", np.full(12, 7), "layer 'numbers': its row numbers are 7 to 7, but it has only 7 rows"),
        ("conv", np.ones((4, 2, 5, 5), np.float32), r"layer 'conv': its keys are float32\[4, 2, 5, 5\], and must be "),
        ("conv", np.ones((5, 2, 5, 4), np.float32), "layer 'conv' has 30 keys for the 24 slots of call 0"),
    ],
)
def test_keys_that_a_source_cannot_store_are_refused(tmp_path, name, keys, said):
    made, given = writer(tmp_path / "memory"), batch(0)
    rows = {**given.layers, name: [replace(given.layers[name][0], keys=keys)]}
    with pytest.raises(BadInput, match=said):
        made.append(replace(given, layers=rows))
    made.abandon()


def test_a_layer_without_a_form_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(BadInput, match="layer 'conv': its geometry has nothing, and must have dilation"):
        writer(tmp_path / "memory", [layer("conv", "patch", 12, "patches")])
    with pytest.raises(BadInput, match="layer 'x' has no key source 'sketches'"):
        writer(tmp_path / "other", [layer("x", "patch", 12, "sketches")])


def of_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def of_float16(bits: np.ndarray) -> np.ndarray:
    infinite = bits & 0x7C00 == 0x7C00  # such a step is not recorded
    return torch.from_numpy(np.where(infinite, 1, bits).astype(np.uint16).view(np.float16)).float().numpy()


@PLAIN
@pytest.mark.parametrize(("kind", "of"), [(Bfloat16, of_bfloat16), (Float16, of_float16)])
@given(bits=hnp.arrays(np.uint16, (3, 4), elements=st.integers(0, 2**16 - 1)))
def test_every_number_of_half_precision_reads_back_bit_for_bit(kind, of, bits):
    made, keys = kind(4, {}), of(bits)
    stored = made.encoded(made.accepted(keys), made.forms[0])
    assert stored is not None
    assert stored.nbytes == keys.nbytes // 2
    source = made.source(HeldRows("half", 0, np.ascontiguousarray(stored)))
    assert source.read(0, 3).tobytes() == keys.tobytes()
    matrix, places = source.holding(np.array([2, 0, 2]))
    assert matrix[places].tobytes() == keys[[2, 0, 2]].tobytes()


@PLAIN
@pytest.mark.parametrize(("kind", "dtype"), [(Bfloat16, torch.bfloat16), (Float16, torch.float16)], ids=str)
@given(keys=hnp.arrays(np.float32, (2, 3), elements=st.floats(-4, 4, width=32) | st.floats(width=32, allow_nan=False)))
def test_a_float32_that_is_none_of_half_precision_is_never_stored_as_one(kind, dtype, keys):
    made = kind(3, {})
    stored = made.encoded(made.accepted(keys), made.forms[0])
    back = torch.from_numpy(keys).to(dtype).float().numpy()
    assert (stored is not None) == (back.tobytes() == keys.tobytes())
    assert made.encoded(keys, made.forms[1]).tobytes() == keys.tobytes()


def of_layer(name: str, step: int) -> Batch:
    """A batch of one layer, whose slots are samples."""
    given = batch(step)
    extents = [extent for extent in given.extents if extent.space == "sample"]
    updated = [f"{name}.weight", f"{name}.bias"]
    return replace(given, extents=extents, layers={name: given.layers[name]}, logs=[log(step, *updated)])


@pytest.mark.parametrize("name", ["mixed", "mixed16"])
def test_keys_that_do_not_fit_half_go_to_a_file_of_their_own_until_the_next_commit(tmp_path, name):
    mixed = [pair.layer for pair in PAIRS if pair.layer.name == name]
    made = writer(tmp_path / "memory", [*mixed])
    whole = []
    for step in range(8):
        given = of_layer(name, step)
        whole.append(given.layers[name][0].keys)
        made.append(given)
        if step in (3, 4):
            made.commit()
    made.abandon()
    memory = Snapshot.open(tmp_path / "memory")
    said = [
        (source.first_row, source.rows, source.made, source.segment is None) for source in memory.sources[name, "keys"]
    ]
    # Steps 1, 2, 5 and 6 are float32; a commit came after steps 3 and 4; the rest is in the journal.
    assert said == [(0, 4, True, False), (4, 12, False, False), (16, 4, True, False), (20, 12, False, True)]
    assert memory.keys(name).block(0, 32).tobytes() == np.concatenate(whole).tobytes()
    assert check_memory(tmp_path / "memory") == []


def test_runs_may_store_the_same_keys_in_other_ways(tmp_path):
    half = next(pair for pair in PAIRS if pair.layer.name == "half")
    dense = replace(half.layer, source="rows")
    for name, own in (("a", dense), ("b", half.layer), ("twin", dense)):
        made = writer(tmp_path / name, [own])
        for step in range(3):
            made.append(of_layer("half", step))
        made.close()
    found, wanted = (dualform.open([tmp_path / "a", tmp_path / second]) for second in ("b", "twin"))
    queries = np.ones((2, 5), np.float32)
    assert found.topk("half", queries).scores[1].tobytes() == wanted.topk("half", queries).scores[1].tobytes()
    assert found.topk("half", queries).slots[1].tolist() == wanted.topk("half", queries).slots[1].tolist()


WIDTH = 37


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.array([0, WIDTH]), "its row numbers are 0 to 37, but it has only 37 rows"),
        (np.array([-1, 3]), "its row numbers are -1 to 3, but it has only 37 rows"),
        (np.array([1.0, 2.0]), r"its row numbers are float64\[2\], and must be integers"),
        (np.array([[1, 2]]), r"its row numbers are int64\[1, 2\], and must be integers"),
    ],
)
def test_what_is_no_row_number_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        RowNumbers(WIDTH, {}).accepted(given)


def test_no_more_rows_than_32_bits_number():
    RowNumbers(2**32, {})
    with pytest.raises(ValueError, match="more than 32 bits can number"):
        RowNumbers(2**32 + 1, {})


NARROW = 5


@st.composite
def matrices(draw):
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    matrix = np.random.default_rng(0).normal(size=(sum(lengths), NARROW)).astype(np.float32)
    firsts = np.cumsum([0, *lengths])
    sources = [
        HeldRows(("rows", first), first, matrix[first : first + length])
        for first, length in zip(firsts.tolist(), lengths, strict=False)
    ]
    wanted = draw(st.lists(st.integers(0, len(matrix) - 1), max_size=12))
    return matrix, sources, np.array(wanted, np.int64)


def rows_at(addresses, width):
    return [ctypes.string_at(address, 4 * width) for address in addresses.tolist()]


@given(matrices(), st.randoms(use_true_random=False))
def test_rows_stand_at_their_addresses(given_rows, random):
    matrix, sources, wanted = given_rows
    order = np.array(random.sample(range(len(matrix)), len(matrix)), np.int64)
    narrow = [some_columns(source, 1, 4) for source in sources]
    for rows in (Rows(sources, NARROW), OrderedRows(sources, NARROW, order), Rows(narrow, 3)):
        addresses = rows.addresses(wanted)
        assert rows_at(addresses.numbers, rows.width) == [row.tobytes() for row in rows.take(wanted)]
