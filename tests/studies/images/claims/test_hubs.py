from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from dualform.answers.rank_correlation import rank_correlation
from dualform_studies.images.claims.attention import distinct, enough_for_distinct
from dualform_studies.images.claims.datapoints import Datapoints
from dualform_studies.images.claims.hub_claims import hub_claims
from dualform_studies.images.claims.hub_figures import draw_hub_distribution
from dualform_studies.images.claims.hubs import Hubs, LayerHubs, hubs_of, hubs_report
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART
from dualform_studies.pages.study_report import OftenFound

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


@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 9, allow_nan=False)), min_size=3, max_size=30).filter(
        lambda pairs: len({one for one, _ in pairs}) > 1 and len({other for _, other in pairs}) > 1
    )
)
def test_the_correlation_is_spearmans(pairs: list[tuple[int, float]]):
    one, other = np.array(pairs, dtype=np.float64).T
    assert rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic, abs=1e-12)


def test_what_does_not_vary_has_no_correlation():
    assert rank_correlation(np.ones(4), np.arange(4.0)) is None


def test_the_greatest_come_first_and_what_was_never_found_not_at_all():
    assert hubs([0, 3, 9, 3, 0, 1]).greatest().tolist() == [2, 1, 3, 5]


@pytest.mark.parametrize(
    ("surviving", "cause"),
    [(0, "length"), (2, "length"), (3, "both"), (7, "both"), (8, "direction"), (10, "direction")],
)
def test_what_makes_hubs_is_what_stays_without_length(surviving: int, cause: str):
    by_weight = np.zeros(30, dtype=np.int64)
    by_weight[:10] = 5
    by_cosine = np.zeros(30, dtype=np.int64)
    by_cosine[10 - surviving : 20 - surviving] = 5
    found = Hubs(by_weight, 10)
    one = LayerHubs("layer-0", found, found, Hubs(by_cosine, 10), np.arange(30.0, 0, -1))
    assert (one.surviving, one.cause) == (surviving, cause)
    short = LayerHubs("layer-0", found, found, Hubs(by_cosine, 10), np.arange(30.0))
    assert short.cause == ("neither" if cause == "length" else cause), "hubs by length have long keys"


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
    assert [image["sample"] for image in one["greatest"]] == [4, 9, 8, 12, 11]
    assert [image["sample"] for image in one["greatest_signed"]] == [11, 12]
    assert [image["weight"] for image in one["often"]] == [0.3, 0.1, 0.2, 0.05], "from 1/20 on"
    greatest = one["greatest"][0]
    assert (greatest["dataset"], greatest["sample"], greatest["label"]) == ("mnist", 4, 0)
    assert (greatest["weight"], greatest["cosine"], greatest["norm"]) == (0.3, 0.0, 3.0)
    assert greatest["longer_than"] == pytest.approx(2 / 6)
    assert (one["ever"], one["half"], one["surviving"]) == (5, 2, 0)
    assert (one["queries"], one["compared"]) == (100, 50)
    assert one["norm_correlation"] == pytest.approx(spearmanr([0, 9, 0, 0, 0, 8], np.arange(6)).statistic)


def test_all_rankings_on_one_axis_are_of_the_same_queries(tmp_path: Path, drawn: list[Figure]):
    own = layer([99, 99, 99, 99, 99, 99], signed=[0, 0, 15, 5, 10, 0], cosine=[0, 0, 0, 10, 0, 0])
    path = draw_hub_distribution(tmp_path / "hub-distribution.png", [own])
    assert path.read_bytes().startswith(b"\x89PNG")
    (panel,), (legend,) = drawn[0].get_axes(), drawn[0].legends
    title = next(text for text in drawn[0].texts if text.get_text())
    assert not legend.get_window_extent().overlaps(title.get_window_extent())
    weight, cosine = (line.get_data() for line in panel.lines)
    assert list(weight[0]) == [1, 2, 3]
    np.testing.assert_allclose(weight[1], [30, 20, 10])
    np.testing.assert_allclose(cosine[1], [20])
