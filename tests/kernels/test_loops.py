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
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from dualform import kernels
from dualform.kernels import DIRECTIONS
from dualform.kernels.arguments import (
    AdamUpdate,
    Candidates,
    CodeProducts,
    Cuts,
    KeyCodes,
    Matrices,
    QueryCodes,
    RowAddresses,
    Runs,
    SlotPlaces,
)
from dualform.kernels.sums import sum_deviations, sum_runs
from dualform.query.score.canonical import canonical_scores
from dualform.query.search.codes import Codes, CodesCache, RowFactors, quantise, quantise_queries
from dualform.query.search.screen import CompiledScreen, Request, code_products
from dualform.store.rows import Keys
from dualform.store.sources.key_format import HeldRows
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


def screen(keys, queries, request, most_bytes):
    return CompiledScreen(CodesCache(most_bytes)).candidates(keys, queries, request, lambda: None)


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
        found = CompiledScreen(CodesCache(1 << 20)).candidates(
            keys_of(keys, segment_rows), queries, request, lambda: None
        )
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
        found = CompiledScreen(CodesCache(1 << 20)).candidates(
            keys_of(keys, segment_rows), queries, request, lambda: None
        )
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
        found = screen(keys_of(keys, 777), queries, request, 1 << 20)
    assert_best_are_candidates(found, keys, queries, request)


@FORMS
def test_rows_that_cannot_be_among_the_best_are_left_out(form):
    rng = np.random.default_rng(0)
    keys, queries = rng.normal(size=(5000, 64)).astype(np.float32), rng.normal(size=(30, 64)).astype(np.float32)
    with using(form):
        found = CompiledScreen(CodesCache(1 << 30)).candidates(
            keys_of(keys, 1000), queries, Request(5, 1, None, True), lambda: None
        )
    assert len(found.rows) < 30 * 60


@FORMS
def test_the_greatest_codes_of_keys_and_queries_are_added_up_whole(form):
    """Of one row they are neighbours, and of the others, whose scores are less, they are not."""
    keys, queries = np.zeros((40, 64), np.float32), np.ones((6, 64), np.float32)
    keys[:, :60:2] = 1.0
    keys[17] = np.arange(64) < 32
    queries[1::2] = -1.0
    with using(form):
        found = CompiledScreen(CodesCache(1 << 20)).candidates(
            keys_of(keys, 40), queries, Request(1, 1, None, True), lambda: None
        )
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
    addresses = RowAddresses(100, width, [(slice(None), keys, rows)])
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
    weighted, several = np.full((d_out, DIRECTIONS), 0.5), np.empty(rows * DIRECTIONS + d_out)
    keys, signals, vector = torch.from_numpy(wider)[:, :d_in], torch.from_numpy(errors), torch.from_numpy(errors)[:1]
    shapes = [(rows, d_in), (9, d_in), (vector.numel(),)]
    matrices = Matrices(shapes, [directions, directions, None], [0, 0, rows * DIRECTIONS], len(several) + 72)
    several = np.append(several, np.empty(72))
    with using(form):
        along = kernels.project(keys, directions)
        *summed, errors_square, keys_square = kernels.outer(keys, directions, signals, weighted.reshape(-1))
        kernels.project_all(matrices, [keys.contiguous(), None, vector.reshape(-1)], several)
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
    assert keys_square == sum(expected.reshape(-1) ** 2)
    assert errors_square == pytest.approx((errors.astype(float) ** 2).sum())


@FORMS
@SOME
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5), seed=SEEDS)
def test_sums_by_part(form, lengths, seed):
    rng, starts = np.random.default_rng(seed), np.cumsum([0, *(DIRECTIONS * n for n in lengths)])
    turn, direction = rng.integers(0, 2, len(lengths)), rng.normal(size=DIRECTIONS)
    vectors = rng.normal(size=(4, starts[-1]))
    of, before, rebuilt, start = vectors.copy()
    cuts = Cuts([DIRECTIONS * n for n in lengths], turn.tolist())
    with using(form):
        compared, apart = (
            kernels.compare(of, rebuilt, cuts, direction),
            kernels.distances(of, before, rebuilt, start, cuts),
        )
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
        weighted = np.full(d_out * DIRECTIONS, 0.5)
        with using(own):
            sums = kernels.outer(torch.from_numpy(keys), directions, torch.from_numpy(errors), weighted)
        found.append((weighted.tobytes(), sums.tobytes()))
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
        kernels.entries(torch.from_numpy(keys), columns, torch.from_numpy(errors), rows, sums, magnitudes)
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


def codes(rows=40, width=8, group=None, of_groups=3, first=0):
    made = Codes.room(16 * of_groups, width)
    return KeyCodes(made.codes, made.numbers, group, rows, first)


def asked(count=2, width=8, factors=None):
    own = quantise_queries(np.ones((count, width), np.float32))
    return QueryCodes(own.codes, own.numbers, 1, factors, False)


def places(k=2, groups=1, capacity=4, count=2, most=None):
    arrays = [np.zeros((count, groups, 2 * k), np.float32), np.zeros((count, groups), np.int64)]
    arrays += [np.zeros((count, groups), np.float32), np.zeros((count, capacity), np.int64)]
    arrays += [np.zeros((count, capacity), np.float32), np.zeros(count, np.int64), np.zeros(count, np.uint8)]
    for number, value in (most or {}).items():
        arrays[number][:] = value
    return Candidates(k, groups, capacity, *arrays)


def made(rows=40, count=2):
    return CodeProducts(zeros(rows), zeros(count), zeros(count, rows), zeros(count, rows))


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def doubles(*shape):
    return np.zeros(shape)


def whole(*numbers):
    return np.array(numbers, np.int64)


def of(*shape):
    return torch.zeros(shape)


def entry(count):
    return np.zeros(count, np.int32)


def read_only(array):
    array.flags.writeable = False
    return array


GROUP, ADDRESSES = np.zeros(40, np.int32), RowAddresses.of(np.zeros((4, 3), np.float32))
RUNS = Runs(whole(0, 2, 3), whole(0, 1), doubles(2))
MATRICES = Matrices([(2, 3), (4,)], [doubles(3), None], [0, 16], 20)
ADAM = AdamUpdate(*[1.0] * 10, False)
BESIDE = {
    "codes of fewer rows": lambda: codes(rows=49),
    "numbers of fewer rows": lambda: KeyCodes(zeros(2, 1, 16, 4, dtype=np.uint8), zeros(4, 31), None, 20, 0),
    "groups of fewer rows": lambda: codes(group=GROUP, first=1),
    "factors of fewer queries": lambda: asked(3, factors=(zeros(2, 40), zeros(2, 40), None)),
    "factors of two shapes": lambda: asked(factors=(zeros(2, 40), zeros(2, 39), None)),
    "products of other rows": lambda: CodeProducts(zeros(40), zeros(2), zeros(2, 39), zeros(2, 40)),
    "lower bounds for a smaller k": lambda: Candidates(3, 1, 4, *list(places().arrays.values())[3:]),
    "runs that end before they begin": lambda: Runs(whole(0, 3, 2), whole(0, 1), doubles(2)),
    "a run of a negative group": lambda: Runs(whole(0, 3), whole(-1), doubles(1)),
    "runs without a group": lambda: Runs(whole(0, 2, 3), whole(0), doubles(2)),
    "an address of no row": lambda: RowAddresses(1, 3, [(slice(None), zeros(4, 3), whole(4))]),
    "an address before the rows": lambda: RowAddresses(1, 3, [(slice(None), zeros(4, 3), whole(-1))]),
    "addresses of narrower rows": lambda: RowAddresses(1, 3, [(slice(None), zeros(4, 2), whole(0))]),
    "addresses of float64": lambda: RowAddresses(1, 3, [(slice(None), doubles(4, 3), whole(0))]),
    "addresses of scattered rows": lambda: RowAddresses(1, 3, [(slice(None), zeros(4, 6)[:, ::2], whole(0))]),
    "addresses that are missing": lambda: RowAddresses(2, 3, [(slice(1), zeros(4, 3), whole(0))]),
    "matrices beyond their place": lambda: Matrices([(2, 3)], [doubles(3)], [5], 20),
    "matrices with fewer directions": lambda: Matrices([(2, 3)], [doubles(2)], [0], 20),
    "turned parts of other lengths": lambda: Cuts([9], [True]),
    "quantise beyond the rows": lambda: kernels.quantise(codes(), zeros(40, 8), 0, 41),
    "quantise beyond the codes": lambda: kernels.quantise(codes(of_groups=2, rows=32), zeros(40, 8), 0, 40),
    "quantise wider keys": lambda: kernels.quantise(codes(), zeros(40, 9), 0, 40),
    "screen beyond the groups": lambda: kernels.screen(codes(), asked(), places(), 0, 4),
    "screen before the groups": lambda: kernels.screen(codes(), asked(), places(), -1, 3),
    "screen wider queries": lambda: kernels.screen(codes(), asked(width=9), places(), 0, 3),
    "screen more queries": lambda: kernels.screen(codes(), asked(3), places(), 0, 3),
    "screen rows without factors": lambda: kernels.screen(
        codes(first=1), asked(factors=(zeros(1, 40), zeros(1, 40), None)), places(), 0, 3
    ),
    "screen groups that are not there": lambda: kernels.screen(codes(group=GROUP + 1), asked(), places(), 0, 3),
    "screen no groups of several": lambda: kernels.screen(codes(), asked(), places(groups=2), 0, 3),
    "products of more rows": lambda: kernels.products(codes(first=1), asked(), made(), 0, 3),
    "products of more queries": lambda: kernels.products(codes(), asked(3), made(), 0, 3),
    "settle other queries": lambda: kernels.settle([places(), places(count=3)], None),
    "settle another k": lambda: kernels.settle([places(), places(k=1)], None),
    "settle more than there is room": lambda: kernels.settle([places(most={5: 5})], None),
    "settle more bounds than there is room": lambda: kernels.settle([places(most={1: 5})], None),
    "settle rows without a group": lambda: kernels.settle([places(most={3: 40, 5: 1})], GROUP),
    "settle groups that are not there": lambda: kernels.settle([places(most={5: 1})], GROUP + 1),
    "canonical of wider queries": lambda: kernels.canonical(ADDRESSES, whole(0, 0, 0, 0), zeros(1, 4)),
    "canonical of no query": lambda: kernels.canonical(ADDRESSES, whole(0, 0, 0, 1), zeros(1, 3)),
    "canonical of a negative query": lambda: kernels.canonical(ADDRESSES, whole(0, 0, 0, -1), zeros(1, 3)),
    "canonical of fewer pairs": lambda: kernels.canonical(ADDRESSES, whole(0, 0, 0), zeros(1, 3)),
    "canonical of narrower rows": lambda: kernels.canonical_rows(doubles(4, 3), zeros(2, 2)),
    "sizes of a wider query": lambda: kernels.sizes(ADDRESSES, zeros(4)),
    "weigh by fewer weights": lambda: kernels.weigh(ADDRESSES, doubles(3), doubles(4), *doubles(3, 3)),
    "weigh into narrower sums": lambda: kernels.weigh(ADDRESSES, doubles(4), doubles(4), *doubles(3, 2)),
    "weigh into what is read-only": lambda: kernels.weigh(
        ADDRESSES, doubles(4), doubles(4), *read_only(doubles(3, 3))
    ),
    "add pairs of other lengths": lambda: kernels.add_pairs(*zeros(3, 1), zeros(2), 0.0, *zeros(2, 1)),
    "add pairs into fewer": lambda: kernels.add_pairs(*zeros(4, 2), 0.0, zeros(2), zeros(1)),
    "add runs beyond the rows": lambda: kernels.add_runs(ADDRESSES, whole(0, 4)),
    "add runs before the rows": lambda: kernels.add_runs(ADDRESSES, whole(-1, 2)),
    "sum runs of fewer rows": lambda: sum_runs(RUNS, doubles(2, 3), doubles(2, 3)),
    "sum runs into fewer groups": lambda: sum_runs(RUNS, doubles(3, 3), doubles(1, 3)),
    "sum runs into fewer columns": lambda: sum_runs(RUNS, doubles(3, 3), doubles(2, 2)),
    "sum runs of float32": lambda: sum_runs(RUNS, zeros(3, 3), doubles(2, 3)),
    "sum runs of scattered rows": lambda: sum_runs(RUNS, doubles(3, 6)[:, ::2], doubles(2, 3)),
    "sum deviations of fewer groups": lambda: sum_deviations(RUNS, zeros(3, 3), zeros(1, 3), *doubles(2, 2, 3)),
    "sum deviations that lie apart": lambda: sum_deviations(
        RUNS, zeros(3, 3), zeros(2, 3), doubles(2, 4)[:, :3], doubles(2, 3)
    ),
    "adam beyond the numbers": lambda: kernels.adam(ADAM, 0, 4, *doubles(4, 3), None, None, None),
    "adam of fewer averages": lambda: kernels.adam(ADAM, 0, 3, doubles(3), doubles(2), *doubles(5, 3)),
    "adam of half a mask": lambda: kernels.adam(ADAM, 0, 3, *doubles(5, 3), None, None),
    "project a wider matrix": lambda: kernels.project(of(2, 3), doubles(2)),
    "project float64": lambda: kernels.project(of(2, 3).double(), doubles(3)),
    "project scattered rows": lambda: kernels.project(of(2, 6)[:, ::2], doubles(3)),
    "project all into fewer": lambda: kernels.project_all(MATRICES, [of(2, 3), of(4)], doubles(19)),
    "project all of other shapes": lambda: kernels.project_all(MATRICES, [of(3, 2), of(4)], doubles(20)),
    "outer of fewer errors": lambda: kernels.outer(of(3, 2), doubles(2), of(2, 4), doubles(32)),
    "outer into fewer": lambda: kernels.outer(of(3, 2), doubles(2), of(3, 4), doubles(31)),
    "outer of errors that lie apart": lambda: kernels.outer(of(3, 2), doubles(2), of(3, 5)[:, :4], doubles(32)),
    "entries of no column": lambda: kernels.entries(of(3, 2), entry(1) + 2, of(3, 4), entry(1), *doubles(2, 1)),
    "entries of no row": lambda: kernels.entries(of(3, 2), entry(1), of(3, 4), entry(1) - 1, *doubles(2, 1)),
    "entries of fewer errors": lambda: kernels.entries(of(3, 2), entry(1), of(2, 4), entry(1), *doubles(2, 1)),
    "entries into fewer": lambda: kernels.entries(of(3, 2), entry(2), of(3, 4), entry(2), *doubles(2, 1)),
    "distances of shorter vectors": lambda: kernels.distances(*doubles(3, 8), doubles(7), Cuts([8], [False])),
    "compare shorter vectors": lambda: kernels.compare(doubles(8), doubles(7), Cuts([8], [False]), doubles(8)),
    "compare along fewer directions": lambda: kernels.compare(*doubles(2, 8), Cuts([8], [True]), doubles(7)),
}  # fmt: skip


@pytest.mark.parametrize("call", BESIDE.values(), ids=BESIDE)
def test_what_would_be_read_or_written_beside_an_array_is_refused(call):
    if kernels.library() is None:
        pytest.skip("the loops are not compiled")
    with pytest.raises((TypeError, ValueError), match=r"^a compiled loop (wants|cannot)"):
        call()


def test_what_fits_is_not_refused():
    """The same arguments with nothing wrong about them."""
    if kernels.library() is None:
        pytest.skip("the loops are not compiled")
    kernels.quantise(codes(), zeros(40, 8), 0, 40)
    kernels.screen(codes(group=GROUP), asked(), places(), 0, 3)
    kernels.products(codes(), asked(), made(), 0, 3)
    kernels.settle([places(most={5: 1}), places()], GROUP)
    kernels.adam(ADAM, 0, 3, *doubles(7, 3))
    kernels.project_all(MATRICES, [of(2, 3), None], doubles(20))
    sum_deviations(RUNS, zeros(3, 3), zeros(2, 3), *doubles(2, 2, 3))


@FORMS
@given(slots=st.integers(0, 70), d_in=st.integers(1, 40), d_out=st.integers(1, 20), seed=st.integers(0, 99))
def test_slots_of_several_calls(form, slots, d_in, d_out, seed):
    """Along directions, of all entries, and of a bias; to what was there before."""
    rng = np.random.default_rng(seed)
    directions, count = rng.standard_normal(d_in), 2
    keys, errors = (rng.standard_normal((count, slots, width)).astype(np.float32) for width in (d_in, d_out))
    places = SlotPlaces(size := d_out * DIRECTIONS + d_out + 1, entries := d_out * d_in + d_out + 5)
    places.add("whole", directions, d_out, 1, size - d_out, None, 2, entries - d_out)
    columns, rows = (rng.integers(0, own, 5).astype(np.int32) for own in (d_in, d_out))
    places.add("some", directions, d_out, 0, None, (columns, rows), 0)
    sums, single, sizes = np.ones(size), np.ones(entries), np.ones(entries)
    tensors = [torch.from_numpy(own) for own in (keys, errors)]
    with using(form):
        calls = [places.call(name, tensors[0][i], tensors[1][i]) for i, name in enumerate(("whole", "some"))]
        squares = kernels.add_slots(places, calls, sums, single, sizes)
    along = np.zeros((d_in, DIRECTIONS))
    along[np.arange(d_in), np.arange(d_in) % DIRECTIONS] = directions
    wide = [own.astype(np.float64) for own in (keys, errors)]
    wanted = [np.ones_like(own) for own in (sums, single, sizes)]
    for i, start in ((0, 1), (1, 0)):
        wanted[0][start : start + d_out * DIRECTIONS] += (wide[1][i].T @ (wide[0][i] @ along)).reshape(-1)
    wanted[0][size - d_out :] += wide[1][0].sum(0)
    for vector, (key, error) in zip(wanted[1:], (wide, [np.abs(own) for own in wide]), strict=True):
        vector[2 : 2 + d_out * d_in] += (error[0].T @ key[0]).reshape(-1)
        vector[entries - d_out :] += error[0].sum(0)
        vector[:5] += (error[1].T @ key[1])[rows, columns]
    for found, own in zip((sums, single, sizes), wanted, strict=True):
        np.testing.assert_allclose(found, own, rtol=1e-12, atol=1e-12 * (1 + slots))
    np.testing.assert_allclose(squares[:, 0], np.square(wide[1]).sum((1, 2)), rtol=1e-12)
    np.testing.assert_allclose(squares[:, 1], np.square(wide[0] @ along).sum((1, 2)), rtol=1e-12)
