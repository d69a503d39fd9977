"""Claims about patterns: their criteria decide, and their measures are those of the networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dualform_studies.memorisation.layer.edge_measures import EdgeMeasures
from dualform_studies.memorisation.pattern.claims import edge_claims, polynomial_claims, voronoi_claim
from dualform_studies.memorisation.torus.voronoi import images_right, nearest, random_directions
from dualform_studies.memorisation.transformer.facts import Facts, draw_facts
from dualform_studies.memorisation.transformer.network import build_network
from dualform_studies.memorisation.transformer.siblings import train_siblings
from dualform_studies.memorisation.transformer.training import Recipe
from tests.studies.memorisation.oracle import Watched

MEASURED = EdgeMeasures(
    explained=0.9, covered=0.5, covered_hardmax=1.0, frontiers=0.2, frontiers_shifted=0.2, shortened=0.6
)  # fmt: skip
NOTHING = EdgeMeasures(None, None, None, None, None, None)


def test_harmonics_and_parameters_are_claimed_as_counted():
    claims = polynomial_claims([build_network(0)], 12)
    assert [claim.verdict for claim in claims] == ["holds", "holds", "holds", "does not hold", "holds"]
    assert claims[1].ours == "11 in 60 of 60 random heads"
    # What the formula looks like multiplied out is a remark: it can decide nothing.
    assert claims[3].ours.startswith("11 in 60 of 60 random heads; seven is how many terms its product has")


def test_edges_are_judged_by_their_median():
    assert [claim.verdict for claim in edge_claims([MEASURED])] == ["holds", "holds in part", "holds", "holds"]
    other = replace(MEASURED, explained=0.1, covered=0.9, frontiers_shifted=0.01, shortened=-0.2)
    assert [claim.verdict for claim in edge_claims([MEASURED, other, other])] == [
        "does not hold", "holds", "does not hold", "holds in part",
    ]  # fmt: skip
    assert edge_claims([MEASURED, other, other])[0].ours == "10 % (10 to 90) in 3 networks"


def test_frontiers_are_judged_by_shifts_of_the_lines():
    """By how many networks have frontiers nearer to their lines than 95 % of the shifts, not by how near they are."""
    near = replace(MEASURED, frontiers=0.3, frontiers_shifted=0.04)
    for networks, verdict in (
        ([MEASURED, MEASURED, near], "holds"), ([MEASURED, near], "holds in part"), ([near] * 3, "does not hold"),
    ):  # fmt: skip
        claim = edge_claims(networks)[-1]
        assert claim.verdict == verdict
        assert "heads' level lines" in claim.claim
    assert "as much or more after 4 % of the shifts (median)" in claim.ours


def test_networks_with_nothing_to_measure_speak_for_no_claim():
    assert edge_claims([NOTHING]) == []
    assert [claim.verdict for claim in edge_claims([NOTHING, NOTHING, MEASURED])] == [
        claim.verdict for claim in edge_claims([MEASURED])
    ]
    assert "in 1 networks" in edge_claims([NOTHING, MEASURED])[0].ours


def test_cells_are_weighted_voronoi_cells():
    network = build_network(3)
    facts = draw_facts(3)
    right = facts.right(network(facts.pairs).detach())
    np.testing.assert_array_equal(images_right(network, facts), right)
    # By construction, so that it decides nothing: what does is how many pairs lie in the cells of their own.
    assert voronoi_claim([network], [facts]).verdict == "does not hold"
    said = Facts(network(facts.pairs).detach().argmax(dim=-1))
    claim = voronoi_claim([network], [said])
    assert claim.verdict == "holds"
    assert "by construction, and 100.0 % of the pairs lie in their own" in claim.ours
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
    found = train_siblings(recipe, [3, 4]).networks()
    for network, seed in zip(found, [3, 4], strict=True):
        alone = Watched(draw_facts(seed), recipe, seed).network.state_dict()
        for name, weight in network.state_dict().items():
            torch.testing.assert_close(weight, alone[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("field", ["explained", "covered"])
def test_a_third_is_enough_in_part(field: str):
    at = ["explained", "covered"].index(field)
    assert edge_claims([replace(MEASURED, **{field: 0.34})])[at].verdict == "holds in part"
    assert edge_claims([replace(MEASURED, **{field: 0.33})])[at].verdict == "does not hold"
