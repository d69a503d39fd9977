"""Blocks of parameters, what the manifest says of key sources, what a writer takes of each, and what a reader makes of
them: patches are, bit for bit, what torch unfolds.
"""

from __future__ import annotations

import ctypes
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import dualform
from dualform.errors import BadInput, NotAMemory
from dualform.store.batch import Batch
from dualform.store.layer import Layer, Parameter, whole
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from dualform.store.reading.stored_layers import some_columns
from dualform.store.rows import Keys, OrderedRows, Rows
from dualform.store.sources import FORMATS, patches
from dualform.store.sources.key_format import HeldRows
from dualform.store.sources.patches import Patches
from dualform.store.sources.row_numbers import RowNumbers
from dualform.store.sources.rows import Bfloat16, Float16
from tests.store.small_memory import append_all, log
from tests.store.sources.twins import GEOMETRY, LAYERS, PAIRS, batch, layer, writer


@st.composite
def blocks(draw):
    """A shape and a block of a parameter of that shape."""
    shape = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    width = int(np.prod(shape[1:]))
    ranges = []
    for count in (shape[0], width):
        start = draw(st.integers(0, count - 1))
        ranges.append(draw(st.none() | st.integers(start + 1, count).map(lambda stop, start=start: (start, stop))))
    return shape, Parameter("w", 0, width, ranges[0], draw(st.booleans()), ranges[1])


@settings(max_examples=66, deadline=None)
@given(drawn=blocks())
def test_a_block_is_rows_and_columns_of_the_flattened_parameter(drawn):
    shape, block = drawn
    array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    expected = array.reshape(shape[0], -1)[slice(*(block.rows or (0, None))), slice(*(block.columns or (0, None)))]
    expected = expected.T if block.transposed else expected
    np.testing.assert_array_equal(block.block_of(array), expected)
    np.testing.assert_array_equal(block.block_of(torch.from_numpy(array)).numpy(), expected)
    assert np.shares_memory(block.block_of(array), array)
    written = np.zeros(shape)
    block.put(written, expected)
    np.testing.assert_array_equal(block.block_of(written), expected)
    assert np.count_nonzero(written) == np.count_nonzero(expected)
    assert block.within(shape).block_of(array).tolist() == expected.tolist()
    assert whole([block], shape) == (expected.size == array.size)
    assert Parameter.from_json(json.loads(json.dumps(asdict(block)))) == block


@settings(max_examples=66, deadline=None)
@given(drawn=blocks(), data=st.data())
def test_blocks_overlap_where_they_have_a_number_in_common(drawn, data):
    shape, one = drawn
    other = data.draw(blocks().filter(lambda pair: pair[0] == shape).map(lambda pair: pair[1]) | st.just(one))
    numbers = np.arange(np.prod(shape)).reshape(shape)
    common = np.intersect1d(one.block_of(numbers), other.block_of(numbers))
    assert one.overlaps(other) == bool(len(common))


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
    given = [of_layer(name, step) for step in range(8)]
    append_all(writer(tmp_path / "memory", mixed), given, (3, 4)).abandon()
    memory = Snapshot.open(tmp_path / "memory")
    said = [
        (source.first_row, source.rows, source.made, source.segment is None) for source in memory.sources[name, "keys"]
    ]
    # Steps 1, 2, 5 and 6 are float32; a commit came after steps 3 and 4; the rest is in the journal.
    assert said == [(0, 4, True, False), (4, 12, False, False), (16, 4, True, False), (20, 12, False, True)]
    assert (
        memory.keys(name).block(0, 32).tobytes()
        == np.concatenate([one.layers[name][0].keys for one in given]).tobytes()
    )
    assert check_memory(tmp_path / "memory") == []


def test_runs_may_store_the_same_keys_in_other_ways(tmp_path):
    half = next(pair for pair in PAIRS if pair.layer.name == "half")
    dense = replace(half.layer, source="rows")
    for name, own in (("a", dense), ("b", half.layer), ("twin", dense)):
        append_all(writer(tmp_path / name, [own]), (of_layer("half", step) for step in range(3))).close()
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


@given(matrices(), st.randoms(use_true_random=False))
def test_rows_stand_at_their_addresses(given_rows, random):
    matrix, sources, wanted = given_rows
    order = np.array(random.sample(range(len(matrix)), len(matrix)), np.int64)
    narrow = [some_columns(source, 1, 4) for source in sources]
    for rows in (Rows(sources, NARROW), OrderedRows(sources, NARROW, order), Rows(narrow, 3)):
        addresses = rows.addresses(wanted)
        found = [ctypes.string_at(address, 4 * rows.width) for address in addresses.numbers.tolist()]
        assert found == [row.tobytes() for row in rows.take(wanted)]


SLOW = settings(max_examples=26, deadline=None)


@st.composite
def geometries(draw, dimensions):
    def numbers(least, most):
        return tuple(draw(st.lists(st.integers(least, most), min_size=dimensions, max_size=dimensions)))

    kernel, stride, dilation, padding = numbers(1, 3), numbers(1, 3), numbers(1, 2), numbers(0, 2)
    covered = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = tuple(
        draw(st.integers(max(1, extent - 2 * zeros), extent + 3))
        for extent, zeros in zip(covered, padding, strict=True)
    )
    shape = (draw(st.integers(1, 3)), *size)
    return {"shape": shape, "kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}


def format_of(geometry) -> Patches:
    return Patches(geometry["shape"][0] * math.prod(geometry["kernel"]), geometry)


def maps_of(geometry, count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, *geometry["shape"])).astype(np.float32)


def sources_of(geometry, maps, split):
    """Feature maps in sources of `split` each."""
    made, starts = format_of(geometry), range(0, len(maps), split)
    return [made.source(HeldRows((split, start), start, maps[start : start + split])) for start in starts]


def unfolded(geometry, maps):
    """What torch makes of maps of two dimensions."""
    options = {name: geometry[name] for name in ("stride", "padding", "dilation")}
    found = torch.nn.functional.unfold(torch.from_numpy(maps), geometry["kernel"], **options)
    return found.transpose(1, 2).reshape(-1, found.shape[1]).contiguous().numpy()


def one_hot_convolved(geometry, maps):
    """Each number of each patch by itself: a convolution with a weight that is 1 at that number's place."""
    width, dimensions = format_of(geometry).d_in, len(geometry["kernel"])
    weight = torch.eye(width).reshape(width, geometry["shape"][0], *geometry["kernel"])
    convolve = getattr(torch.nn.functional, f"conv{dimensions}d")
    options = {name: geometry[name] for name in ("stride", "padding", "dilation")}
    found = convolve(torch.from_numpy(maps), weight, **options)
    return found.flatten(2).transpose(1, 2).reshape(-1, width).contiguous().numpy()


@SLOW
@given(data=st.data(), geometry=geometries(2), count=st.integers(1, 5), split=st.integers(1, 5))
def test_any_range_and_any_rows(data, geometry, count, split):
    maps = maps_of(geometry, count)
    whole = unfolded(geometry, maps)
    rows = Rows(sources_of(geometry, maps, split), whole.shape[1])
    assert rows.rows == len(whole)
    start, stop = sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=2, max_size=2)))
    block = rows.block(start, stop)
    assert block.tobytes() == whole[start:stop].tobytes()
    assert block.flags.c_contiguous
    some = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=20)), dtype=np.int64)
    assert rows.take(some).tobytes() == whole[some].tobytes()


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_maps_of_one_to_three_dimensions(dimensions):
    @SLOW
    @given(geometry=geometries(dimensions), count=st.integers(1, 3))
    def check(geometry, count):
        maps = maps_of(geometry, count)
        wanted = one_hot_convolved(geometry, maps)
        source = sources_of(geometry, maps, count)[0]
        assert format_of(geometry).per_row * count == source.rows == len(wanted)
        # Zeros of a sum have no sign: -0.0 + 0.0 is 0.0. None of the maps' own numbers is a zero.
        assert source.read(0, source.rows).tobytes() == wanted.tobytes()

    check()


def test_few_maps_are_unfolded_at_once(monkeypatch):
    geometry = {"shape": (2, 6, 6), "kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    maps, asked = maps_of(geometry, 9), []
    held = HeldRows.holding
    monkeypatch.setattr(HeldRows, "holding", lambda self, rows: asked.append(len(rows)) or held(self, rows))
    monkeypatch.setattr(patches, "_MAP_BYTES", 2 * maps[0].nbytes)
    keys = Keys(sources_of(geometry, maps, 9), 18, 324, None)
    rows = np.arange(0, 324, 36)[::-1]
    assert keys.of_entries(rows).tobytes() == unfolded(geometry, maps)[rows].tobytes()
    assert max(asked) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stride": (0, 1)}, r"its stride is \[0, 1\]: it must be 2 numbers of at least 1"),
        ({"kernel": (3,)}, r"its kernel is \[3\]: it must be 2 numbers of at least 1"),
        ({"kernel": (9, 9)}, r"its kernel \[9, 9\] does not fit feature maps of \[2, 6, 6\]"),
        ({"shape": (2,)}, r"its feature maps have the shape \[2\]; one to three axes are supported"),
        ({"kernel": (2, 3)}, "its patches have 12 numbers, but its keys have 18"),
        ({"groups": (2,)}, "must have dilation, kernel, padding, shape, stride"),
    ],
)
def test_a_geometry_that_is_none_is_refused(change, said):
    geometry = {"shape": (2, 6, 6), "kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    with pytest.raises(ValueError, match=said):
        Patches(18, geometry | change)
