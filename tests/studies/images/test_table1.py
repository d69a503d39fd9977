from __future__ import annotations

import numpy as np
import pytest

from dualform_studies.images.table1 import CELLS, PAPER, count_cells, is_met, over_runs, table_1


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
    table = table_1({3000: found}, 2)
    assert [row[4] for row in table.rows[:3]] == ["-", "-", "100.0 ± 0.0"]


@pytest.mark.parametrize(
    ("layer", "cell", "mean", "met"),
    [
        ("layer-0", "yes", 77.0, True),
        ("layer-0", "yes", 77.2, False),
        ("layer-0", "no_target", 22.5, True),
        ("layer-0", "no_target", 22.7, False),
        ("layer-2", "yes", 82.6, True),
        ("layer-2", "yes", 82.4, False),
    ],
)
def test_a_cell_is_met_within_two_deviations_or_two_points(layer: str, cell: str, mean: float, met: bool):
    cells = {of: dict.fromkeys(CELLS, 50.0) for of in PAPER}
    cells[layer][cell] = mean
    assert is_met(over_runs([cells])[layer][cell]) is met


def test_the_table_stands_beside_the_papers_and_says_after_which_number_of_updates_a_cell_fits():
    near = {layer: {cell: mean + 0.5 for cell, (mean, _) in cells.items()} for layer, cells in PAPER.items()}
    far = {layer: {cell: mean + 20 for cell, (mean, _) in cells.items()} for layer, cells in PAPER.items()}
    table = table_1({3000: over_runs([far]), 5000: over_runs([near])}, 1)
    assert len(table.rows) == 9
    row = table.rows[-1]
    assert list(row) == [
        "layer-2", "yes", "either", "84.7 ± 1.1", "104.7", "+20.0", "+18.2", "85.2", "+0.5", "+0.5", "5,000"
    ]  # fmt: skip
    assert table.rows[2][6] == "-", "the paper's deviation at layer-0 is 0.0"
    assert len(table.columns) == len(row)
