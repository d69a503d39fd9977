from __future__ import annotations

import numpy as np
import pytest

from dualform_studies.memorisation.heads.simplex import classes_of, over_simplex
from dualform_studies.memorisation.heads.simplex_figures import heights_at
from dualform_studies.memorisation.heads.simplex_patterns import PATTERNS, Rule, between, corner, triangles_of
from dualform_studies.memorisation.transformer.facts import draw_facts
from dualform_studies.memorisation.transformer.network import build_network

SEEDS = [4, 5]


@pytest.fixture(scope="module")
def simplex():
    return over_simplex(build_network(4), draw_facts(4), 18)


def made(simplex, corners=(0.0, 0.0, 0.0), middles=(0.0, 0.0, 0.0), elsewhere=0.5):
    """An accuracy for each place: corners by head, and between two heads by the head that is silent."""
    accuracy = np.full(len(simplex.weights), elsewhere)
    for head in range(3):
        accuracy[between(simplex, head)] = middles[head]
    # On an edge, the border of a corner also lies between two heads.
    for head in range(3):
        accuracy[corner(simplex, head)] = corners[head]
    return accuracy


def test_corners_and_middles_lie_where_the_rule_says(simplex):
    for weights, corners, middles in (
        ((3, 0, 0), [0], []), ((2, 1, 0), [0], [2]), ((2, 0.5, 0.5), [0], []), ((0, 1.5, 1.5), [], [0]),
        ((0.5, 1.0, 1.5), [], [0]), ((1, 1, 1), [], []), ((0.5, 0.5, 2), [2], []),
    ):  # fmt: skip
        at = simplex.at(*weights)
        assert [head for head in range(3) if corner(simplex, head)[at]] == corners, weights
        assert [head for head in range(3) if between(simplex, head)[at]] == middles, weights


@pytest.mark.parametrize(
    ("corners", "middles", "pattern"),
    [
        ((0.2, 0.9, 0.3), (0, 0, 0), "one corner"),
        ((0.7, 0.2, 0.4), (1, 0, 0), "one corner"),
        ((1.0, 0.7, 0.4), (0, 0, 0), "one corner"),
        ((0.9, 0.2, 0.8), (0, 0, 0), "two corners"),
        ((0.2, 0.1, 0.3), (0, 0.9, 0), "between two"),
        ((0.6, 0.1, 0.3), (0.8, 0, 0), "between two"),
        ((0.6, 0.1, 0.3), (0, 0.8, 0), "none"),
        ((0.9, 0.8, 0.7), (1, 1, 1), "none"),
        ((0.5, 0.1, 0.1), (0, 0, 0), "none"),
        ((0.1, 0.1, 0.1), (0.5, 0.5, 0.5), "none"),
    ],
)
def test_made_up_triangles_show_their_pattern(simplex, corners, middles, pattern):
    assert Rule().pattern(simplex, made(simplex, corners, middles)) == pattern


def test_a_stricter_rule_finds_less(simplex):
    accuracy = made(simplex, (0.7, 0.4, 0.4))
    assert Rule().pattern(simplex, accuracy) == "one corner"
    assert Rule(large=0.75).pattern(simplex, accuracy) == "none"
    assert Rule(greater=1 / 3).pattern(simplex, accuracy) == "none"


def test_every_class_of_every_network_is_counted_once():
    facts = [draw_facts(seed) for seed in SEEDS]
    networks = [build_network(seed) for seed in SEEDS]
    found = triangles_of(networks, facts, SEEDS, 6)
    assert [(one.seed, one.token) for one in found.classes] == [
        (seed, token) for seed, own in zip(SEEDS, facts, strict=True) for token in classes_of(own)
    ]
    assert sum(found.counts().values()) == len(found.classes)
    assert list(found.counts()) == list(PATTERNS)
    for pattern, example in found.examples().items():
        alike = [one.pairs for one in found.classes if one.pattern == pattern]
        assert example.pairs == max(alike)
    for network, own, centre in zip(networks, facts, found.centres, strict=True):
        accuracy = over_simplex(network, own, 6).accuracy
        assert centre.accuracy == own.right(network(own.pairs)).mean()
        assert centre.best == accuracy.max()
        assert centre.as_good == np.mean(accuracy == accuracy.max())
        assert centre.is_best == (centre.accuracy == centre.best)


def test_every_pixel_shows_the_weighting_nearest_to_it(simplex):
    heights = np.arange(len(simplex.weights), dtype=np.float64)
    drawn = heights_at(simplex, heights, 60)
    corners = np.array([[0, 0], [1, 0], [0.5, 3**0.5 / 2]])
    places = simplex.shares @ corners
    rows = len(drawn)
    for row, column in [(0, 30), (5, 20), (20, 31), (rows - 4, 30), (11, 44)]:
        pixel = np.array([(column + 0.5) / 60, (row + 0.5) * corners[2, 1] / rows])
        distances = np.linalg.norm(places - pixel, axis=1)
        assert distances[int(drawn[row, column])] == pytest.approx(distances.min(), abs=1e-9)
    assert np.isnan(drawn[0, 0]) or drawn[0, 0] == simplex.at(3, 0, 0)
    assert np.isnan(drawn[rows - 1, 0])
    assert np.isnan(drawn[rows - 1, 59])
