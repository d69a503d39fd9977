"""Table 1, counted and shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dualform_studies.claims import FAILS, HOLDS, IN_PART
from dualform_studies.images.table1 import (
    CELLS,
    PAPER,
    beside_table_1,
    cells_met,
    count_cells,
    is_met,
    over_runs,
    table_1_claims,
)


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


def run_of(*right: float | None, points: float = 0.0) -> dict[str, dict[str, float | None]]:
    """One run: the cells of right networks as given, layer by layer, all others off the paper's by so many points."""
    return {
        layer: {cell: value if cell == "yes" else PAPER[layer][cell][0] + points for cell in CELLS}
        for layer, value in zip(PAPER, right, strict=True)
    }


def test_nine_cells_stand_beside_the_papers():
    rows = [row.plain() for row in beside_table_1(over_runs([run_of(75.1, 78.8, 84.7)]), 5000)]
    assert len(rows) == 9
    assert [row["code"] for row in rows if row["code"]] == ["75.03, 75.05", "79.61, 78.08", "85.66, 83.97"]
    assert (rows[2]["ours"], rows[2]["text"]) == ("75.1", "75.1 ± 0.0")


def verdicts(*runs: dict[str, Any]) -> list[str]:
    return [claim.verdict for claim in table_1_claims(over_runs(runs))]


def test_the_argmax_agrees_where_all_cells_are_met_and_in_part_where_six_are():
    assert verdicts(run_of(75.1, 78.8, 84.7))[0] == HOLDS
    assert verdicts(run_of(75.3, 78.8, 84.7))[0] == IN_PART
    assert verdicts(run_of(70.0, 70.0, 70.0))[0] == IN_PART
    assert verdicts(run_of(70.0, 78.8, 84.7, points=50))[0] == FAILS


def test_late_layers_agree_more_where_it_rises_in_every_run():
    rising, level, falling = run_of(75.1, 78.8, 84.7), run_of(75.1, 75.1, 84.7), run_of(75.1, 84.0, 80.0)
    assert verdicts(rising, rising)[1] == HOLDS
    assert verdicts(rising, level)[1] == IN_PART
    assert verdicts(rising, falling, level)[1] == FAILS
    assert verdicts(run_of(75.1, None, 84.7))[1] == FAILS
