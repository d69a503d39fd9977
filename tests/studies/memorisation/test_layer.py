"""The layer's output: maps and edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualform_studies.memorisation.layer import (
    EdgeMeasures,
    VectorColours,
    beyond_chance,
    border_length,
    borders,
    layer_maps,
    level_lines,
    measure_edges,
    ridges,
    shifted_as_near,
    steepness,
    strongest,
    within,
)
from dualform_studies.memorisation.torus import attention_maps, class_map, grid_of
from dualform_studies.memorisation.transformer import build_network
from tests.studies.memorisation import oracle

POINTS = 10


@pytest.fixture(scope="module")
def network():
    network = build_network(4)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)
    return network


def test_the_parts_add_up_to_the_networks_own_layer(network):
    maps = layer_maps(network, POINTS)
    exact = build_network(0).double()
    exact.load_state_dict(network.state_dict())
    live = exact.attended(grid_of(POINTS)).detach().numpy().reshape(POINTS, POINTS, 3)
    np.testing.assert_allclose(maps.layer, live, atol=1e-12)
    expected = class_map(network, POINTS)
    np.testing.assert_array_equal(maps.classes().token, expected.token)
    np.testing.assert_allclose(maps.classes().probability, expected.probability, atol=1e-12)


@pytest.mark.parametrize("pattern", ["softmax", "hardmax", "constant"])
def test_each_part_by_hand(network, pattern):
    w, maps = oracle.weights_of(network), layer_maps(network, POINTS, pattern)
    to_first = attention_maps(network, POINTS)
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
    maps = layer_maps(network, POINTS)
    parts = maps.positions[1], maps.words[1]
    colours = VectorColours.over(*parts, sum(parts))
    seen = [colours.of(part) for part in (*parts, sum(parts))]
    np.testing.assert_allclose(seen[0] + seen[1] - 0.5, seen[2], atol=1e-12)
    assert all(one.min() >= 0 and one.max() <= 1 for one in seen)
    assert max(np.abs(one - 0.5).max() for one in seen) == pytest.approx(0.5)
    np.testing.assert_array_equal(VectorColours.over(np.zeros((2, 2, 3))).of(np.zeros(3)), [0.5, 0.5, 0.5])


SIDE = 36


@pytest.fixture(scope="module")
def stripes():
    """Two regions, parted by the columns 9 and 27."""
    return np.tile((np.arange(SIDE) >= 10) & (np.arange(SIDE) < 28), (SIDE, 1))


def test_borders_go_around(stripes):
    assert sorted(set(np.nonzero(borders(stripes))[1])) == [9, 27]
    assert border_length(stripes) == 2 * SIDE
    shifted = np.roll(stripes, 26, axis=1)
    assert sorted(set(np.nonzero(borders(shifted))[1])) == [17, 35]
    assert border_length(shifted) == 2 * SIDE
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


def test_measures_are_those_of_the_maps(monkeypatch: pytest.MonkeyPatch):
    network = build_network(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)
    found, lines = measure_edges(network, SIDE), level_lines(network, SIDE).any(axis=0)
    hard, soft, plain = (layer_maps(network, SIDE, pattern) for pattern in ("hardmax", "softmax", "constant"))
    # Where hardmax changes, the maps of positions have edges and nothing else has.
    jumps = np.any([borders((one * 1e6).round().astype(int).sum(axis=-1)) for one in hard.positions], axis=0)
    np.testing.assert_array_equal(jumps, lines)
    near = within(lines)
    edges = strongest(steepness(soft.heads.sum(axis=0)))
    assert found.explained == pytest.approx((near[edges].mean() - near.mean()) / (1 - near.mean()))
    lengths = [border_length((one.layer @ one.unembedding.T).argmax(axis=-1)) for one in (plain, soft)]
    assert found.shortened == pytest.approx(1 - lengths[0] / lengths[1])
