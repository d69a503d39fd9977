"""A block of a parameter and the way back, against plain indexing of NumPy and torch."""

import json
from dataclasses import asdict

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from dualform.store.layer import Parameter, whole


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
