"""Patches are, bit for bit, what torch unfolds, for any range of rows and any rows in any order."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dualform.store.rows import Keys, Rows
from dualform.store.sources import patches
from dualform.store.sources.key_format import HeldRows
from dualform.store.sources.patches import Patches

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
