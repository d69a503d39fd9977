"""What the layer adds up, against the network; and the colours it is shown in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualform_studies.memorisation.layer.maps import layer_maps, raw_patterns
from dualform_studies.memorisation.layer.vector_colours import VectorColours
from dualform_studies.memorisation.torus.maps import attention_maps, class_map, grid_of
from dualform_studies.memorisation.transformer.network import build_network
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


def test_raw_patterns_are_the_logits_of_attention(network):
    raw, to_first = raw_patterns(network, POINTS), attention_maps(network, POINTS)
    np.testing.assert_allclose(1 / (1 + np.exp(-raw)), to_first, atol=1e-12)


def test_colours_add_and_are_not_clipped(network):
    maps = layer_maps(network, POINTS)
    parts = maps.positions[1], maps.words[1]
    colours = VectorColours.over(*parts, sum(parts))
    seen = [colours.of(part) for part in (*parts, sum(parts))]
    np.testing.assert_allclose(seen[0] + seen[1] - 0.5, seen[2], atol=1e-12)
    assert all(one.min() >= 0 and one.max() <= 1 for one in seen)
    assert max(np.abs(one - 0.5).max() for one in seen) == pytest.approx(0.5)
    np.testing.assert_array_equal(VectorColours.over(np.zeros((2, 2, 3))).of(np.zeros(3)), [0.5, 0.5, 0.5])
