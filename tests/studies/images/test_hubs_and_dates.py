"""Hubs and dates, on made-up rankings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from dualform.answers.influence import rank_correlation
from dualform_studies.claims import FAILS, HOLDS, IN_PART
from dualform_studies.documents import OftenFound
from dualform_studies.images.attention import Datapoints, distinct, enough_for_distinct
from dualform_studies.images.datasets import digits
from dualform_studies.images.dates import Dates, LayerDates, Period, by_step, date_claims, dates_report, draw_dates
from dualform_studies.images.hubs import Hubs, LayerHubs, draw_hub_distribution, hub_claims, hubs_of, hubs_report
from dualform_studies.images.query_figure import Query
from dualform_studies.images.survey import show_dates
from dualform_studies.report import Page, Table

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


PERIOD = Period(30, 60, "step >= 30")


def dates(early: int, late: int, count: int = 100, queries: int = 3) -> Dates:
    """Of `count` datapoints so many of the first and of the last third."""
    steps = [*np.full(early, 30), *np.full(count - early - late, 45), *np.full(late, 59)]
    return Dates(np.tile(np.array(steps), (queries, 1)), PERIOD)


def dates_layer(
    product: Dates, cosine: Dates | None = None, name: str = "layer-1", lengths: tuple[float, ...] = (1, 1, 1)
) -> LayerDates:
    """`lengths` are those of the keys of each third."""
    norms = np.repeat(np.array(lengths, dtype=np.float64), 10)
    return LayerDates(name, product, product, cosine or product, norms, norms)


def test_thirds_of_a_period():
    one = Dates(np.array([[30, 39, 40, 59], [49, 50, 51, 52]]), PERIOD)
    assert [one.third(number).tolist() for number in range(3)] == [[0.5, 0.0], [0.25, 0.25], [0.25, 0.75]]
    assert one.excess() == pytest.approx(0.25 - 1 / 3)


@pytest.mark.parametrize(("late", "verdicts"), [((37, 20), HOLDS), ((39, 20), IN_PART), ((39, 50), FAILS)])
def test_recent_datapoints_are_preferred_from_a_share_on(late: tuple[int, int], verdicts: str):
    behind = [dates_layer(dates(30, share), name=f"layer-{at}") for at, share in enumerate(late, start=1)]
    assert date_claims([dates_layer(dates(0, 100), name="layer-0"), *behind])[0].verdict == verdicts


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
    behind = [dates_layer(dates(*own), name=f"layer-{at}") for at, own in enumerate(thirds, start=1)]
    claim = date_claims([dates_layer(dates(0, 100), name="layer-0"), *behind])[1]
    assert claim.verdict == verdicts
    first, last = thirds[0]
    assert f"{first}.0 / {100 - first - last}.0 / {last}.0 % at layer-1" in claim.ours


@pytest.mark.parametrize(
    ("early", "cosine", "lengths", "cause"),
    [
        (37, 90, (2, 1, 1), "none"),
        (60, 46, (2, 1, 1), "length"),
        (60, 20, (2, 1, 1), "length"),
        (60, 46, (1, 1, 1), "part"),
        (60, 50, (2, 1, 1), "part"),
        (60, 50, (1, 2, 2), "other"),
        (60, 70, (2, 1, 1), "other"),
    ],
)
def test_length_is_the_cause_if_early_keys_are_long_and_the_excess_halves_without_it(
    early: int, cosine: int, lengths: tuple[float, ...], cause: str
):
    assert dates_layer(dates(early, 10), dates(cosine, 10), lengths=lengths).cause == cause


def test_the_distance_to_an_even_spread_is_kolmogorovs():
    steps = np.random.default_rng(2).integers(30, 60, (4, 25))
    expected = [max(abs(np.mean(row <= step) - (step - 29) / 30) for step in range(30, 60)) for row in steps]
    np.testing.assert_allclose(Dates(steps, PERIOD).distance(), expected)
    assert Dates(np.tile(np.arange(30, 60), (2, 1)), PERIOD).distance() == pytest.approx([0, 0])


def test_the_table_names_the_part_of_the_training_that_is_dated(tmp_path: Path):
    own = Period(30, 60, "step >= 30", "the training on mnist")
    one = LayerDates("layer-1", *[Dates(dates(20, 20).steps, own)] * 3, np.ones(30), np.ones(30))
    page = Page(tmp_path, "Dates")
    (tmp_path / "report").mkdir()
    for kind in ("png", "svg"):
        (tmp_path / "report" / f"dates-mnist.{kind}").touch()
    show_dates(page, {"mnist": dates_report([one])})
    (table,) = (item for item in page.items if isinstance(item, Table))
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["datapoints of"] == "the training on mnist"
    assert row["distance to even"] == f"{one.product.distance()[0]:.3f}"


def test_means_by_step():
    steps = np.array([30, 30, 32])
    means, greatest = by_step(np.array([1.0, 3.0, 5.0]), steps, PERIOD)
    assert means[:3].tolist()[::2] == [2.0, 5.0]
    assert greatest[:3].tolist()[::2] == [3.0, 5.0]
    assert np.isnan(means[1])
    assert np.isnan(greatest[1])
    assert len(means) == len(greatest) == 30


def test_the_report_says_what_is_known_of_each_third():
    lengths = np.r_[np.ones(10), np.full(20, np.nan)]
    one = LayerDates("layer-1", dates(1, 2), dates(30, 40), dates(50, 10), lengths, 2 * lengths)
    told = dates_report([one])["layer-1"]
    assert told["product"]["mean"] == pytest.approx([0.3, 0.3, 0.4])
    assert told["cosine"]["mean"] == pytest.approx([0.5, 0.4, 0.1])
    assert told["shown"] == pytest.approx([0.01, 0.97, 0.02])
    assert (told["norms"], told["longest"]) == ([1.0, None, None], [2.0, None, None])
    assert (told["queries"], told["datapoints"]) == (3, 100)


def test_the_figure_shows_the_query_and_the_means(tmp_path: Path, drawn: list[Figure]):
    steps = np.random.default_rng(1).integers(30, 60, (20, 50))
    layers = [
        LayerDates(
            f"layer-{number}",
            Dates(steps[:1], PERIOD),
            Dates(steps, PERIOD),
            Dates(steps, PERIOD),
            np.arange(30.0),
            np.arange(30.0),
        )
        for number in range(2)
    ]
    path = draw_dates(tmp_path / "dates.png", layers, Query(digits(), 4, 3))
    assert path.read_bytes().startswith(b"\x89PNG")
    panels = [axes for axes in drawn[0].get_axes() if axes.get_ylabel() == "datapoints"]
    assert [panel.get_title(loc="left") for panel in panels] == ["layer-0", "layer-1"]
    edges = np.linspace(30, 60, 31)
    np.testing.assert_array_equal(panels[0].patches[0].get_data().values, np.histogram(steps[0], edges)[0])
    np.testing.assert_allclose(panels[0].lines[0].get_ydata(), np.histogram(steps, edges)[0] / 20)
