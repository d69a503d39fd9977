"""Which rows of the watch bear witness as of a step."""

from __future__ import annotations

import numpy as np
import pytest

from dualform.errors import Inexact
from dualform.query.weights.exactness import Distances
from dualform.store.reading.snapshot import Snapshot
from tests.query import arrays
from tests.query.test_output import Case


def rows(*steps):
    numbers = np.zeros(len(steps))
    return Distances("w", np.array(steps, dtype=np.int64), numbers, numbers, numbers, numbers, numbers)


@pytest.mark.parametrize(
    ("steps", "at_step", "expected"),
    [
        ([0, 1, 2], 2, [1]),  # seen once two steps were over: the row of step 1
        ([0, 1, 2], 3, [2]),
        ([0, 1, 1, 2], 2, [1, 2]),  # seen twice at that moment
        ([2, 5, 8], 5, [0, 1]),  # between two rows, both must be good
        ([2, 5, 8], 6, [1]),
        ([2, 5], 1, [0]),
        ([2, 5], 9, [1]),  # cut off: the last row
        ([], 3, []),
    ],
)
def test_a_row_speaks_for_its_own_moment_and_two_for_the_time_between(steps, at_step, expected):
    assert rows(*steps).around(at_step).tolist() == expected


def test_a_jump_is_a_distance_far_above_the_noise():
    of = Distances(
        "w", np.arange(4), np.array([1e-8, 7e-8, 9e-8, 1.0]), np.zeros(4), np.ones(4), np.zeros(4), np.full(4, 1e-8)
    )
    assert of.jump(1) is None
    assert of.jump(3) == 2


def test_each_parameter_must_be_exact_by_itself():
    """A bias that is off hides behind a weight that went a hundred times as far, where only their sum is looked at."""
    case = Case()
    table = case.memory.table("watch")
    watched = table.to_pylist()
    for row in watched:
        if row["parameter"] == "fc.bias":
            row |= {"accumulated": 5e-3, "way": 1.0}
        else:
            row |= {"accumulated": 1e-6, "way": 100.0}
    changed = table.from_pylist(watched, schema=table.schema)
    case.memory.table = lambda name: changed if name == "watch" else Snapshot.table(case.memory, name)
    layer = arrays.engine(case.memory).info().layers[0]
    assert not layer.exact
    assert layer.reason == "float32 rounding of small steps."


def test_beyond_the_bound_nothing_is_answered_unasked():
    assert Case(watch={6: (0.0, 0.099)}).engine.output("fc", np.ones((1, 7))).shape == (1, 4)
    with pytest.raises(Inexact, match=r"^Layer 'fc' cannot be reconstructed exactly: float32 rounding of small"):
        Case(watch={6: (0.0, 0.101)}).engine.output("fc", np.ones((1, 7)))
