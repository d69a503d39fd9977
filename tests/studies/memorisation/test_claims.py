"""Claims of the second study, judged on made-up measures."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dualform_studies.claims import FAILS, HOLDS, IN_PART
from dualform_studies.memorisation.basis import (
    ByHand,
    ManyHeads,
    alone_claims,
    boosting_claims,
    enough_claims,
    simplex_claims,
)
from dualform_studies.memorisation.heads import Alone, OwnSets, deal
from dualform_studies.memorisation.layer import EdgeMeasures
from dualform_studies.memorisation.pattern import edge_claims, polynomial_claims, voronoi_claim
from dualform_studies.memorisation.simplex import Centre, ClassTriangle, Triangles
from dualform_studies.memorisation.torus import images_right, nearest, random_directions
from dualform_studies.memorisation.transformer import Facts, build_network, draw_facts

PAIRS = 25


def alone(known: np.ndarray, without: int = 0, together: bool = True) -> Alone:
    """Heads that know these pairs, bool[H, 25], of which the last `without` need no head."""
    return Alone(known, np.arange(PAIRS) >= PAIRS - without, np.full(PAIRS, together))


def sets(*sizes: tuple[int, int]) -> np.ndarray:
    """bool[H, 25]: of each head, the pairs from the first number up to the second."""
    return np.array([(np.arange(PAIRS) >= first) & (np.arange(PAIRS) < last) for first, last in sizes])


PARTED = alone(sets((0, 9), (9, 17), (17, 25)))
APART = alone(sets((0, 8), (8, 16), (15, 20)))
TOGETHER = alone(sets((0, 9), (0, 9), (0, 9)))


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
    assert [claim.verdict for claim in alone_claims(networks)] == ([verdict] if verdict else [])


def test_pairs_known_without_heads_are_no_overlap():
    """Every head knows the ten pairs that need none, and of the others each has its own: shared beyond chance, unless
    these ten are left out."""
    known = sets((0, 5), (5, 10), (10, 15)) | (np.arange(PAIRS) >= 15)
    (claim,) = alone_claims([alone(known, without=10)] * 6)
    assert claim.verdict == IN_PART
    (claim,) = alone_claims([alone(known)] * 6)
    assert claim.verdict == HOLDS


def triangles(*patterns: str, best: float = 1.0) -> Triangles:
    accuracy = np.array([0.1, 0.1, 0.1])
    simplex = SimpleNamespace(shares=np.eye(3))
    classes = [ClassTriangle(0, "a", 3, accuracy, pattern) for pattern in patterns]
    return Triangles(simplex, classes, [Centre(1.0, best, 0.2)] * 3)


@pytest.fixture
def judged_as_made(monkeypatch: pytest.MonkeyPatch):
    """Other rules find what the rule found: the triangles are made up."""
    counts = Triangles.counts
    monkeypatch.setattr(Triangles, "counts", lambda own, rule=None: counts(own))


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
def test_the_three_named_patterns_decide(judged_as_made, patterns, verdict):
    centre, claim = simplex_claims(triangles(*patterns))
    assert (centre.verdict, claim.verdict) == (HOLDS, verdict)
    assert simplex_claims(triangles(*patterns, best=1.04))[0].verdict == FAILS, "judged by networks"
    assert f"no pattern: {patterns.count('none')} (all corners large: 0, no corner large" in claim.ours


def ways(free: list[int], shared: list[int], frozen: list[int]):
    return {
        name: SimpleNamespace(curve=SimpleNamespace(accuracy=[np.array(known) / PAIRS]))
        for name, known in (("free", free), ("shared", shared), ("frozen", frozen))
    }


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


def many(good: list[int], emerged: list[int] | None = None, boosted: int = 25, by_hand=()) -> ManyHeads:
    """Of six networks trained to it, so many that succeed by number of heads; of those trained freely, so many have
    sets of their own."""

    def networks(heads: int, own: int) -> list[Alone]:
        dealt = deal(0, heads)
        return [alone(dealt if at < own else dealt & (np.arange(PAIRS) > 0)) for at in range(6)]

    numbers = range(1, len(good) + 1)
    return ManyHeads(
        [
            OwnSets(heads, np.stack([deal(0, heads)] * 6), networks(heads, own))
            for heads, own in zip(numbers, good, strict=True)
        ],
        [networks(heads, own) for heads, own in zip(numbers, emerged or [0] * len(good), strict=True)],
        {way: np.full((len(good), 6), boosted / PAIRS) for way in ("shared", "frozen")},
        list(by_hand),
    )


@pytest.mark.parametrize(
    ("good", "least"),
    [([0, 0, 4, 5, 6], 3), ([0, 4, 1, 4, 6], 4), ([6, 6, 6, 6, 3], None), ([0] * 5, None), ([6] * 5, 1)],
)
def test_enough_is_where_every_larger_number_is(good, least):
    assert many(good).enough(2 / 3) == least


@pytest.mark.parametrize(("last", "verdict"), [(4, HOLDS), (3, IN_PART), (1, FAILS)])
def test_heads_can_be_made_to_where_the_most_heads_are(last, verdict):
    assert enough_claims(many([0, 6, last]))[0].verdict == verdict


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
    claim = enough_claims(many(good, emerged))[2]
    assert claim.verdict == verdict
    assert ("no number of heads up to 3 is enough" in claim.ours) == (max(good) == 0)
    assert enough_claims(many(good, emerged))[1].verdict == HOLDS, "boosted with many heads, beside three"
    assert enough_claims(many(good, [6] * 3, boosted=24))[1].verdict == FAILS


def test_emergence_is_judged_as_success_is():
    """Networks that pass as trained to it pass as trained freely: before, a partition was asked of the latter alone."""
    overlapping = alone(sets((0, 20), (5, 25)))
    assert not overlapping.is_partition
    found = ManyHeads(
        [OwnSets(1, np.ones((6, 1, PAIRS), bool), [alone(sets((0, 9)))] * 6),
         OwnSets(2, np.stack([sets((0, 13), (13, 25))] * 6), [overlapping] * 6)],
        [[overlapping] * 6] * 2, {way: np.ones((2, 6)) for way in ("shared", "frozen")}, [],
    )  # fmt: skip
    made, _, emerged = enough_claims(found)
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
    assert alone(known, together=together).has_own_sets == has


def test_networks_set_by_hand_must_know_what_they_were_made_to_know():
    owned = sets((0, 13), (13, 25))
    right, other = ByHand(owned, alone(owned)), ByHand(owned, alone(sets((0, 12), (12, 25))))
    assert (right.proved, other.proved) == (True, False)
    found = many([6, 6], by_hand=[right, other, None])
    assert found.heads_by_hand() == [2]
    assert "by hand, 1 of 2 networks" in enough_claims(found)[0].ours


MEASURED = EdgeMeasures(
    explained=0.9, covered=0.5, frontiers=0.2, frontiers_shifted=0.2, shortened=0.6
)  # fmt: skip
NOTHING = EdgeMeasures(None, None, None, None, None)


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
    # Networks with nothing to measure speak for no claim.
    assert edge_claims([NOTHING]) == []
    assert edge_claims([NOTHING, NOTHING, MEASURED]) == edge_claims([MEASURED])


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
