"""A distribution is what NumPy makes of all scores in float64, at the ranks that are given."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput, EmptyMask
from dualform.query import distribution, needs
from dualform.query.distribution import distributions, effective_slots, ranks_of
from dualform.query.resolved import resolve
from dualform.query.score.canonical import as_float32, canonical_scores
from dualform.query.view import never
from dualform.questions import Distribution, Vectors
from tests.query import arrays
from tests.query.plain_case import Case, peak_bytes
from tests.query.score.test_scores import opposed  # noqa: F401 (fixture)
from tests.query.search.test_top_k import SLOW, cases, engine_of, mask_of
from tests.query.weights.test_directed import asked, backend_of, direction_rows, stay, terms_of

EPSILON = 2.0**-53


def is_of(found, every, points):
    """Asserts that an answer is that of float64[n, m] scores."""
    m = every.shape[1]
    assert found.count == m
    assert (found.ranks[0], found.ranks[-1]) == (1, m)
    assert len(found.ranks) <= points
    for query, scores in enumerate(every):
        ranked = np.sort(scores)[::-1]
        sizes = np.abs(ranked)
        assert found.scores[query].tobytes() == as_float32(ranked[found.ranks - 1]).tobytes()
        sums = [math.fsum(sizes[:rank].tolist()) for rank in found.ranks.tolist()]
        np.testing.assert_allclose(found.cumulative[query], sums, rtol=m * EPSILON, atol=0)
        assert found.totals[query] == found.cumulative[query][-1]
        scaled = sizes / (sizes.max() or 1.0)
        squares = math.fsum((scaled * scaled).tolist())
        wanted = math.fsum(scaled.tolist()) ** 2 / squares if squares else 0.0
        np.testing.assert_allclose(found.effective_slots[query], wanted, rtol=4 * m * EPSILON + 1e-14, atol=0)


@SLOW
@given(case=cases(), score=st.sampled_from(["dot", "abs"]), points=st.integers(11, 60))
@pytest.mark.parametrize("backend", ["int8", "numpy"])
def test_it_is_that_of_a_brute_force(backend, case, score, points):
    stays, where = mask_of(case)
    engine = engine_of(case, backend)
    found = engine.distribution("fc", case["queries"], where, score, points=points)
    every = np.stack([canonical_scores(case["keys"], query) for query in case["queries"]])[:, stays]
    is_of(found, np.abs(every) if score == "abs" else every, points)
    assert (found.scan.slots_scanned, found.scan.slots_matching) == (len(stays), sum(stays))
    # The scores are those that topk has at these ranks; alone a query has the bits that it has in a batch.
    best = engine.topk("fc", case["queries"], len(stays), where, score=score)
    for query, own in enumerate(found):
        assert own.scores[0].tobytes() == best.scores[query][found.ranks - 1].tobytes()
        alone = engine.distribution("fc", case["queries"][query], where, score, points=points)
        for name in ("ranks", "scores", "cumulative", "totals", "effective_slots"):
            assert getattr(alone, name).tobytes() == getattr(own, name).tobytes()


@SLOW
@given(case=cases(), points=st.integers(11, 60))
@pytest.mark.parametrize("name", ["cosine", "opposed"])
def test_any_score_has_one(opposed, name, case, points):  # noqa: F811 (fixture)
    stays, where = mask_of(case)
    engine = engine_of(case, "numpy")
    found = engine.distribution("fc", case["queries"], where, name, points=points)
    best = engine.topk("fc", case["queries"], len(stays), where, score=name)
    assert found.count == best.counts[0, 0]
    for query in range(len(case["queries"])):
        assert found.scores[query].tobytes() == best.scores[query][found.ranks - 1].tobytes()
        if name == "cosine":  # ranked by what is reported
            is_of(found.part(query, query + 1), best.scores[query][None].astype(np.float64), points)


@given(**asked, points=st.integers(11, 200))
@settings(deadline=None, max_examples=13)
def test_contributions_have_one(backend, seed, target, label, at_step, repeats, points):
    case = backend_of(Case(seed, repeats=repeats), backend)
    given, rows = direction_rows(target, len(case.queries), np.random.default_rng(seed))
    where, stays = stay(case, label, at_step)
    how = {"score": "contribution", "target": given, "at_step": at_step}
    found = case.engine.distribution("fc", case.queries, where, **how, points=points)
    is_of(found, terms_of(case, rows, at_step)[:, stays], points)
    assert found.status.exact
    assert found.scan.slots_matching == stays.sum()


@given(count=st.integers(1, 10**9), points=st.integers(11, 3000))
def test_ranks_are_few_and_lie_evenly_on_a_logarithmic_axis(count, points):
    ranks = ranks_of(count, points)
    assert ranks.dtype == np.int64
    assert (np.diff(ranks) > 0).all()
    assert len(ranks) <= points
    assert ranks[: min(count, 10)].tolist() == list(range(1, min(count, 10) + 1))
    assert ranks[-1] == count
    if count <= points:
        assert len(ranks) == count
    else:
        step = (count / 10) ** (1 / (points - 10))
        # No further apart than an even step of numbers that were rounded to them.
        assert (ranks[10:] <= (ranks[9:-1] + 0.5) * step * (1 + 1e-12) + 0.5).all()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([2.0, 2.0, 2.0, 2.0], 4.0), ([5.0, 0.0, 0.0], 1.0), ([0.0, 0.0], 0.0), ([3.0, 1.0], 1.6)],
)
@pytest.mark.parametrize("size", [1.0, 2.0**-1000, 2.0**900])
def test_effective_slots_are_as_many_as_share_the_scores(scores, expected, size):
    assert effective_slots(np.array(scores) * size) == expected


def test_what_is_no_number_of_ranks_is_refused():
    for points in (10, 0, -1, 11.0, True, "11", None):
        with pytest.raises(BadInput, match=r"points must be a whole number of at least 11, not \.*") as refused:
            Distribution("fc", Vectors(np.ones((1, 2))), points=points)
        assert refused.value.field == "points"
        assert refused.value.hint == "11 points are the first 10 ranks and the last one."


def test_gradients_have_none():
    engine = arrays.engine(arrays.memory({"fc": np.ones((3, 2), np.float32)}, {"label": [0, 1, 2]}))
    with pytest.raises(BadInput, match=r'^distribution does not support score="gradient"\.') as refused:
        engine.distribution("fc", np.ones(2, np.float32), score="gradient")
    assert refused.value.field == "score"
    with pytest.raises(EmptyMask):
        engine.distribution("fc", np.ones(2, np.float32), "label > 7")


def test_scores_of_one_batch_are_held_and_less_than_is_claimed(rng):
    entries, queries = 200_000, 2 * distribution.BATCH
    made = arrays.memory({"fc": rng.standard_normal((entries, 4), np.float32)}, {"label": [0] * entries})
    memory = arrays.engine(made)
    question = Distribution("fc", Vectors(rng.standard_normal((queries, 4), np.float32)))
    memory.ask(question)
    resolved = resolve(memory._view, question, never)
    # The least of three: what threads of earlier tests allocate meanwhile counts, too.
    peak = min(peak_bytes(lambda: distributions(resolved, never))[0] for _ in range(3))
    batch = 8 * distribution.BATCH * entries
    assert peak < 1.8 * batch
    assert peak < needs.of_distribution(resolved) - needs._of_layer(resolved) < 2 * batch + 8 * needs._COLUMNS * entries
