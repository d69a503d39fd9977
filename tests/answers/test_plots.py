"""Pictures of answers hold the answers' own numbers."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from dualform.answers import GroupSums, Hits
from dualform.errors import BadInput, DualformError

from .test_tables import HITS, LEDGER, PLAIN, SPREAD, SUMS, TERMS

mpl.use("Agg")


def bars(axes):
    """By name, the length of each bar, from the top."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    return dict(zip(names, [bar.get_width() for bar in axes.patches], strict=True))


def test_scores_by_rank_a_line_a_group():
    (line,) = PLAIN.plot().get_lines()
    assert line.get_xdata().tolist() == [1, 2]
    assert line.get_ydata().tolist() == [3.0, 2.0]
    assert Hits(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros((1, 1), np.int64)).plot().get_lines() == []
    (spread,) = SPREAD.plot(0).get_lines()
    assert (spread.get_xdata().tolist(), spread.get_ydata().tolist()) == ([1, 2, 4], [3.0, 0.5, -0.5])
    lines = HITS.plot(0).get_lines()
    assert [(own.get_label(), own.get_ydata().tolist()) for own in lines] == [
        ("1 | a", [0.5, 0.25]), ("- | b", [0.125]),
    ]  # fmt: skip


def test_sums_as_bars_the_largest_on_top():
    assert [*bars(SUMS.plot(0)).items()] == [("1", -2.5), ("0", 1.5), ("-", 0.5)]
    assert [*bars(SUMS.plot(1, most=1)).items()] == [("-", 9.0)]
    assert [*bars(SUMS.of_largest(2).plot(0)).items()] == [("1", -2.5), ("0", 1.5)]
    formula = GroupSums((("$x^2$\x1b",),), np.ones((1, 1)), np.ones(1, np.int64), ("label",)).plot()
    formula.figure.canvas.draw()
    assert [name.startswith("\\$x^2\\$") and "\x1b" not in name for name in bars(formula)] == [True]


def test_contributions_as_a_field():
    axes = TERMS.plot(1)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["1", "0", "initial", "bias", "unrecorded_change"]
    drawn = axes.images[0].get_array()
    expected = [[9, 10, 11], [6, 7, 8], [20] * 3, [30, 31, 32], [40] * 3]
    np.testing.assert_array_equal(drawn, expected)
    assert axes.images[0].norm.vmin == -axes.images[0].norm.vmax


def test_a_ledgers_bars_add_up_to_the_change_of_the_loss():
    whole = bars(LEDGER.plot())
    assert whole == {"1": -3.0, "0": 1.0, "decay": 0.25, "residual": 0.25}
    assert sum(whole.values()) == float(LEDGER.final[0] - LEDGER.initial[0])
    part = bars(LEDGER.plot(most=1))
    assert part == {"1": -3.0, "1 others": 1.0, "decay": 0.25, "residual": 0.25}


@pytest.mark.parametrize(
    ("answer", "noun"), [(HITS, "query"), (SUMS, "query"), (SPREAD, "query"), (TERMS, "query"), (LEDGER, "example")]
)
def test_what_is_not_there_is_refused(answer, noun):
    for number in (-1, len(answer)):
        with pytest.raises(BadInput, match=f"^{noun} must be 0 to {len(answer) - 1}, not {number}") as refused:
            answer.plot(number)
        assert refused.value.field == noun


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(DualformError, match=r"dualform\[plot\]"):
        SUMS.plot()
