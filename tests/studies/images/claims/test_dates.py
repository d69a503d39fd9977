from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dualform_studies.images.claims.date_figure import draw_dates
from dualform_studies.images.claims.dates import (
    Dates,
    LayerDates,
    Period,
    by_step,
    date_claims,
    dates_report,
)
from dualform_studies.images.claims.page import show_dates
from dualform_studies.images.data.datasets import digits
from dualform_studies.images.query_figure import Query
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART
from dualform_studies.pages.items import Table
from dualform_studies.pages.page import Page

PERIOD = Period(30, 60, "step >= 30")


def dates(early: int, late: int, count: int = 100, queries: int = 3) -> Dates:
    """Of `count` datapoints so many of the first and of the last third."""
    steps = [*np.full(early, 30), *np.full(count - early - late, 45), *np.full(late, 59)]
    return Dates(np.tile(np.array(steps), (queries, 1)), PERIOD)


def layer(
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
    behind = [layer(dates(30, share), name=f"layer-{at}") for at, share in enumerate(late, start=1)]
    assert date_claims([layer(dates(0, 100), name="layer-0"), *behind])[0].verdict == verdicts


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
    behind = [layer(dates(*own), name=f"layer-{at}") for at, own in enumerate(thirds, start=1)]
    claim = date_claims([layer(dates(0, 100), name="layer-0"), *behind])[1]
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
    assert layer(dates(early, 10), dates(cosine, 10), lengths=lengths).cause == cause


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
