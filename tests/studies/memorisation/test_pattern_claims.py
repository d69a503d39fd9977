"""Claims about patterns: their criteria decide, and their measures are those of the networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dualform_studies.memorisation.edge_measures import EdgeMeasures
from dualform_studies.memorisation.facts import draw_facts
from dualform_studies.memorisation.network import build_network
from dualform_studies.memorisation.pattern_claims import edge_claims, polynomial_claims, voronoi_claim
from dualform_studies.memorisation.siblings import train_siblings
from dualform_studies.memorisation.training import Recipe
from dualform_studies.memorisation.voronoi import nearest, random_directions
from tests.studies.memorisation.oracle import Watched

MEASURED = EdgeMeasures(explained=0.9, covered=0.5, frontiers=0.2, shortened=0.6)


def test_harmonics_and_parameters_are_claimed_as_counted():
    claims = polynomial_claims([build_network(0)], 12)
    assert [claim.verdict for claim in claims] == ["holds", "holds", "holds", "holds in part", "holds"]
    assert claims[1].ours == "11 in 60 of 60 random heads"
    assert claims[3].ours.startswith("11 in 60 of 60 random heads, as for dimension 3; its product multiplied out")


def test_edges_are_judged_by_their_median():
    assert [claim.verdict for claim in edge_claims([MEASURED])] == ["holds", "holds in part", "holds", "holds"]
    other = replace(MEASURED, explained=0.1, covered=0.9, frontiers=0.9, shortened=-0.2)
    assert [claim.verdict for claim in edge_claims([MEASURED, other, other])] == [
        "does not hold", "holds", "does not hold", "does not hold",
    ]  # fmt: skip
    assert edge_claims([MEASURED, other, other])[0].ours == "10 % (10 to 90) in 3 networks"


def test_cells_are_weighted_voronoi_cells():
    network = build_network(3)
    claim = voronoi_claim([network])
    assert claim.verdict == "holds"
    rows = network.unembedding.weight.detach().double().numpy()
    directions = random_directions(500, 3)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
    assert np.abs(directions.mean(axis=0)).max() < 0.1
    winners = (directions @ rows.T).argmax(axis=1)
    np.testing.assert_array_equal(nearest(7 * directions, rows), winners)
    # Without weights, the nearest direction wins; with rows of one length that is the same.
    angles = np.arccos(np.clip(directions @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T, -1, 1))
    np.testing.assert_array_equal(nearest(directions, rows, weighted=False), angles.argmin(axis=1))
    assert (nearest(directions, rows, weighted=False) != winners).any()


def test_siblings_are_trained_by_the_recipe():
    recipe = Recipe(steps=20)
    found = train_siblings(recipe, [3, 4])
    for network, seed in zip(found, [3, 4], strict=True):
        alone = Watched(draw_facts(seed), recipe, seed).network.state_dict()
        for name, weight in network.state_dict().items():
            torch.testing.assert_close(weight, alone[name], rtol=1e-4, atol=1e-5)
    assert train_siblings(recipe, []) == []


@pytest.mark.parametrize("field", ["explained", "covered"])
def test_a_third_is_enough_in_part(field: str):
    at = ["explained", "covered"].index(field)
    assert edge_claims([replace(MEASURED, **{field: 0.34})])[at].verdict == "holds in part"
    assert edge_claims([replace(MEASURED, **{field: 0.33})])[at].verdict == "does not hold"
