"""Heads: their own sets, the simplex of their weights, and their memory."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch

from dualform_studies.memorisation.heads import (
    Alone,
    OwnSets,
    construct,
    cut_off,
    deal,
    features,
    heads_alone,
    train_own_sets,
)
from dualform_studies.memorisation.simplex import (
    PATTERNS,
    Rule,
    between,
    classes_of,
    corner,
    over_simplex,
    triangles_of,
)
from dualform_studies.memorisation.torus import word_angles
from dualform_studies.memorisation.transformer import (
    Ensemble,
    Facts,
    Recipe,
    build_network,
    draw_facts,
)


def alone(*known: str, without: str = "000000") -> Alone:
    rows = np.array([[mark == "1" for mark in row] for row in known])
    return Alone(rows, np.array([mark == "1" for mark in without]), np.ones(rows.shape[1], dtype=bool))


def test_overlaps_are_counted():
    one = alone("110100", "010110", "000001")
    assert one.sizes.tolist() == [3, 3, 1]
    assert one.shared(0, 1).nonzero()[0].tolist() == [1, 3]
    assert one.shared(0, 1, 2).sum() == 0
    assert one.union.tolist() == [True, True, False, True, True, True]
    assert not alone("110000", "001000").is_partition
    assert alone("110000", "001111").is_partition


@pytest.mark.parametrize(("heads", "pairs"), [(2, 5), (3, 4), (3, 6)])
def test_pairs_can_be_dealt_where_trying_every_way_finds_one(heads: int, pairs: int):
    rng = np.random.default_rng(heads * pairs)
    fill, found = -(-pairs // heads), []
    for known in rng.random((40, heads, pairs)) < 0.6:
        ways = product(*(np.flatnonzero(known[:, pair]) for pair in range(pairs)))
        expected = any(max(map(way.count, range(heads))) <= fill for way in ways)
        found.append(Alone(known, np.zeros(pairs, dtype=bool), np.ones(pairs, dtype=bool)).has_own_sets)
        assert found[-1] == expected
    assert len(set(found)) == 2


def test_chance_is_what_independent_draws_come_to():
    one = alone("1100", "1110", "1000")
    draws = [[set(drawn) for drawn in combinations(range(4), size)] for size in one.sizes.tolist()]
    shared = [len(first & second) for first, second in product(draws[0], draws[1])]
    all_three = [len(first & second & third) for first, second, third in product(*draws)]
    assert one.shared_by_chance(0, 1) == pytest.approx(np.mean(shared))
    assert one.shared_by_chance(0, 1, 2) == pytest.approx(np.mean(all_three))


def test_heads_speak_alone_as_the_live_network_has_them():
    facts, networks = draw_facts(3), [build_network(3, heads=4), build_network(4, heads=4)]
    for network, found in zip(networks, heads_alone(Ensemble(networks, [facts, facts])), strict=True):
        for head in range(4):
            weights = torch.eye(4)[head : head + 1]
            np.testing.assert_array_equal(found.known[head], facts.right(network(facts.pairs, weights)))
        np.testing.assert_array_equal(found.without, facts.right(network(facts.pairs, torch.zeros(1, 4))))
        np.testing.assert_array_equal(found.together, facts.right(network(facts.pairs)))


def test_heads_learn_what_they_were_dealt():
    found = train_own_sets(Recipe(own_steps=150, adam_lr=0.02), [1, 2], heads=4)
    known = np.stack([one.known for one in found.networks])
    assert known.shape == (2, 4, 25)
    assert (found.own > 0.7).all()
    assert (found.owned.sum(axis=1) == 1).all()
    assert np.ptp(found.owned.sum(axis=2)) <= 1
    assert not np.array_equal(*found.owned)
    assert (found.own > (known & ~found.owned).sum(axis=(1, 2)) / 75).all()
    np.testing.assert_array_equal(found.owned[1], deal(2, 4))


def test_success_asks_for_every_set_and_for_all_together():
    owned = np.stack([deal(1, 2)] * 3)
    all_known = np.ones((3, 25), dtype=bool)
    alone_known, together = owned.copy(), all_known.copy()
    alone_known[1, 0, owned[1, 0].argmax()] = False
    together[2, 7] = False
    nothing = np.zeros(25, dtype=bool)
    networks = [Alone(known, nothing, all_of) for known, all_of in zip(alone_known, together, strict=True)]
    found = OwnSets(2, owned, networks)
    assert found.succeeded.tolist() == [True, False, False]
    np.testing.assert_allclose(found.own, [1, 0.96, 1])


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_a_constructed_network_parts_all_pairs_between_its_heads_by_planes_in_its_features(seed):
    facts = draw_facts(seed)
    made = construct(facts, seed, 2)
    assert made is not None
    network, owned = made.network, made.owned
    assert (owned.sum(axis=0) == 1).all()
    assert [len(set(facts.next_tokens[own].tolist())) for own in owned] == [1] * len(owned)
    weights = torch.eye(len(owned), dtype=torch.float64)
    known = [facts.right(network(facts.pairs, weights[head : head + 1])) for head in range(len(owned))]
    np.testing.assert_array_equal(known, owned)
    assert facts.right(network(facts.pairs)).all()
    assert not facts.right(network(facts.pairs, 0 * weights[:1])).any()
    angles = word_angles(network)
    planes, cut = cut_off(angles, owned)
    assert cut.all()
    margins = planes @ features(angles).T
    assert np.abs(margins).min() > 29.9
    np.testing.assert_array_equal(margins > 0, owned)
    pattern = network.pattern(network.stream(network.embed(facts.pairs)))[:, :, 1].T.detach().numpy()
    np.testing.assert_allclose(pattern, 1 / (1 + np.exp(-margins.clip(-100, 100))), atol=1e-9)


def test_a_second_token_with_all_next_tokens_cannot_be_silent():
    tokens = draw_facts(0).next_tokens.reshape(5, 5).clone()
    tokens[:, 2] = torch.arange(5)
    assert construct(Facts(tokens.reshape(-1)), 0, 1) is None


def test_sets_that_no_plane_cuts_off_are_not_found():
    angles = np.array([0.1, 0.9, 2.0, 3.5, 5.0])
    single = np.eye(25, dtype=bool)
    # Pairs of a checkerboard: more alternation than nine numbers can follow.
    checkers = (np.indices((5, 5)).sum(axis=0) % 2 == 0).reshape(1, 25)
    planes, found = cut_off(angles, np.concatenate([single, checkers]))
    assert found[:25].all()
    assert not found[25]
    np.testing.assert_array_equal((planes[:25] @ features(angles).T) > 0, single)


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
    rules = Rule(), Rule(large=0.75), Rule(greater=1 / 3)
    assert [rule.pattern(simplex, accuracy) for rule in rules] == ["one corner", "none", "none"]


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
