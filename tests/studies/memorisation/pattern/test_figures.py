"""What the figures of patterns are made of: level lines on their way, surfaces, names in regions and beside points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dualform_studies.memorisation.layer.surfaces import Normalised, View, quads, ribbons
from dualform_studies.memorisation.pattern.counts import random_heads
from dualform_studies.memorisation.pattern.level_line_figure import draw_level_lines
from dualform_studies.memorisation.pattern.level_lines import Circle, one_dimensional, through_heads
from dualform_studies.memorisation.pattern.polynomial import HARMONICS, TIED, coefficients
from dualform_studies.memorisation.torus.maps import grid_angles
from dualform_studies.memorisation.torus.point_labels import place_names
from dualform_studies.memorisation.torus.region_names import depth, name_places
from dualform_studies.memorisation.transformer.network import build_network
from dualform_studies.pages.frame import LARGEST_PNG


@pytest.fixture(scope="module")
def heads():
    return torch.stack([coefficients(*head) for head in random_heads(3, 3)]).numpy()


def test_a_circle_goes_through_its_three_points():
    points = np.random.default_rng(0).normal(size=(3, 9))
    circle = Circle.through(points)
    np.testing.assert_allclose(circle.at(0), points[0])
    np.testing.assert_allclose(circle.at(2 * np.pi), points[0])
    for point in points:
        np.testing.assert_allclose(circle.at(circle.angle_of(point)), point)
    radii = [np.linalg.norm(circle.at(turn) - circle.centre) for turn in np.linspace(0, 6, 7)]
    np.testing.assert_allclose(radii, radii[0])


def test_all_patterns_on_the_way_are_patterns(heads):
    names, circle = [harmonic.name for harmonic in HARMONICS], through_heads(heads)
    for turn in np.linspace(0, 2 * np.pi, 9):
        found = dict(zip(names, circle.at(turn), strict=True))
        for name, other in TIED.items():
            assert found[name] == pytest.approx(-found[other])
    angles = grid_angles(8)
    np.testing.assert_allclose(one_dimensional(0)(*angles), one_dimensional(2 * np.pi)(*angles), atol=1e-12)


def test_the_animation_moves_all_the_way_and_is_small(tmp_path, heads):
    path = draw_level_lines(tmp_path / "level-line.png", heads, frames=6)
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.n_frames == 6
        assert picture.info["loop"] == 0
        pictures = []
        for frame in range(6):
            picture.seek(frame)
            pictures.append(np.asarray(picture.convert("RGB")))
    assert len({one.tobytes() for one in pictures}) == 6
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


def test_names_cover_no_point_and_no_other_name():
    points = np.array([[0.0, 0.0], [6.0, 0.0], [3.0, 5.0], [60.0, 60.0]])
    taken = np.array([[-8.0, 0.0]])
    size, radius = np.array([10.0, 8.0]), 3.0
    centres = points + place_names(points, tuple(size), radius, taken)
    for at, centre in enumerate(centres):
        assert not any((np.abs(centre - other) < size - 1e-6).all() for other in np.delete(centres, at, axis=0))
        discs = np.concatenate([points, taken])
        assert not any((np.abs(centre - disc) < size / 2 + radius - 1e-6).all() for disc in discs)
    np.testing.assert_allclose(centres[3], [60 + 5 + 3, 60])


@pytest.fixture(scope="module")
def flat():
    """A surface that is a hundred times as wide as it is deep, and lies slanted."""
    drawn = np.random.default_rng(0).normal(size=(5, 5, 3)) * [1, 10, 0.1]
    slanted = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    return drawn @ slanted + [3, 0, -2]


def test_surfaces_are_normalised_along_their_own_axes(flat):
    own = Normalised.of(flat)
    np.testing.assert_allclose(np.abs(own.points).max(axis=(0, 1)), 1)
    np.testing.assert_allclose(own.points.mean(axis=(0, 1)), 0, atol=1e-12)
    np.testing.assert_allclose(own.points * own.reach @ own.axes + own.mean, flat, atol=1e-12)
    np.testing.assert_allclose(own.place(flat), own.points, atol=1e-12)
    assert own.reach[0] > own.reach[1] > own.reach[2]
    np.testing.assert_array_equal(Normalised.of(np.ones((4, 4, 3))).points, np.zeros((4, 4, 3)))


def test_surfaces_are_closed():
    surface = np.random.default_rng(0).normal(size=(5, 5, 3))
    faces = quads(surface).reshape(5, 5, 4, 3)
    np.testing.assert_array_equal(faces[4, 4], [surface[4, 4], surface[4, 0], surface[0, 0], surface[0, 4]])


def test_tokens_point_to_where_their_logits_grow(flat):
    own, rows = Normalised.of(flat), build_network(0).unembedding.weight.detach().double().numpy()
    directions = own.directions(rows)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
    streams = np.random.default_rng(0).normal(size=(7, 3))
    grown = (own.place(streams) - own.place(0 * streams)) @ directions.T
    logits = streams @ rows.T
    # In proportion to the logits, by a factor of each token's own.
    np.testing.assert_allclose(grown / grown[:1], logits / logits[:1])
    assert (grown * logits > 0).all()


def test_a_view_keeps_distances_and_looks_from_its_eye():
    view = View(turn=30, tilt=20)
    points = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(view.of(points) @ view.of(points).T, points @ points.T)
    # The third axis points up in the picture, and none points to the side.
    assert view.of(np.array([0.0, 0.0, 1.0]))[:2] == pytest.approx([0, np.cos(np.radians(20))])
    assert np.linalg.det(view.of(np.eye(3))) == pytest.approx(1)


def test_ribbons_are_as_wide_as_asked():
    line = np.array([[0.0, 0.0, 1.0], [3.0, 4.0, 2.0], [3.0, 4.0, 5.0]])
    pieces = ribbons(line, 0.5)
    assert pieces.shape == (2, 4, 3)
    assert np.linalg.norm(pieces[0, 0] - pieces[0, 3]) == pytest.approx(0.5)
    np.testing.assert_allclose(pieces[0, :, 2], [1, 2, 2, 1])
    # A piece straight towards the eye has no side to be wide to.
    np.testing.assert_allclose(pieces[1, 0, :2], pieces[1, 3, :2])
