"""The attention pattern as a polynomial, the layer's output, and their claims and figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from dualform_studies.figures import LARGEST_PNG
from dualform_studies.memorisation.attention import (
    EdgeMeasures,
    beyond_chance,
    borders,
    circle_through,
    coefficients,
    colours_of,
    count_harmonics,
    count_parameters,
    draw_level_lines,
    edge_claims,
    evaluate,
    full_scale,
    head_coefficients,
    measure_edges,
    polynomial_claims,
    polynomial_error,
    principal_axes,
    product_pattern,
    random_heads,
    raw_pattern,
    ridges,
    shifted_as_near,
    steepness,
    strongest,
    within,
)
from dualform_studies.memorisation.torus import AXES, exact_copy, grid_angles, grid_of, torus_maps
from dualform_studies.memorisation.transformer import build_network
from tests.studies.memorisation import oracle

POINTS = 12


def test_a_circle_goes_through_its_three_points():
    points = np.random.default_rng(0).normal(size=(3, 9))
    centre, targets = circle_through(points)
    np.testing.assert_allclose(centre + targets[0], points[0])
    across, up = targets @ (points[1:] - centre).T
    for turn, point in zip(np.arctan2(up, across), points[1:], strict=True):
        np.testing.assert_allclose(centre + [np.cos(turn), np.sin(turn)] @ targets, point)
    radii = [np.linalg.norm([np.cos(turn), np.sin(turn)] @ targets) for turn in np.linspace(0, 6, 7)]
    np.testing.assert_allclose(radii, radii[0])


def test_the_animation_moves_all_the_way_and_is_small(tmp_path):
    heads = torch.stack([coefficients(*head) for head in random_heads(3, 3)]).numpy()
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


def test_surfaces_are_normalised_along_their_own_axes():
    """Of a surface that is a hundred times as wide as it is deep, and lies slanted."""
    drawn = np.random.default_rng(0).normal(size=(5, 5, 3)) * [1, 10, 0.1]
    flat = drawn @ np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0] + [3, 0, -2]
    points, reach = principal_axes(flat)
    np.testing.assert_allclose(np.abs(points).max(axis=(0, 1)), 1)
    np.testing.assert_allclose(points.mean(axis=(0, 1)), 0, atol=1e-12)
    centred = (flat - flat.mean(axis=(0, 1))).reshape(-1, 3)
    along = (points * reach).reshape(-1, 3)
    np.testing.assert_allclose(along @ along.T, centred @ centred.T, atol=1e-9)
    assert reach[0] > reach[1] > reach[2]
    np.testing.assert_array_equal(principal_axes(np.ones((4, 4, 3)))[0], np.zeros((4, 4, 3)))


NUMBERS = st.floats(-3, 3, width=32)


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
    expected = pytest.approx(by_hand(*head, first, second), abs=1e-9)
    angles = np.array(first), np.array(second)
    assert evaluate(coefficients(*map(torch.from_numpy, head)).numpy(), *angles) == expected
    (query,), (key,), positions = head
    asked, keys = np.sqrt(3) * AXES.numpy() @ query, np.sqrt(3) * AXES.numpy() @ key
    length, key_length = np.linalg.norm(asked), np.linalg.norm(keys)
    parameters = (
        np.arctan2(asked[1], asked[0]), query @ positions[:, 1] / length,
        np.arctan2(keys[1], keys[0]), key @ (positions[:, 0] - positions[:, 1]) / key_length,
    )  # fmt: skip
    assert length * key_length * product_pattern(*angles, *parameters) == expected


@pytest.mark.parametrize("seed", [0, 5])
def test_the_networks_own_attention_is_the_polynomials_sigmoid(seed: int):
    network = oracle.strong_network(seed)
    assert polynomial_error(network, POINTS) < 1e-12
    raw = evaluate(head_coefficients(network), *grid_angles(POINTS))
    np.testing.assert_allclose(raw, torus_maps(network, POINTS).raw, atol=1e-11)
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
    spread = np.ptp(torus_maps(network, POINTS).raw[1])
    wrong[1, 0] += 1e-3 * spread
    monkeypatch.setattr("dualform_studies.memorisation.attention.head_coefficients", lambda network: wrong)
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


@pytest.fixture(scope="module")
def network():
    return oracle.strong_network(4)


def test_the_parts_add_up_to_the_networks_own_layer(network):
    maps = torus_maps(network, POINTS)
    exact = exact_copy(network)
    live = exact.attended(grid_of(POINTS)).detach()
    np.testing.assert_allclose(maps.layer, live.reshape(POINTS, POINTS, 3), atol=1e-12)
    likely, token = exact.unembedding(live).softmax(dim=-1).detach().max(dim=-1)
    np.testing.assert_array_equal(maps.classes().token, token.reshape(POINTS, POINTS))
    np.testing.assert_allclose(maps.classes().probability, likely.reshape(POINTS, POINTS), atol=1e-12)


@pytest.mark.parametrize("pattern", ["softmax", "hardmax", "constant"])
def test_each_part_by_hand(network, pattern):
    w, maps = oracle.weights_of(network), torus_maps(network, POINTS, pattern)
    to_first = torus_maps(network, POINTS).attention
    shown = {
        "softmax": to_first,
        "hardmax": (to_first > 0.5).astype(float),
        "constant": np.broadcast_to(to_first.mean(axis=(1, 2), keepdims=True), to_first.shape),
    }[pattern]
    points = grid_of(POINTS).view(POINTS, POINTS, 2, 3).numpy()
    for row, column in [(0, 0), (3, 8), (9, 4)]:
        first, second = points[row, column]
        for head in range(3):
            a = shown[head, row, column]
            positions = a * w["position"][:, 0] + (1 - a) * w["position"][:, 1]
            words = a * first + (1 - a) * second
            rows = slice(3 * head, 3 * head + 3)
            np.testing.assert_allclose(maps.positions[head, row, column], positions, atol=1e-12)
            np.testing.assert_allclose(maps.words[head, row, column], words, atol=1e-12)
            spoken = w["output"][:, rows] @ w["value"][rows] @ (positions + words)
            np.testing.assert_allclose(maps.heads[head, row, column], spoken, atol=1e-11)


def test_colours_add_and_are_not_clipped(network):
    maps = torus_maps(network, POINTS)
    parts = maps.positions[1], maps.words[1]
    scale = full_scale(*parts, sum(parts))
    seen = [colours_of(part, scale) for part in (*parts, sum(parts))]
    np.testing.assert_allclose(seen[0] + seen[1] - 0.5, seen[2], atol=1e-12)
    assert all(one.min() >= 0 and one.max() <= 1 for one in seen)
    assert max(np.abs(one - 0.5).max() for one in seen) == pytest.approx(0.5)
    np.testing.assert_array_equal(colours_of(np.zeros(3), full_scale(np.zeros((2, 2, 3)))), [0.5, 0.5, 0.5])


SIDE = 36


def test_borders_go_around():
    """Of two regions, parted by the columns 9 and 27."""
    stripes = np.tile((np.arange(SIDE) >= 10) & (np.arange(SIDE) < 28), (SIDE, 1))
    assert sorted(set(np.nonzero(borders(stripes))[2])) == [9, 27]
    assert borders(stripes).sum() == 2 * SIDE
    shifted = np.roll(stripes, 26, axis=1)
    assert sorted(set(np.nonzero(borders(shifted))[2])) == [17, 35]
    assert borders(shifted).sum() == 2 * SIDE
    assert not borders(np.zeros((5, 5), np.int64)).any()


def test_what_is_near_is_a_disc_that_goes_around():
    point = np.zeros((SIDE, SIDE), np.bool_)
    point[0, 35] = True
    near = within(point, 20)
    at = np.argwhere(near)
    apart = np.abs(at - [0, 35])
    apart = np.minimum(apart, SIDE - apart)
    assert len(at) == 13
    assert (10 * np.linalg.norm(apart, axis=1)).max() == pytest.approx(20)


def test_steepness_is_the_gradient_of_a_smooth_map():
    angles = (np.arange(360) + 0.5) * 2 * np.pi / 360
    second, first = np.meshgrid(angles, angles, indexing="ij")
    found = steepness(np.stack([np.sin(first), 2 * np.cos(second), 0 * first], axis=-1))
    expected = np.hypot(np.cos(first), 2 * np.sin(second)) * 2 * np.pi / 360
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert strongest(found).mean() == pytest.approx(0.1, abs=0.002)
    assert found[strongest(found)].min() >= found[~strongest(found)].max()


def test_beyond_chance_is_nought_for_random_points_and_one_for_all():
    rng = np.random.default_rng(0)
    near = rng.random((200, 200)) < 0.3
    assert beyond_chance(near, near) == pytest.approx(1)
    assert beyond_chance(rng.random((200, 200)) < 0.5, near) == pytest.approx(0, abs=0.02)
    assert beyond_chance(~near, near) < 0


def test_what_is_not_there_speaks_for_nothing():
    some, none, every = (np.arange(9).reshape(3, 3) < many for many in (4, 0, 9))
    for edges, near in ((none, some), (some, none), (some, every)):
        assert beyond_chance(edges, near) is None
        assert shifted_as_near(edges, near) is None


def test_shifts_are_counted_one_by_one():
    rng = np.random.default_rng(1)
    edges, near = rng.random((7, 7)) < 0.2, rng.random((7, 7)) < 0.4
    shifted = [
        (edges & np.roll(near, (up, across), axis=(0, 1))).sum() >= (edges & near).sum()
        for up in range(7)
        for across in range(7)
    ]
    assert shifted_as_near(edges, near) == pytest.approx(np.mean(shifted))
    assert shifted_as_near(near, near) == pytest.approx(1 / 49)


@pytest.mark.parametrize("turned", [False, True])
def test_ridges_are_where_a_step_is_steepest_however_faint(turned: bool):
    """A strong step and a faint one, both smooth, and a diagonal one."""
    column = np.arange(SIDE)
    height = np.tanh((column - 9) / 2) + 0.01 * np.tanh((column - 27) / 2)
    steps = np.tile(height, (SIDE, 1))[..., None] * [1.0, -2.0, 0.5]
    found = ridges(steps.swapaxes(0, 1) if turned else steps)
    found = found.T if turned else found
    assert {9, 27} <= set(np.flatnonzero(found.all(axis=0)))
    assert not found[:, [5, 7, 11, 14, 24, 30]].any()
    assert not strongest(steepness(steps))[:, 26:29].any()
    assert not ridges(np.ones((5, 5, 3))).any()
    second, first = np.indices((SIDE, SIDE))
    diagonal = ridges(np.sin((first + second) * 2 * np.pi / SIDE)[..., None])
    # Two sines' worth of steepest lines, in steps of a diagonal no thinner than three points.
    off = np.abs((first + second + SIDE // 4) % (SIDE // 2) - SIDE // 4)
    assert diagonal[off == 0].all()
    assert not diagonal[off > 1].any()


def test_measures_of_a_network_whose_heads_do_nothing():
    network = build_network(1)
    with torch.no_grad():
        network.output.weight.zero_()
    found = measure_edges(network, SIDE)
    # The patterns are not spoken of, so holding them still changes no frontier.
    assert found.shortened == 0
    # The sum has no edge, and no head's own map has one.
    assert found.explained is None
    assert found.covered is None


def test_a_network_without_level_lines_or_frontiers_is_left_out():
    network = build_network(1)
    with torch.no_grad():
        network.query.weight.zero_()
        network.unembedding.weight[1:].zero_()
        network.unembedding.weight[0] = 0
    found = measure_edges(network, SIDE)
    assert found == EdgeMeasures(None, None, None, None, None)


def test_measures_are_those_of_the_maps():
    network = oracle.strong_network(1)
    found = measure_edges(network, SIDE)
    hard, soft, plain = (torus_maps(network, SIDE, pattern) for pattern in ("hardmax", "softmax", "constant"))
    # Where hardmax changes, the maps of positions have edges and nothing else has.
    jumps = np.any([borders((one * 1e6).round().astype(int).sum(axis=-1)) for one in hard.positions], axis=(0, 1))
    lines = np.any([borders(one > 0) for one in soft.raw], axis=(0, 1))
    np.testing.assert_array_equal(jumps, lines)
    near = within(lines)
    edges = strongest(steepness(soft.heads.sum(axis=0)))
    assert found.explained == pytest.approx((near[edges].mean() - near.mean()) / (1 - near.mean()))
    lengths = [borders((one.layer @ one.unembedding.T).argmax(axis=-1)).sum() for one in (plain, soft)]
    assert found.shortened == pytest.approx(1 - lengths[0] / lengths[1])


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
