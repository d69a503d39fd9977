from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput
from dualform_studies.text.recipe import Recipe
from dualform_studies.text.streams import chunks, chunks_of_a_pass


def recipe(batch: int, unroll: int, steps: int) -> Recipe:
    return Recipe(embedding=4, projection=0, hidden=4, lr=1e-3, clip=1.0, batch=batch, steps=steps, unroll=unroll)


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 90), st.integers(1, 6), st.integers(1, 9), st.integers(1, 12))
def test_positions_name_the_tokens_read_and_streams_read_on(length: int, batch: int, unroll: int, steps: int) -> None:
    ids = np.random.default_rng(length).integers(0, 9, length)
    own = recipe(batch, unroll, steps)
    if length - 1 < batch * unroll:
        with pytest.raises(BadInput, match=f"each of {batch} streams needs a chunk of {unroll}"):
            next(chunks(ids, own))
        return
    of_a_pass, read = chunks_of_a_pass(length, own), list(chunks(ids, own))
    assert len(read) == steps
    assert [chunk.opens for chunk in read] == [step % of_a_pass == 0 for step in range(steps)]
    for chunk in read:
        assert chunk.positions.shape == (batch, unroll)
        np.testing.assert_array_equal(chunk.inputs, ids[chunk.positions])
        np.testing.assert_array_equal(chunk.targets, ids[chunk.positions + 1])
    visits = np.bincount(np.concatenate([chunk.positions.ravel() for chunk in read]), minlength=length)
    reach = of_a_pass * batch * unroll
    assert reach <= length - 1 < reach + batch * unroll + unroll
    assert visits[reach:].sum() == 0
    assert np.ptp(visits[:reach]) <= 1


def test_streams_are_runs_of_chunks_side_by_side_as_the_papers_code_cuts_them() -> None:
    """Against the indices of its sampler, written out: chunk 18 b + step for stream b of 64, of 100 characters each."""
    ids = np.arange(119_933)
    own = recipe(64, 100, 20)
    assert chunks_of_a_pass(len(ids), own) == 18
    for step, chunk in enumerate(chunks(ids, own)):
        expected = [(stream * 18 + step % 18) * 100 for stream in range(64)]
        assert chunk.positions[:, 0].tolist() == expected
        assert chunk.positions[:, -1].tolist() == [first + 99 for first in expected]
