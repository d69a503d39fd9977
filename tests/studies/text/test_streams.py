from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput
from dualform_studies.text.recipe import Recipe
from dualform_studies.text.streams import chunks


def recipe(batch: int, unroll: int, steps: int) -> Recipe:
    return Recipe(embedding=4, projection=0, hidden=4, lr=1e-3, clip=1.0, batch=batch, steps=steps, unroll=unroll)


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 60), st.integers(1, 6), st.integers(1, 9), st.integers(1, 12))
def test_positions_name_the_tokens_read_and_streams_read_on(length: int, batch: int, unroll: int, steps: int) -> None:
    ids = np.random.default_rng(length).integers(0, 9, length)
    read = list(chunks(ids, recipe(batch, unroll, steps)))
    assert len(read) == steps
    for chunk in read:
        assert chunk.positions.shape == (batch, unroll)
        np.testing.assert_array_equal(chunk.inputs, ids[chunk.positions])
        np.testing.assert_array_equal(chunk.targets, ids[chunk.positions + 1])
    for stream in np.concatenate([chunk.positions for chunk in read], axis=1):
        np.testing.assert_array_equal(np.diff(stream) % (length - 1), 1 % (length - 1))
    visits = np.bincount(np.concatenate([chunk.positions.ravel() for chunk in read]), minlength=length)
    assert visits[-1] == 0
    assert np.ptp(visits[:-1]) <= 1


def test_streams_begin_evenly_spaced_so_that_a_pass_reads_each_token_once() -> None:
    ids = np.arange(41)
    read = list(chunks(ids, recipe(4, 5, 2)))
    assert sorted(np.concatenate([chunk.positions.ravel() for chunk in read])) == list(range(40))


def test_a_text_without_a_second_token_is_refused() -> None:
    with pytest.raises(BadInput, match="one token"):
        next(chunks(np.array([3]), recipe(1, 1, 1)))
