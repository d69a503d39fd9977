from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from matplotlib.figure import Figure

from dualform_studies.images.datasets import digits
from dualform_studies.images.query_figure import Query
from dualform_studies.images.recency import Recency, draw_recency, recency_report, recency_table


@given(st.data(), st.integers(1, 40))
def test_the_distance_is_the_greatest_at_any_step(data: st.DataObject, total: int):
    steps = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=30))
    expected = max(abs(np.mean([s <= t for s in steps]) - (t + 1) / total) for t in range(total))
    assert Recency(np.array([steps]), total).unevenness[0] == pytest.approx(expected, abs=1e-12)


def test_shares_of_the_last_third():
    one = Recency(np.array([[0, 19, 20, 29], [5, 6, 7, 8]]), 30)
    assert one.last_third.tolist() == [0.5, 0.0]
    told = recency_report({"layer-1": one})["layer-1"]
    assert (told["queries"], told["datapoints"], told["last_third"]) == (2, 4, 0.25)


def test_chance_passes_the_critical_distance_once_in_a_hundred_times():
    steps = np.random.default_rng(0).integers(0, 3000, (4000, 500))
    one = Recency(steps, 3000)
    assert (one.unevenness > one.critical).mean() == pytest.approx(0.01, abs=0.005)
    late = Recency(3000 - 1 - (3000 - steps) ** 2 // 3000, 3000)
    assert (late.unevenness > late.critical).all()


def test_the_figure_shows_the_first_query_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (drawn.append(figure), save(figure, *a, **k)))
    steps = np.random.default_rng(1).integers(0, 300, (20, 50))
    recency = {f"layer-{number}": Recency(steps + number, 310) for number in range(3)}
    path = draw_recency(tmp_path / "recency.png", recency, Query(digits(), 4, 3))
    assert path.read_bytes().startswith(b"\x89PNG")
    panels = [axes for axes in drawn[0].get_axes() if axes.get_ylabel() == "datapoints"]
    assert [panel.get_title(loc="left") for panel in panels] == ["layer-0", "layer-1", "layer-2"]
    own = panels[0].patches[0].get_data()
    np.testing.assert_array_equal(own.values, np.histogram(steps[0], np.linspace(0, 310, 31))[0])
    assert panels[-1].get_xlabel().startswith("update at which they were trained on")
    assert recency_table(recency_report(recency)).columns[0] == "layer"
