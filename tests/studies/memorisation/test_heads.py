"""Heads: what they know alone, their own sets, by training and by hand, the simplex of their weights, and claims."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
import torch

from dualform_studies.claims import FAILS, HOLDS, IN_PART
from dualform_studies.memorisation.heads import (
    Alone,
    HeadCount,
    alone_claims,
    boosting_claims,
    construct,
    cut_off,
    deal,
    enough_claims,
    enough_heads,
    features,
    heads_alone,
    is_proved,
    train_own_sets,
)
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
from dualform_studies.memorisation.torus import word_angles
from dualform_studies.memorisation.transformer import PAIRS, TOKENS, Ensemble, Recipe, build_network, draw_facts, right
from tests.studies.memorisation.oracle import strong_network


def alone(*networks, without: int = 0, together: bool = True) -> Alone:
    """Networks whose heads know these pairs, bool[H, P], of which the last `without` need no head."""
    known = np.array(networks, dtype=bool)
    members, _, pairs = known.shape
    needless = np.tile(np.arange(pairs) >= pairs - without, (members, 1))
    return Alone(known, needless, np.full((members, pairs), together))


def sets(*sizes: tuple[int, int]) -> np.ndarray:
    """bool[H, 25]: of each head, the pairs from the first number up to the second."""
    return np.array([(np.arange(25) >= first) & (np.arange(25) < last) for first, last in sizes])


def test_overlaps_are_counted():
    found = alone([[1, 1, 0, 1, 0, 0], [0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]])
    assert found.size == 7
    assert not alone([[1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]).partitions.any()
    assert alone([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1]]).partitions.all()


@pytest.mark.parametrize(("heads", "pairs"), [(2, 5), (3, 4), (3, 6)])
def test_pairs_can_be_dealt_where_trying_every_way_finds_one(heads: int, pairs: int):
    rng = np.random.default_rng(heads * pairs)
    fill, found = -(-pairs // heads), []
    for known in rng.random((40, heads, pairs)) < 0.6:
        ways = product(*(np.flatnonzero(known[:, pair]) for pair in range(pairs)))
        expected = any(max(map(way.count, range(heads))) <= fill for way in ways)
        found.append(alone(known).own_sets[0])
        assert found[-1] == expected
    assert len(set(found)) == 2


def test_chance_is_what_independent_draws_come_to():
    one = alone([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]])
    draws = [[set(drawn) for drawn in combinations(range(4), size)] for size in one.known[0].sum(axis=1).tolist()]
    shared = [np.mean([len(one & other) for one, other in product(*two)]) for two in combinations(draws, 2)]
    assert one.fewer_than_chance() == pytest.approx(np.mean(np.array(shared) - [2, 1, 1]))


def test_heads_speak_alone_as_the_live_network_has_them():
    facts, networks = draw_facts(3), [build_network(3, heads=4), build_network(4, heads=4)]
    found = heads_alone(Ensemble(networks, [facts, facts]))
    for member, network in enumerate(networks):
        for head in range(4):
            weights = torch.eye(4)[head : head + 1]
            np.testing.assert_array_equal(found.known[member, head], right(network(PAIRS, weights), facts))
        np.testing.assert_array_equal(found.without[member], right(network(PAIRS, torch.zeros(1, 4)), facts))
        np.testing.assert_array_equal(found.together[member], right(network(PAIRS), facts))


def test_heads_learn_what_they_were_dealt():
    dealt = np.stack([deal(1, 4), deal(2, 4)])
    trained = heads_alone(train_own_sets(Recipe(own_steps=150, adam_lr=0.02), dealt, [1, 2]))
    own = HeadCount(4, dealt, trained, trained, {}).own
    assert trained.known.shape == (2, 4, 25)
    assert (own > 0.7).all()
    assert (dealt.sum(axis=1) == 1).all()
    assert np.ptp(dealt.sum(axis=2)) <= 1
    assert not np.array_equal(*dealt)
    assert (own > (trained.known & ~dealt).sum(axis=(1, 2)) / 75).all()


def test_success_asks_for_every_set_and_for_all_together():
    owned = np.stack([deal(1, 2)] * 3)
    known, together = owned.copy(), np.ones((3, 25), dtype=bool)
    known[1, 0, owned[1, 0].argmax()] = False
    together[2, 7] = False
    trained = Alone(known, np.zeros((3, 25), dtype=bool), together)
    assert trained.own_sets.tolist() == [True, False, False]
    np.testing.assert_allclose(HeadCount(2, owned, trained, trained, {}).own, [1, 0.96, 1])


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_a_constructed_network_parts_all_pairs_between_its_heads_by_planes_in_its_features(seed):
    facts = draw_facts(seed)
    made = construct(facts, seed, 2)
    assert made is not None
    assert made.proved
    network, owned = made.network, made.owned
    assert (owned.sum(axis=0) == 1).all()
    assert [len(set(facts[own].tolist())) for own in owned] == [1] * len(owned)
    weights = torch.eye(len(owned), dtype=torch.float64)
    known = [right(network(PAIRS, weights[head : head + 1]), facts) for head in range(len(owned))]
    np.testing.assert_array_equal(known, owned)
    assert right(network(PAIRS), facts).all()
    assert not right(network(PAIRS, 0 * weights[:1]), facts).any()
    angles = word_angles(network)
    planes, cut = cut_off(angles, owned)
    assert cut.all()
    margins = planes @ features(angles).T
    assert np.abs(margins).min() > 29.9
    np.testing.assert_array_equal(margins > 0, owned)
    pattern = network.pattern(network.stream(network.embed(PAIRS)))[:, :, 1].T.detach().numpy()
    np.testing.assert_allclose(pattern, 1 / (1 + np.exp(-margins.clip(-100, 100))), atol=1e-9)


def test_a_second_token_with_all_next_tokens_cannot_be_silent():
    tokens = draw_facts(0).reshape(5, 5).clone()
    tokens[:, 2] = torch.arange(5)
    assert construct(tokens.reshape(-1), 0, 1) is None


def test_sets_that_no_plane_cuts_off_are_not_found():
    angles = np.array([0.1, 0.9, 2.0, 3.5, 5.0])
    single = np.eye(25, dtype=bool)
    # Pairs of a checkerboard: more alternation than nine numbers can follow.
    checkers = (np.indices((5, 5)).sum(axis=0) % 2 == 0).reshape(1, 25)
    planes, found = cut_off(angles, np.concatenate([single, checkers]))
    assert found[:25].all()
    assert not found[25]
    np.testing.assert_array_equal((planes[:25] @ features(angles).T) > 0, single)


PARTED = sets((0, 9), (9, 17), (17, 25))
APART = sets((0, 8), (8, 16), (15, 20))
TOGETHER = sets((0, 9), (0, 9), (0, 9))


@pytest.mark.parametrize(
    ("networks", "verdict"),
    [
        ([TOGETHER] * 6, HOLDS),
        # No partition, but hardly an overlap: heads do tend to sets of their own.
        ([APART] * 6, IN_PART),
        ([PARTED] * 3 + [TOGETHER] * 3, IN_PART),
        ([PARTED] * 6, FAILS),
        # Too few to tell.
        ([TOGETHER] * 4, None),
    ],
)
def test_heads_alone_are_judged_by_partition_and_overlap(networks, verdict):
    assert [claim.verdict for claim in alone_claims(alone(*networks))] == ([verdict] if verdict else [])


def test_pairs_known_without_heads_are_no_overlap():
    """Every head knows the ten pairs that need none, and of the others each has its own: shared beyond chance, unless
    these ten are left out."""
    known = sets((0, 5), (5, 10), (10, 15)) | (np.arange(25) >= 15)
    (claim,) = alone_claims(alone(*[known] * 6, without=10))
    assert claim.verdict == IN_PART
    (claim,) = alone_claims(alone(*[known] * 6))
    assert claim.verdict == HOLDS


def ways(free: list[int], shared: list[int], frozen: list[int]):
    return {name: np.array(known) / 25 for name, known in (("free", free), ("shared", shared), ("frozen", frozen))}


@pytest.mark.parametrize(
    ("free", "shared", "frozen", "verdicts"),
    [
        ([25] * 7, [15] * 7, [0] * 7, [HOLDS]),
        ([25] * 5, [15] * 5, [0] * 5, [IN_PART]),
        ([25] * 7, [25] * 7, [0] * 7, [FAILS]),
        ([20] * 7, [25] * 7, [0] * 7, [FAILS]),
        # The better way to boost is judged.
        ([25] * 7, [15] * 7, [25] * 7, [FAILS]),
        # Most seeds know all either way, and of the others none knows more.
        ([25] * 24, [25] * 14 + [15] * 10, [0] * 24, [HOLDS]),
        # Four seeds cannot reach p = 0.05, and seven of which four know less do not: neither refutes the claim.
        ([25] * 4, [15] * 4, [0] * 4, []),
        ([25, 25, 25, 25, 20, 20, 20], [22] * 7, [0] * 7, []),
    ],
)
def test_boosting_fails_only_where_it_knows_as_much(free, shared, frozen, verdicts):
    claims = boosting_claims(ways(free, shared, frozen))
    assert [claim.verdict for claim in claims] == verdicts
    assert all(claim.claim == "Boosting is less expressive than training all heads at once." for claim in claims)


def many(good: list[int], emerged: list[int] | None = None, boosted: int = 25) -> list[HeadCount]:
    """Of six networks trained to it, so many that succeed by number of heads; of those trained freely, so many have
    sets of their own."""

    def networks(dealt: np.ndarray, own: int) -> Alone:
        return alone(*[dealt if at < own else dealt & (np.arange(25) > 0) for at in range(6)])

    reached = {way: np.full(6, boosted / 25) for way in ("shared", "frozen")}
    numbers = zip([deal(0, 1 + at) for at in range(len(good))], good, emerged or [0] * len(good), strict=True)
    return [
        HeadCount(len(dealt), np.stack([dealt] * 6), networks(dealt, trained), networks(dealt, free), reached)
        for dealt, trained, free in numbers
    ]


@pytest.mark.parametrize(
    ("good", "least"),
    [([0, 0, 4, 5, 6], 3), ([0, 4, 1, 4, 6], 4), ([6, 6, 6, 6, 3], None), ([0] * 5, None), ([6] * 5, 1)],
)
def test_enough_is_where_every_larger_number_is(good, least):
    assert enough_heads(many(good)) == least


@pytest.mark.parametrize(("last", "verdict"), [(4, HOLDS), (3, IN_PART), (1, FAILS)])
def test_heads_can_be_made_to_where_the_most_heads_are(last, verdict):
    assert enough_claims(many([0, 6, last]), [])[0].verdict == verdict


@pytest.mark.parametrize(
    ("good", "emerged", "verdict"),
    [
        ([0, 6, 6], [6, 0, 0], HOLDS),
        ([0, 6, 6], [0, 0, 2], HOLDS),
        ([0, 6, 6], [0, 3, 0], IN_PART),
        ([0, 6, 6], [0, 0, 6], FAILS),
        # Where no number of heads is enough, nothing shows that sets of their own would not emerge with more.
        ([0, 0, 0], [0, 0, 0], FAILS),
    ],
)
def test_emergence_is_judged_where_training_to_it_succeeds(good, emerged, verdict):
    claim = enough_claims(many(good, emerged), [])[2]
    assert claim.verdict == verdict
    assert ("no number of heads up to 3 is enough" in claim.ours) == (max(good) == 0)
    assert enough_claims(many(good, emerged), [])[1].verdict == HOLDS, "boosted with many heads, beside three"
    assert enough_claims(many(good, [6] * 3, boosted=24), [])[1].verdict == FAILS


def test_emergence_is_judged_as_success_is():
    """Networks that pass as trained to it pass as trained freely: before, a partition was asked of the latter alone."""
    overlapping, reached = alone(*[sets((0, 20), (5, 25))] * 6), {way: np.ones(6) for way in ("shared", "frozen")}
    assert not overlapping.partitions.any()
    counts = [
        HeadCount(1, np.ones((6, 1, 25), bool), alone(*[sets((0, 9))] * 6), overlapping, reached),
        HeadCount(2, np.stack([sets((0, 13), (13, 25))] * 6), overlapping, overlapping, reached),
    ]
    made, _, emerged = enough_claims(counts, [])
    assert (made.verdict, emerged.verdict) == (HOLDS, FAILS)
    assert "0 of 6 networks of 2 heads" in emerged.ours
    assert "of those trained to it, 0 of 6" in emerged.ours


@pytest.mark.parametrize(
    ("known", "together", "has"),
    [
        (sets((0, 13), (12, 25)), True, True),
        (sets((0, 13), (12, 25)), False, False),
        (sets((0, 12), (13, 25)), True, False),
        # One head that knows everything has no sets beside it; two that know everything share it.
        (sets((0, 25), (0, 0)), True, False),
        (sets((0, 25), (0, 25)), True, True),
        # Pairs must change hands: the second head's share is in the middle.
        (sets((0, 25), (4, 17)), True, True),
    ],
)
def test_sets_of_their_own_are_dealt_to_heads_that_know_them(known, together, has):
    assert alone(known, together=together).own_sets.tolist() == [has]


def test_networks_set_by_hand_must_know_what_they_were_made_to_know():
    facts = draw_facts(0)
    right_one = construct(facts, 0, 1)
    assert right_one is not None
    assert is_proved(right_one.network, facts, right_one.owned)
    assert not is_proved(right_one.network, facts, np.roll(right_one.owned, 1, axis=0))
    assert not is_proved(build_network(0, len(right_one.owned)), facts, right_one.owned)
    claim = enough_claims(many([6, 6]), [right_one, replace(right_one, proved=False), None])[0]
    assert (
        f"by hand, 1 of 2 networks, each head with no pair of another's, and {len(right_one.owned)} heads" in claim.ours
    )


FACTS = draw_facts(1)
GRID = weightings(18)


def at(grid: np.ndarray, *weights: float) -> int:
    """The number of a weighting."""
    return int(np.flatnonzero(np.isclose(grid, weights).all(axis=1))[0])


@pytest.mark.parametrize("seed", [0, 5])
def test_the_simplex_holds_single_heads_in_its_corners_and_the_network_in_its_centre(seed):
    network, grid = strong_network(seed), weightings(6)
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
