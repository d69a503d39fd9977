"""Every form of every compiled loop, whatever compiled it, gives the bits that arithmetic step by step gives.

The oracles add up one number after the other, in Python's floats or in whole fractions, in the order that the C files
state. The screen's bounds may differ in their last bits: what holds of them in every form is that none loses a row.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from dualform import kernels
from dualform.kernels import DIRECTIONS
from dualform.kernels.arguments import AdamUpdate
from dualform.query.score.canonical import canonical_scores
from dualform.query.search.code_products import code_products
from dualform.query.search.codes import RowFactors, quantise
from dualform.query.search.codes_cache import CodesCache
from dualform.query.search.screen import Request, screen
from dualform.store.rows import Keys
from dualform.store.sources.held_rows import HeldRows
from tests.kernels.forms import EXAMPLES, FORMS, using

SOME = settings(max_examples=EXAMPLES, deadline=None)
LANES = 8
NUMBERS = st.one_of(
    st.floats(-4, 4, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 1e-30, -1e-13, 1e-12, 3e11, -1e13, 1e20, 2.0**-149]),
)
SHAPES = st.tuples(st.integers(1, 70), st.integers(1, 40))
WIDTHS = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 784, 800, 1023, 1024, 1025]))
SEEDS = st.integers(0, 1000)


@st.composite
def questions(draw):
    rows, width = draw(SHAPES)
    keys = draw(hnp.arrays(np.float32, (rows, width), elements=NUMBERS, fill=st.sampled_from([0.0, 0.5])))
    queries = draw(hnp.arrays(np.float32, (draw(st.integers(1, 15)), width), elements=st.floats(-4, 4, width=32)))
    queries[:, 0] += 5.0  # within range
    groups = draw(st.integers(1, 3))
    group = draw(hnp.arrays(np.int32, rows, elements=st.integers(-1, groups - 1)))
    k, absolute = draw(st.sampled_from([1, 2, 3, 8, 300])), draw(st.booleans())
    whole = groups == 1 and draw(st.booleans())
    return keys, queries, Request(k, groups, None if whole else group, absolute)


def keys_of(matrix, segment_rows):
    starts = range(0, len(matrix), segment_rows)
    sources = [HeldRows((id(matrix), start), start, matrix[start : start + segment_rows]) for start in starts]
    return Keys(sources, matrix.shape[1], len(matrix), None)


def canonical(keys, query, absolute):
    scores = canonical_scores(keys, query)
    return np.abs(scores) if absolute else scores


def assert_best_are_candidates(found, keys, queries, request):
    assert np.all(np.diff(found.query) >= 0)
    group = np.zeros(len(keys), np.int32) if request.group is None else request.group
    for i, query in enumerate(queries):
        assert not found.crowded[i]
        own = found.rows[found.query == i]
        assert len(set(own.tolist())) == len(own)
        assert np.all(group[own] >= 0)
        scores = canonical(keys, query, request.absolute)
        for g in range(request.groups):
            members = np.flatnonzero(group == g)
            best = members[np.lexsort((members, -scores[members]))][: request.k]
            assert set(best.tolist()) <= set(own.tolist())


@FORMS
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(question=questions(), segment_rows=st.sampled_from([16, 33, 100]))
def test_every_one_of_the_k_best_is_a_candidate(form, question, segment_rows):
    keys, queries, request = question
    with using(form):
        found = screen(keys_of(keys, segment_rows), CodesCache(1 << 20), queries, request, lambda: None)
    assert_best_are_candidates(found, keys, queries, request)


@FORMS
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(
    question=questions(),
    segment_rows=st.sampled_from([16, 33, 100]),
    seed=SEEDS,
    shared=st.booleans(),
    spread=st.sampled_from([None, 0.0, 1e-3, 0.3]),
    tails=st.sampled_from([0.0, 2.0, 60.0]),
)
def test_every_one_of_the_k_best_is_a_candidate_whatever_multiplies_rows(
    form, question, segment_rows, seed, shared, spread, tails
):
    """Each row has two entries; of each the factor is known as far as the spread says."""
    keys, queries, request = question
    rng, count = np.random.default_rng(seed), 1 if shared else len(queries)
    known = rng.uniform(-1, 1, (count, len(keys), 2)) * 10.0 ** rng.uniform(-tails, 0, (count, len(keys), 2))
    with np.errstate(under="ignore"):
        most, least = known.max(axis=2).astype(np.float32), known.min(axis=2).astype(np.float32)
    beyond = None if spread is None else np.full(most.shape, spread, np.float32)
    factors = known + (0 if spread is None else rng.uniform(-spread, spread, known.shape))
    request = replace(request, absolute=False, factors=RowFactors(most, least, beyond))
    with using(form):
        found = screen(keys_of(keys, segment_rows), CodesCache(1 << 20), queries, request, lambda: None)
    group = np.zeros(len(keys), np.int32) if request.group is None else request.group
    for i, query in enumerate(queries):
        assert not found.crowded[i]
        own = set(found.rows[found.query == i].tolist())
        scores = (canonical_scores(keys, query)[:, None] * factors[0 if shared else i]).ravel()
        for g in range(request.groups):
            members = np.flatnonzero(np.repeat(group, 2) == g)
            best = members[np.lexsort((members, -scores[members]))][: request.k]
            assert set((best // 2).tolist()) <= own


@FORMS
def test_rows_whose_factors_are_small_are_left_out(form):
    rng = np.random.default_rng(0)
    keys, queries = rng.normal(size=(5000, 64)).astype(np.float32), rng.normal(size=(30, 64)).astype(np.float32)
    factors = rng.uniform(-1, 1, (30, 5000)).astype(np.float32)
    request = Request(5, 1, None, False, factors=RowFactors(factors, factors, np.full_like(factors, 1e-3)))
    with using(form):
        found = screen(keys_of(keys, 1000), CodesCache(1 << 30), queries, request, lambda: None)
    assert len(found.rows) < 30 * 60


@FORMS
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(question=questions(), segment_rows=st.sampled_from([16, 33, 100]), seed=SEEDS)
def test_products_of_codes_say_how_far_off_they_are(form, question, segment_rows, seed):
    keys, queries, _ = question
    rng = np.random.default_rng(seed)
    of_row, of_query = (rng.uniform(-1, 1, len(own)).astype(np.float32) for own in (keys, queries))
    with using(form):
        products, errors = code_products(
            keys_of(keys, segment_rows), CodesCache(1 << 20), queries, of_row, of_query, lambda: None
        )
    for i, query in enumerate(queries):
        right = canonical_scores(keys, query) * of_row.astype(float) * float(of_query[i])
        with np.errstate(invalid="ignore"):
            near = np.abs(products[i].astype(float) - right) <= errors[i].astype(float) + 2.0**-100
        assert np.all(near | ~np.isfinite(errors[i]))


@FORMS
def test_products_of_codes_are_near(form):
    rng = np.random.default_rng(0)
    rows, queries = rng.normal(size=(500, 64)).astype(np.float32), rng.normal(size=(9, 64)).astype(np.float32)
    with using(form):
        products, errors = code_products(
            keys_of(rows, 200), CodesCache(1 << 20), queries, np.ones(500, np.float32), np.ones(9, np.float32),
            lambda: None,
        )  # fmt: skip
    assert np.all(np.abs(products - queries @ rows.T) < errors)
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(rows, axis=1)
    assert np.all(errors < 0.08 * lengths)  # codes of queries have six bits where instructions take no more


@FORMS
@SOME
@given(seed=SEEDS, k=st.sampled_from([86, 100, 400]), count=st.integers(1, 3), values=st.sampled_from([2, 9, 1000]))
def test_every_one_of_many_best_is_a_candidate_though_many_score_alike(form, seed, k, count, values):
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, values, (3000, 13)).astype(np.float32)
    queries = rng.integers(1, 4, (count, 13)).astype(np.float32)
    request = Request(k, 3, rng.integers(-1, 3, len(keys)).astype(np.int32), False)
    with using(form):
        found = screen(keys_of(keys, 777), CodesCache(1 << 20), queries, request, lambda: None)
    assert_best_are_candidates(found, keys, queries, request)


@FORMS
def test_rows_that_cannot_be_among_the_best_are_left_out(form):
    rng = np.random.default_rng(0)
    keys, queries = rng.normal(size=(5000, 64)).astype(np.float32), rng.normal(size=(30, 64)).astype(np.float32)
    with using(form):
        found = screen(keys_of(keys, 1000), CodesCache(1 << 30), queries, Request(5, 1, None, True), lambda: None)
    assert len(found.rows) < 30 * 60


@FORMS
def test_the_greatest_codes_of_keys_and_queries_are_added_up_whole(form):
    """Of one row they are neighbours, and of the others, whose scores are less, they are not."""
    keys, queries = np.zeros((40, 64), np.float32), np.ones((6, 64), np.float32)
    keys[:, :60:2] = 1.0
    keys[17] = np.arange(64) < 32
    queries[1::2] = -1.0
    with using(form):
        found = screen(keys_of(keys, 40), CodesCache(1 << 20), queries, Request(1, 1, None, True), lambda: None)
    assert all(17 in found.rows[found.query == i] for i in range(6))


@FORMS
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(keys=SHAPES.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=NUMBERS)))
def test_codes_say_how_much_they_leave_out(form, keys):
    with using(form):
        made = quantise(keys)
    scale, low, residual, length = (row[: len(keys), None].astype(float) for row in made.numbers)
    own = made.codes.transpose(0, 2, 1, 3).reshape(-1, made.codes.shape[1] * 4)
    coded = scale * own[: len(keys), : keys.shape[1]]
    left = np.linalg.norm(keys.astype(float) - coded - low, axis=1)
    assert np.all(left <= residual[:, 0])
    assert np.all(np.linalg.norm(coded, axis=1) <= length[:, 0])


@FORMS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_key_that_is_not_finite_is_never_excluded(form, bad):
    keys = np.ones((40, 20), np.float32)
    keys[17, 3] = bad
    with using(form):
        assert np.flatnonzero(~np.isfinite(quantise(keys).numbers[2])).tolist() == [17]


@FORMS
@SOME
@given(width=WIDTHS, seed=SEEDS)
def test_canonical_scores(form, width, seed):
    rng = np.random.default_rng(seed)
    keys = (rng.normal(size=(50, width)) * 10.0 ** rng.integers(-20, 15, size=(50, width))).astype(np.float32)
    queries = rng.normal(size=(3, width)).astype(np.float32)
    rows, query = rng.integers(0, 50, 100), rng.integers(0, 3, 100)
    addresses = keys.ctypes.data + 4 * width * rows.astype(np.uint64)
    wide = rng.normal(size=(9, width)) * 10.0 ** rng.integers(-20, 15, size=(9, width))
    with using(form):
        found, sums = kernels.canonical(addresses, query, queries), kernels.canonical_rows(wide, queries)
    assert found.tobytes() == canonical_scores(keys[rows], queries[query]).tobytes()
    assert sums.tobytes() == np.stack([canonical_scores(wide, one) for one in queries]).tobytes()


def fused(a, b, c):
    return float(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def projected(row, directions):
    sums = np.zeros((2, DIRECTIONS))
    paired = len(row) // (2 * DIRECTIONS) * 2 * DIRECTIONS
    for c, (x, direction) in enumerate(zip(row, directions, strict=True)):
        place = (c // DIRECTIONS % 2 if c < paired else 0, c % DIRECTIONS)
        sums[place] = fused(x, direction, sums[place])
    return sums[0] + sums[1]


@FORMS
@SOME
@given(rows=st.integers(0, 6), d_in=st.integers(1, 37), d_out=st.integers(1, 20), seed=SEEDS)
def test_what_the_recorder_projects(form, rows, d_in, d_out, seed):
    rng = np.random.default_rng(seed)
    wider = rng.normal(size=(rows, d_in + 3)).astype(np.float32)
    errors, directions = rng.normal(size=(rows, d_out)).astype(np.float32), rng.normal(size=d_in)
    along, weighted = np.empty((rows, DIRECTIONS)), np.full((d_out, DIRECTIONS), 0.5)
    summed, squares, several = np.empty(d_out), np.empty(2), np.empty(rows * DIRECTIONS + d_out)
    of = [array.ctypes.data for array in (wider, errors, directions, along, weighted, summed, squares, several)]
    contiguous = np.ascontiguousarray(wider[:, :d_in])
    matrices = np.array(
        [
            [contiguous.ctypes.data, rows, d_in, of[2], 0],
            [0, 9, 9, of[2], 0],
            [of[1], d_out if rows else 0, 1, 0, rows * DIRECTIONS],
        ],
        np.int64,
    )
    with using(form):
        kernels.project(of[0], rows, d_in, d_in + 3, of[2], of[3])
        kernels.outer(of[0], rows, d_in, d_in + 3, of[2], of[1], d_out, of[4], of[5], of[6])
        kernels.project_all(matrices.ctypes.data, len(matrices), of[7])
    expected = np.array([projected(row[:d_in], directions) for row in wider]).reshape(rows, DIRECTIONS)
    assert along.tobytes() == expected.tobytes()
    first = errors[0].astype(float) if rows else np.empty(0)
    assert several[: rows * DIRECTIONS + len(first)].tobytes() == expected.tobytes() + first.tobytes()
    for column in range(d_out):
        sums, square = [0.0] * (DIRECTIONS + 1), 0.0
        for row in range(rows):
            x = float(errors[row, column])
            sums = [*(fused(w, x, s) for w, s in zip(expected[row], sums, strict=False)), sums[-1] + x]
            square += x * x
        assert weighted[column].tolist() == [0.5 + s for s in sums[:-1]]
        assert summed[column] == sums[-1]
    assert squares[1] == sum(expected.reshape(-1) ** 2)


@FORMS
@SOME
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5), seed=SEEDS)
def test_sums_by_part(form, lengths, seed):
    rng, starts = np.random.default_rng(seed), np.cumsum([0, *(DIRECTIONS * n for n in lengths)])
    turn, direction = rng.integers(0, 2, len(lengths)), rng.normal(size=DIRECTIONS)
    vectors = rng.normal(size=(4, starts[-1]))
    of, before, rebuilt, start = vectors.copy()
    apart, compared = np.empty((len(lengths), 5)), np.empty((len(lengths), 3))
    with using(form):
        places = (a.ctypes.data for a in (of, rebuilt, starts, turn))
        kernels.compare(*places, len(lengths), direction.ctypes.data, compared.ctypes.data)
        places = (a.ctypes.data for a in (of, before, rebuilt, start, starts))
        kernels.distances(*places, len(lengths), apart.ctypes.data)
    np.testing.assert_array_equal(before, vectors[0])
    for part, (first, last) in enumerate(pairwise(starts)):
        x, e, r, s = (vector[first:last] for vector in vectors)
        assert apart[part].tolist() == [in_lanes(a * a) for a in (x - e, x - r, x - s, x, e)]
        y = r
        if turn[part]:
            x, y = (turned(vector.reshape(-1, DIRECTIONS) * direction) for vector in (x, y))
        square = in_lanes(y * y)
        factor = in_lanes(x * y) / square if square > 0 else 1.0
        assert compared[part].tolist() == [factor, in_lanes(x * x), in_lanes((x - factor * y) ** 2)]


def in_lanes(terms):
    lanes = [0.0] * LANES
    for number, term in enumerate(terms.tolist()):
        lanes[number % LANES] += term
    return sum(lanes)


def turned(terms):
    pairs = terms[:, ::2] + terms[:, 1::2]
    fours = pairs[:, ::2] + pairs[:, 1::2]
    return fours[:, 0] + fours[:, 1]


@FORMS
@pytest.mark.parametrize(("rows", "d_out"), [(31, 127), (32, 128), (33, 129), (70, 300)])
def test_rows_and_columns_of_several_blocks_are_folded_as_in_the_portable_form(form, rows, d_out):
    rng, found = np.random.default_rng(rows), []
    keys, errors = rng.normal(size=(rows, 5)).astype(np.float32), rng.normal(size=(rows, d_out)).astype(np.float32)
    directions = rng.normal(size=5)
    for own in (form, "portable"):
        outs = np.full((d_out, DIRECTIONS), 0.5), np.empty(d_out), np.empty(2)
        with using(own):
            of = (keys.ctypes.data, rows, 5, 5, directions.ctypes.data, errors.ctypes.data, d_out)
            kernels.outer(*of, *(out.ctypes.data for out in outs))
        found.append([out.tobytes() for out in outs])
    assert found[0] == found[1]


@FORMS
@SOME
@given(slots=st.one_of(st.integers(0, 10), st.sampled_from([63, 64, 65, 130])), seed=SEEDS)
def test_entries(form, slots, seed):
    rng = np.random.default_rng(seed)
    keys, errors = rng.normal(size=(slots, 37)).astype(np.float32), rng.normal(size=(slots, 29)).astype(np.float32)
    columns, rows = (entries_of(rng, count) for count in (37, 29))
    count = len(rows)
    sums, magnitudes = np.ones(count), np.full(count, 2.0)
    with using(form):
        key, error = (keys.ctypes.data, slots, 37, columns.ctypes.data), (errors.ctypes.data, 29, rows.ctypes.data)
        kernels.entries(*key, *error, count, sums.ctypes.data, magnitudes.ctypes.data)
    terms = errors.astype(float)[:, rows] * keys.astype(float)[:, columns]
    for entry in range(count):
        wanted, great = 1.0, 2.0
        for start in range(0, slots, 64):
            wanted += sum(terms[start : start + 64, entry].tolist(), 0.0)
            great += sum(np.abs(terms[start : start + 64, entry]).tolist(), 0.0)
        assert (sums[entry], magnitudes[entry]) == (wanted, great)


def entries_of(rng, count):
    """int32[n]: single numbers below `count` and runs of sixteen neighbours, at the same places in every draw."""
    runs = [rng.integers(count - 17) + np.arange(length) for length in (16, 9, 17)]
    return np.concatenate([runs[0], rng.integers(0, count, 3), *runs[1:]]).astype(np.int32)


@FORMS
@SOME
@given(count=st.integers(1, 40), masked=st.booleans(), rounds=st.booleans(), coupled=st.booleans(), seed=SEEDS)
def test_updates_of_adam(form, count, masked, rounds, coupled, seed):
    rng = np.random.default_rng(seed)
    how = AdamUpdate(-1.0, 0.1 if coupled else 0.0, 0.1, 0.9, 0.01, 0.99, 0.3, 0.02, 1e-8, 0.999, rounds)
    weight, average, squares, gradient, *own = rng.normal(size=(7, count))
    squares, weight[0] = squares * squares, 0.0
    arrays = [weight, average, squares, gradient, *(own if masked else (None,) * 3)]
    expected = [None if array is None else array.copy() for array in arrays]
    with using(form):
        kernels.adam(how, 0, count, *arrays)
    w, m, v, g, *mine = expected
    descent = how.sign * g + (how.coupled * w if coupled else 0.0)
    v[:] = how.share_of_squares * descent * descent + how.rest_of_squares * v
    factor = how.rate / (np.sqrt(v / how.correction) + how.eps)
    left = np.full(count, how.left)
    if rounds:
        single = w.astype(np.float32)
        left = 1.0 + ((single * np.float32(how.left)).astype(float) - single.astype(float)) / np.where(w, w, 1.0)
    for x, a, d in [(w, m, g), (mine[0], mine[1], mine[2])] if masked else [(w, m, g)]:
        a[:] = how.share * (how.sign * d + (how.coupled * x if coupled else 0.0)) + how.rest * a
        x[:] = left * x - factor * a
    for array, wanted in zip(arrays, expected, strict=True):
        assert (array is None) == (wanted is None)
        assert array is None or array.tobytes() == wanted.tobytes()
    assert math.isfinite(weight.sum())
