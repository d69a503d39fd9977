"""Hubs and dates, on made-up rankings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dualform_studies.claims import FAILS, HOLDS, IN_PART
from dualform_studies.documents import OftenFound
from dualform_studies.images.attention import Datapoints, distinct, enough_for_distinct
from dualform_studies.images.dates import Dates, date_claims
from dualform_studies.images.hubs import Hubs, LayerHubs, hub_claims, hubs_of, hubs_report

SIX_IMAGES = Datapoints(
    np.array(["fashion-mnist", "mnist", "mnist", "mnist", "fashion-mnist", "mnist"], dtype=object),
    np.array([0, 0, 7, 1, 9, 2]),
    np.array([4, 4, 8, 9, 11, 12]),
    np.arange(6),
)
"""Of an image each; numbered by dataset and row: the two of Fashion-MNIST first."""


def hubs(counts: list[int], queries: int = 100) -> Hubs:
    return Hubs(np.array(counts), queries)


def layer(
    counts: list[int], name: str = "layer-0", signed: list[int] | None = None, cosine: list[int] | None = None
) -> LayerHubs:
    return LayerHubs(name, hubs(counts), hubs(signed or counts, 50), hubs(cosine or counts, 50), np.arange(1.0, 7.0))


def test_images_are_numbered_by_dataset_and_row():
    visited = Datapoints(
        np.array(["mnist", "mnist", "fashion-mnist", "mnist"], dtype=object),
        np.array([3, 1, 0, 3]),
        np.array([7, 2, 7, 7]),
        np.arange(4),
    )
    assert visited.images.tolist() == [2, 1, 0, 2]
    assert visited.visits.tolist() == [1, 1, 2]
    assert visited.first_slots.tolist() == [2, 1, 0]
    assert visited.mean_by_image(np.array([1.0, 2.0, 3.0, 5.0])).tolist() == [3.0, 2.0, 3.0]
    assert visited.image_datasets.tolist() == ["fashion-mnist", "mnist", "mnist"]
    assert visited.image_labels.tolist() == [0, 1, 3]


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=20))
def test_an_image_counts_once_a_query(best: list[list[int]]):
    found = hubs_of(np.array(best), 6)
    assert found.counts.tolist() == [sum(image in row for row in best) for image in range(6)]
    assert found.queries == len(best)


def test_the_first_images_that_differ():
    assert distinct(np.array([[4, 4, 2, 4, 1, 0], [3, 3, 3, 3, 3, 3]])).tolist() == [[4, 2, 1], [3, 3, 3]]


def test_so_many_slots_surely_hold_three_images():
    visits = [4, 4, 2, 1]
    images = np.repeat(np.arange(4), visits)
    points = Datapoints(np.full(11, "mnist", dtype=object), images, images, np.arange(11))
    assert enough_for_distinct(points) == 9
    worst = np.array([[0] * 4 + [1] * 4 + [2]])
    assert len(set(distinct(worst)[0].tolist())) == 3


def test_the_greatest_come_first_and_what_was_never_found_not_at_all():
    assert hubs([0, 3, 9, 3, 0, 1]).greatest().tolist() == [2, 1, 3, 5]


ZERO, SEVEN, SHIRT = ("mnist", 4, 0), ("mnist", 8, 7), ("fashion-mnist", 4, 0)


def setting(**layers: dict[tuple[str, int, int], float]) -> dict[str, list[OftenFound]]:
    """By layer, the images that are often found and their shares."""
    return {
        name.replace("_", "-"): [OftenFound(*image, share) for image, share in own.items()]
        for name, own in layers.items()
    }


@pytest.mark.parametrize(
    ("settings", "often", "zero"),
    [
        ([setting(layer_0={ZERO: 0.06}), setting(layer_1={ZERO: 0.05, SEVEN: 0.9})], HOLDS, HOLDS),
        ([setting(layer_0={ZERO: 0.2, SEVEN: 0.1}), setting(layer_0={SEVEN: 0.05})], HOLDS, IN_PART),
        ([setting(layer_0={SHIRT: 0.2}, layer_1={SHIRT: 0.2}), setting(layer_0={})], IN_PART, FAILS),
        ([setting(layer_0={}), setting(layer_0={})], FAILS, FAILS),
    ],
)
def test_one_image_is_a_hub_in_two_studies(settings: list[dict[str, list[OftenFound]]], often: str, zero: str):
    first, second = hub_claims(dict(zip(("single", "joint"), settings, strict=True)))
    assert (first.verdict, second.verdict) == (often, zero)


def test_the_claim_names_each_setting_and_its_layer():
    settings = {"single": setting(layer_0={ZERO: 0.06}, layer_1={ZERO: 0.08}), "joint": setting(layer_2={ZERO: 0.051})}
    first, _ = hub_claims(settings)
    assert "mnist image 4, class 0: 8.0 % in single (layer-1), 5.1 % in joint (layer-2)" in first.ours
    assert hub_claims({"single": settings["single"]}) == [], "layers of one study are no different settings"


def test_the_report_tells_of_the_greatest_and_of_those_often_found():
    own = layer([0, 4, 30, 10, 20, 5], signed=[0, 9, 0, 0, 0, 8], cosine=[0, 0, 0, 10, 0, 0])
    one = hubs_report([own], SIX_IMAGES)["layer-0"]
    assert [(image["sample"], image["weight"]) for image in one["by weight"]] == [(11, 0.18), (12, 0.16)]
    assert [(image["sample"], image["weight"]) for image in one["by cosine"]] == [(8, 0.2)]
    assert [image["weight"] for image in one["often"]] == [0.3, 0.1, 0.2, 0.05], "from 1/20 on"
    greatest = one["often"][0]
    assert (greatest["dataset"], greatest["sample"], greatest["label"], greatest["norm"]) == ("mnist", 4, 0, 3.0)
    assert (one["queries"], one["compared"]) == (100, 50)


def dates(early: int, late: int, count: int = 100, queries: int = 3) -> Dates:
    """Of `count` datapoints so many of the first and of the last third."""
    steps = [*np.full(early, 0), *np.full(count - early - late, 15), *np.full(late, 29)]
    return Dates(np.tile(np.array(steps), (queries, 1)), 30)


def by_layer(*behind: Dates) -> dict[str, Dates]:
    """Behind the first layer, of which nothing is claimed."""
    return {f"layer-{at}": one for at, one in enumerate([dates(0, 100), *behind])}


def test_thirds_of_a_training():
    one = Dates(np.array([[0, 9, 10, 29], [19, 20, 21, 22]]), 30)
    assert one.thirds == [0.25, 0.25, 0.5]


@pytest.mark.parametrize(("late", "verdicts"), [((37, 20), HOLDS), ((39, 20), IN_PART), ((39, 50), FAILS)])
def test_recent_datapoints_are_preferred_from_a_share_on(late: tuple[int, int], verdicts: str):
    assert date_claims(by_layer(*(dates(30, share) for share in late)))[0].verdict == verdicts


@pytest.mark.parametrize(
    ("thirds", "verdicts"),
    [
        (((66, 17), (17, 66)), HOLDS),
        (((66, 17), (66, 16)), IN_PART),
        (((34, 0), (66, 16)), IN_PART),
        (((67, 16), (33, 33)), FAILS),
        (((33, 67), (33, 33)), FAILS),
        (((16, 16), (33, 33)), FAILS),
    ],
)
def test_datapoints_are_spread_out_if_no_third_goes_without(thirds: tuple[tuple[int, int], ...], verdicts: str):
    claim = date_claims(by_layer(*(dates(*own) for own in thirds)))[1]
    assert claim.verdict == verdicts
    first, last = thirds[0]
    assert f"{first}.0 / {100 - first - last}.0 / {last}.0 % at layer-1" in claim.ours


def test_the_distance_to_an_even_spread_is_kolmogorovs():
    steps = np.random.default_rng(2).integers(0, 30, (4, 25))
    expected = [max(abs(np.mean(row <= step) - (step + 1) / 30) for step in range(30)) for row in steps]
    np.testing.assert_allclose(Dates(steps, 30).distance(), expected)
    assert Dates(np.tile(np.arange(30), (2, 1)), 30).distance() == pytest.approx([0, 0])
