"""The attention pattern: a polynomial, and its figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from dualform_studies.figures import LARGEST_PNG
from dualform_studies.memorisation.layer import principal_axes, raw_patterns
from dualform_studies.memorisation.pattern import polynomial_error
from dualform_studies.memorisation.polynomial import (
    Circle,
    OneDimensional,
    coefficients,
    count_harmonics,
    count_parameters,
    draw_level_lines,
    evaluate,
    head_coefficients,
    random_heads,
    raw_pattern,
)
from dualform_studies.memorisation.torus import depth, grid_angles, grid_of, name_places
from dualform_studies.memorisation.transformer import build_network
from tests.studies.memorisation import oracle


@pytest.fixture(scope="module")
def heads():
    return torch.stack([coefficients(*head) for head in random_heads(3, 3)]).numpy()


def test_a_circle_goes_through_its_three_points():
    points = np.random.default_rng(0).normal(size=(3, 9))
    circle = Circle.through(points)
    np.testing.assert_allclose(circle.at(0), points[0])
    np.testing.assert_allclose(circle.at(2 * np.pi), points[0])
    across, up = circle.targets @ (points[1:] - circle.centre).T
    for turn, point in zip(np.arctan2(up, across), points[1:], strict=True):
        np.testing.assert_allclose(circle.at(turn), point)
    radii = [np.linalg.norm(circle.at(turn) - circle.centre) for turn in np.linspace(0, 6, 7)]
    np.testing.assert_allclose(radii, radii[0])


def test_the_animation_moves_all_the_way_and_is_small(tmp_path, heads):
    path = draw_level_lines(tmp_path / "level-line.png", heads, frames=3)
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.n_frames == 3
        assert picture.info["loop"] == 0
        pictures = []
        for frame in range(3):
            picture.seek(frame)
            pictures.append(np.asarray(picture.convert("RGB")))
    assert len({one.tobytes() for one in pictures}) == 3
    assert path.stat().st_size <= LARGEST_PNG
    assert path.with_suffix(".svg").read_text().lstrip().startswith("<?xml")


def test_depth_counts_what_lies_around():
    inside = np.zeros((9, 9), np.bool_)
    inside[2:7, 0:9] = True
    found = depth(inside)
    assert found[4].tolist() == [1, 2, 3, 3, 3, 3, 3, 2, 1]
    assert found[:, 4].tolist() == [0, 0, 1, 2, 3, 2, 1, 0, 0]


def test_every_wide_region_is_named_inside_and_off_the_marks():
    classes = np.zeros((100, 100), np.int64)
    classes[:, 60:] = 3
    classes[40:42, :60] = 1
    free = np.ones_like(classes, np.bool_)
    free[:, 65:90] = False
    places = name_places(classes, free)
    assert {one for one, _, _ in places} == {0, 3}
    for one, row, column in places:
        assert (classes[row - 3 : row + 4, column - 3 : column + 4] == one).all()
        assert free[row - 3 : row + 4, column - 3 : column + 4].all()
    # Above and below the stripe.
    assert {row < 40 for one, row, _ in places if one == 0} == {True, False}


@pytest.fixture(scope="module")
def flat():
    """A surface that is a hundred times as wide as it is deep, and lies slanted."""
    drawn = np.random.default_rng(0).normal(size=(5, 5, 3)) * [1, 10, 0.1]
    slanted = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    return drawn @ slanted + [3, 0, -2]


def test_surfaces_are_normalised_along_their_own_axes(flat):
    points, reach = principal_axes(flat)
    np.testing.assert_allclose(np.abs(points).max(axis=(0, 1)), 1)
    np.testing.assert_allclose(points.mean(axis=(0, 1)), 0, atol=1e-12)
    centred = (flat - flat.mean(axis=(0, 1))).reshape(-1, 3)
    along = (points * reach).reshape(-1, 3)
    np.testing.assert_allclose(along @ along.T, centred @ centred.T, atol=1e-9)
    assert reach[0] > reach[1] > reach[2]
    np.testing.assert_array_equal(principal_axes(np.ones((4, 4, 3)))[0], np.zeros((4, 4, 3)))


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
def test_any_head_of_dimension_one_is_a_product(head, first: float, second: float):
    asks, keys = (one[0] - one[0].mean() for one in head[:2])
    assume(min(np.linalg.norm(asks), np.linalg.norm(keys)) > 0.01)
    tensors = tuple(map(torch.from_numpy, head))
    expected = pytest.approx(by_hand(*head, first, second), abs=1e-9)
    product = OneDimensional.of(*tensors)
    assert evaluate(coefficients(*tensors).numpy(), np.array(first), np.array(second)) == expected
    assert product(np.array(first), np.array(second)) == expected


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
    monkeypatch.setattr("dualform_studies.memorisation.pattern.head_coefficients", lambda network: wrong)
    assert polynomial_error(network, POINTS) == pytest.approx(1e-3, rel=1e-6)


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
