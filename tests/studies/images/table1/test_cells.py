from __future__ import annotations

import numpy as np
import pytest

from dualform_studies.images.table1.cells import CELLS, PAPER, cells_met, count_cells, is_met, over_runs


def test_cells_are_split_by_whether_the_network_is_right():
    labels = np.array([0, 1, 2, 3, 4])
    given = np.array([0, 1, 2, 7, 8])
    strongest = np.array([0, 1, 9, 3, 8])
    assert count_cells(strongest, labels, given) == {
        "no_target": 50.0,
        "no_output": 50.0,
        "yes": pytest.approx(200 / 3),
    }


def test_a_network_that_is_never_wrong_has_no_such_cells():
    labels = np.array([0, 1])
    assert count_cells(labels, labels, labels) == {"no_target": None, "no_output": None, "yes": 100.0}
    cells = {layer: {"no_target": None, "no_output": None, "yes": 100.0} for layer in PAPER}
    found = over_runs([cells, cells])
    assert found["layer-1"]["no_target"]["mean"] is None


@pytest.mark.parametrize(
    ("layer", "cell", "mean", "met"),
    [
        ("layer-0", "yes", 75.19, True),
        ("layer-0", "yes", 75.21, False),
        ("layer-0", "yes", 74.99, False),
        ("layer-0", "no_target", 22.5, True),
        ("layer-0", "no_target", 22.7, False),
        ("layer-1", "yes", 77.3, True),
        ("layer-1", "yes", 77.1, False),
        ("layer-2", "yes", 82.6, True),
        ("layer-2", "yes", 82.4, False),
    ],
)
def test_a_cell_is_met_within_two_deviations_or_a_tenth_of_a_point(layer: str, cell: str, mean: float, met: bool):
    cells = {of: dict.fromkeys(CELLS, 0.0) for of in PAPER}
    cells[layer][cell] = mean
    found = over_runs([cells])
    assert is_met(found[layer][cell]) is met
    assert cells_met(found) == met


def test_a_cell_without_an_image_is_not_met():
    found = over_runs([{of: dict.fromkeys(CELLS) for of in PAPER}])
    assert cells_met(found) == 0
