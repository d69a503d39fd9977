"""The simplex of head weights: its places, the patterns of classes, and claims."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualform_studies.claims import FAILS, HOLDS, IN_PART
from dualform_studies.memorisation.simplex import (
    PATTERNS,
    RULES,
    ClassTriangle,
    Triangles,
    between,
    classes_of,
    corner,
    kind_of,
    next_token_of,
    simplex_claims,
    triangles_of,
    weighed,
    weightings,
)
from dualform_studies.memorisation.transformer import PAIRS, TOKENS, Ensemble, build_network, draw_facts, right

FACTS = draw_facts(1)
GRID = weightings(18)


def at(grid: np.ndarray, *weights: float) -> int:
    """The number of a weighting."""
    return int(np.flatnonzero(np.isclose(grid, weights).all(axis=1))[0])


@pytest.fixture(scope="module", params=[0, 5])
def network(request):
    """Stronger than a fresh one, so that its attention and classes vary."""
    network = build_network(request.param)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)
    return network


def test_the_simplex_holds_single_heads_in_its_corners_and_the_network_in_its_centre(network):
    grid = weightings(6)
    assert grid.shape == np.unique(grid, axis=0).shape == (28, 3)
    np.testing.assert_allclose(grid.sum(axis=1), 3)
    assert grid[grid.argmax(axis=0)].tolist() == [[3, 0, 0], [0, 3, 0], [0, 0, 3]]
    found = weighed(network, grid)
    logits = torch.stack([network(PAIRS, torch.from_numpy(one).float()[None]) for one in grid]).detach().double()
    np.testing.assert_allclose(found.double(), logits, atol=1e-4)
    true = np.arange(25), FACTS.numpy()
    likely, others = logits.softmax(dim=-1).numpy(), logits.clone()
    others[:, *true] = -torch.inf
    lead = logits[:, *true] - others.amax(dim=-1)
    probability, found_lead = next_token_of(found, FACTS)
    np.testing.assert_allclose(probability, likely[:, *true], atol=1e-5)
    np.testing.assert_allclose(found_lead, lead, atol=1e-4)
    np.testing.assert_array_equal(right(found, FACTS), right(logits, FACTS))
    np.testing.assert_array_equal(right(found, FACTS)[at(grid, 1, 1, 1)], right(network(PAIRS), FACTS))
    assert [grid[at(grid, *one)].tolist() for one in ((3, 0, 0), (1.5, 1, 0.5))] == [[3, 0, 0], [1.5, 1, 0.5]]
    for token, pairs in classes_of(FACTS).items():
        np.testing.assert_array_equal(pairs, FACTS.numpy() == TOKENS.index(token))


def made(corners=(0.0, 0.0, 0.0), middles=(0.0, 0.0, 0.0), elsewhere=0.5):
    """An accuracy for each place: corners by head, and between two heads by the head that is silent."""
    accuracy = np.full(len(GRID), elsewhere)
    for head in range(3):
        accuracy[between(GRID, head)] = middles[head]
    # On an edge, the border of a corner also lies between two heads.
    for head in range(3):
        accuracy[corner(GRID, head)] = corners[head]
    return accuracy


def test_corners_and_middles_lie_where_the_rule_says():
    for weights, corners, middles in (
        ((3, 0, 0), [0], []), ((2, 1, 0), [0], [2]), ((2, 0.5, 0.5), [0], []), ((0, 1.5, 1.5), [], [0]),
        ((0.5, 1.0, 1.5), [], [0]), ((1, 1, 1), [], []), ((0.5, 0.5, 2), [2], []),
    ):  # fmt: skip
        place = at(GRID, *weights)
        assert [head for head in range(3) if corner(GRID, head)[place]] == corners, weights
        assert [head for head in range(3) if between(GRID, head)[place]] == middles, weights


@pytest.mark.parametrize(
    ("corners", "middles", "kind"),
    [
        ((0.2, 0.9, 0.3), (0, 0, 0), "one corner"),
        ((0.7, 0.2, 0.4), (1, 0, 0), "one corner"),
        ((1.0, 0.7, 0.4), (0, 0, 0), "one corner"),
        ((0.9, 0.2, 0.8), (0, 0, 0), "two corners"),
        ((0.2, 0.1, 0.3), (0, 0.9, 0), "between two"),
        ((0.6, 0.1, 0.3), (0.8, 0, 0), "between two"),
        ((0.6, 0.1, 0.3), (0, 0.8, 0), "no corner large"),
        ((0.9, 0.8, 0.7), (1, 1, 1), "all corners large"),
        ((0.7, 0.5, 0.5), (0, 0, 0), "some corners large"),
        ((0.5, 0.1, 0.1), (0, 0, 0), "no corner large"),
        ((0.1, 0.1, 0.1), (0.5, 0.5, 0.5), "no corner large"),
    ],
)
def test_made_up_triangles_show_their_pattern(corners, middles, kind):
    assert kind_of(GRID, made(corners, middles)) == kind


def test_a_stricter_rule_finds_less():
    accuracy, (large, greater) = made((0.7, 0.4, 0.4)), RULES[0]
    found = [kind_of(GRID, accuracy, rule) for rule in ((large, greater), (0.75, greater), (large, 1 / 3))]
    assert found == ["one corner", "no corner large", "some corners large"]


def test_every_class_of_every_network_is_counted_once():
    seeds = [4, 5]
    facts, networks, grid = [draw_facts(seed) for seed in seeds], [build_network(seed) for seed in seeds], weightings(6)
    found = triangles_of(Ensemble(networks, facts), seeds, 6)
    assert [(one.seed, one.token) for one in found.classes] == [
        (seed, token) for seed, own in zip(seeds, facts, strict=True) for token in classes_of(own)
    ]
    assert sum(found.counts().values()) == len(found.classes)
    assert list(found.counts()) == list(PATTERNS)
    for pattern, count in found.counts().items():
        kinds = [kind if kind in PATTERNS else "none" for kind in found.kinds()]
        alike = [one.pairs for one, kind in zip(found.classes, kinds, strict=True) if kind == pattern]
        example = found.example(pattern)
        assert len(alike) == count
        assert (example.pairs if example else None) == max(alike, default=None)
    for network, own, overall in zip(networks, facts, found.overall, strict=True):
        np.testing.assert_array_equal(overall, right(weighed(network, grid), own).mean(axis=1))
        assert overall[at(grid, 1, 1, 1)] == right(network(PAIRS), own).mean()


SHOWING = {
    "one corner": made((1, 0, 0), elsewhere=0),
    "two corners": made((1, 1, 0), elsewhere=0),
    "between two": made(middles=(1, 0, 0), elsewhere=0),
    "none": made(elsewhere=0),
}
"""Accuracies that show each pattern by every rule."""


def triangles(*patterns: str, best: float = 1.0) -> Triangles:
    overall = np.full((3, len(GRID)), 0.5)
    overall[:, at(GRID, 3, 0, 0)] = best
    overall[:, at(GRID, 1, 1, 1)] = 1.0
    return Triangles(GRID, overall, [ClassTriangle(0, "a", 3, SHOWING[pattern]) for pattern in patterns])


@pytest.mark.parametrize(
    ("patterns", "verdict"),
    [
        (["one corner", "two corners", "between two", "none"] * 2, HOLDS),
        (["one corner"] * 40 + ["two corners"] * 3 + ["between two"], IN_PART),
        # Before, "no pattern" was one of four behaviours, so that some pattern was always found.
        (["one corner"] * 20 + ["two corners"] * 20 + ["none"] * 20, FAILS),
        (["none"] * 4, FAILS),
    ],
)
def test_the_three_named_patterns_decide(patterns, verdict):
    centre, claim = simplex_claims(triangles(*patterns))
    assert (centre.verdict, claim.verdict) == (HOLDS, verdict)
    assert simplex_claims(triangles(*patterns, best=1.04))[0].verdict == FAILS, "judged by networks"
    assert f"no pattern: {patterns.count('none')} (all corners large: 0, no corner large" in claim.ours
