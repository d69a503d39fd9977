"""The polynomial of an attention pattern, against the network and against heads worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from dualform_studies.memorisation.layer.maps import raw_patterns
from dualform_studies.memorisation.pattern.claims import polynomial_error
from dualform_studies.memorisation.pattern.counts import count_harmonics, count_parameters, random_heads, raw_pattern
from dualform_studies.memorisation.pattern.polynomial import (
    HARMONICS,
    TIED,
    OneDimensional,
    coefficients,
    evaluate,
    head_coefficients,
)
from dualform_studies.memorisation.torus.maps import grid_angles, grid_of
from dualform_studies.memorisation.transformer.network import build_network
from tests.studies.memorisation import oracle

NUMBERS = st.floats(-3, 3, width=32)
POINTS = 12


def drawn_head(dimension: int):
    shapes = ((dimension, 3), (dimension, 3), (3, 2))
    return st.tuples(*(arrays(np.float64, shape, elements=NUMBERS) for shape in shapes))


def by_hand(query: np.ndarray, key: np.ndarray, positions: np.ndarray, first: float, second: float) -> float:
    """The difference of the two logits: plain NumPy, with a circle of its own."""
    axes = np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])
    points = [np.sqrt(3) * (np.cos(t) * axes[0] + np.sin(t) * axes[1]) for t in (first, second)]
    x = [point + positions[:, place] for place, point in enumerate(points)]
    asked = query @ x[1]
    return float(asked @ (key @ x[0]) - asked @ (key @ x[1])) / np.sqrt(len(query))


@given(drawn_head(3), st.floats(0, 7), st.floats(0, 7))
@settings(deadline=None)
def test_any_head_of_dimension_three_is_its_polynomial(head, first: float, second: float):
    found = evaluate(coefficients(*map(torch.from_numpy, head)).numpy(), np.array(first), np.array(second))
    assert found == pytest.approx(by_hand(*head, first, second), abs=1e-10)


@given(drawn_head(1), st.floats(0, 7), st.floats(0, 7))
@settings(deadline=None)
def test_any_head_of_dimension_one_is_the_product_and_its_seven_terms(head, first: float, second: float):
    asks, keys = (one[0] - one[0].mean() for one in head[:2])
    assume(min(np.linalg.norm(asks), np.linalg.norm(keys)) > 0.01)
    tensors = tuple(map(torch.from_numpy, head))
    expected = pytest.approx(by_hand(*head, first, second), abs=1e-9)
    product = OneDimensional.of(*tensors)
    assert evaluate(coefficients(*tensors).numpy(), np.array(first), np.array(second)) == expected
    assert product(np.array(first), np.array(second)) == expected
    terms = product.terms()
    assert sum(a * np.cos(m * first + n * second - p) for a, m, n, p in terms) == expected
    assert len(terms) == 7


@pytest.mark.parametrize("seed", [0, 5])
def test_the_networks_own_attention_is_the_polynomials_sigmoid(seed: int):
    network = build_network(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)
    assert polynomial_error(network, POINTS) < 1e-12
    raw = evaluate(head_coefficients(network), *grid_angles(POINTS))
    np.testing.assert_allclose(raw, raw_patterns(network, POINTS), atol=1e-11)
    w, (first, second) = oracle.weights_of(network), grid_angles(POINTS)
    for head in range(3):
        rows = slice(3 * head, 3 * head + 3)
        expected = by_hand(w["query"][rows], w["key"][rows], w["position"], first[4, 7], second[4, 7])
        assert raw[head, 4, 7] == pytest.approx(expected)


def test_an_error_in_the_polynomial_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    network = build_network(0)
    with torch.no_grad():
        # Attention of 0 or 1 nearly everywhere: its sigmoid would hide an error of a nat.
        for name in ("query", "key", "position"):
            getattr(network, name).weight.mul_(20)
    wrong = head_coefficients(network)
    spread = np.ptp(raw_patterns(network, POINTS)[1])
    wrong[1, 0] += 1e-3 * spread
    monkeypatch.setattr("dualform_studies.memorisation.pattern.claims.head_coefficients", lambda network: wrong)
    assert polynomial_error(network, POINTS) == pytest.approx(1e-3, rel=1e-6)


def test_two_harmonics_are_tied():
    names = [harmonic.name for harmonic in HARMONICS]
    for head in random_heads(3, 5):
        found = dict(zip(names, coefficients(*head).tolist(), strict=True))
        for name, other in TIED.items():
            assert found[name] == -found[other] != 0


@pytest.mark.parametrize(("dimension", "free"), [(1, 5), (2, 8), (3, 9), (4, 9)])
def test_harmonics_and_parameters_of_random_heads(dimension: int, free: int):
    for head in random_heads(dimension, 5):
        assert count_harmonics(head) == 11
        assert count_parameters(head) == free


def test_harmonics_that_are_not_there_are_not_counted():
    query, key, positions = next(random_heads(3, 1))
    # Without positions only products of the words are left: those of t1 and t2, of 2 t2, and the constant.
    assert count_harmonics((query, key, 0 * positions)) == 7
    # A query that does not see the circle sees the position alone: the sines and cosines of either angle.
    outside = torch.ones(3, 3, dtype=torch.float64)
    assert count_harmonics((outside, key, positions)) == 5


def test_loose_heads_have_the_raw_pattern_that_is_worked_out_by_hand():
    head = next(random_heads(2, 1))
    raw, (first, second) = raw_pattern(head, grid_of(POINTS)).view(POINTS, POINTS), grid_angles(POINTS)
    arrays_of = [one.numpy() for one in head]
    assert raw[3, 9].item() == pytest.approx(by_hand(*arrays_of, first[3, 9], second[3, 9]))
