"""The picture that the page begins with: the first answer, the training that is recorded, many clients at once."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import words
from benchmarks.result import OURS, Row, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "The first answer of a process, a training that is recorded, and clients that ask at once"
_BLUE, _GREY, _GREEN = "#0072B2", "0.55", "#009E73"
_WIDTH = 54
"""Letters of a question's line."""


def draw(path: Path, sections: Sequence[Section]) -> bool:
    """False, and no picture, where none of the three was measured."""
    rows = {section.name: section.rows for section in sections}
    answers = [row for row in rows.get("cold", []) if (row.target or row.ratio) and row.ours.counts]
    trainings = [
        row for name in ("recording", "checkpointing") for row in rows.get(name, []) if row.target and row.ratio
    ]
    clients = [
        row for row in rows.get("serving", []) if row.target and row.target.kind == "at least" and row.met is not None
    ]
    panels = [
        (found, panel, len(found) + 1)
        for found, panel in ((answers, _answers), (trainings, _trainings), (clients[:1], _clients))
        if found
    ]
    if not panels:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from dualform_studies.pages.frame import packed_png

    heights = [height for _, _, height in panels]
    drawing, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(10, 0.43 * sum(heights) + 0.4 * len(panels)),
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for axis, (found, panel, _) in zip(axes.flat, panels, strict=True):
        panel(axis, found)
    path.write_bytes(packed_png(drawing, dpi=110))
    pyplot.close(drawing)
    return True


def _answers(axis: Axes, rows: Sequence[Row]) -> None:
    """Seconds, ours and those of what was measured beside."""
    for place, row in enumerate(rows):
        ours, beside = row.ours.seconds, row.beside_seconds if row.beside in row.cells else None
        assert ours is not None
        if beside is not None:
            axis.plot([ours, beside], [place, place], color="0.8", linewidth=2, zorder=1)
            axis.plot(beside, place, "o", color=_GREY, markersize=7)
        axis.plot(ours, place, "o", color=_BLUE, markersize=9)
        left = beside is None or ours <= beside
        _say(axis, ours, place, words.duration(ours), left=left, color=_BLUE)
        if beside is not None:
            _say(axis, beside, place, f"{row.beside}: {words.duration(beside)}", left=not left, color="0.3")
    axis.set_xscale("log")
    low = min(row.ours.seconds or 1.0 for row in rows)
    high = max(max(row.ours.seconds or 0.0, row.beside_seconds or 0.0) for row in rows)
    axis.set_xlim(low / 4, high * 100)
    axis.set_xticks([10.0**power for power in range(-6, 4) if low / 4 <= 10.0**power <= high * 3])
    axis.set_xticks([], minor=True)
    axis.xaxis.set_major_formatter(lambda seconds, _: words.duration(seconds).replace(".00", "").replace(".0", ""))
    _finish(axis, [row.question for row in rows], "The first answer (blue) beside plain programs over the same files")


def _trainings(axis: Axes, rows: Sequence[Row]) -> None:
    """Times the unrecorded training; the target is a mark."""
    for place, row in enumerate(rows):
        assert row.ratio is not None
        assert row.target is not None
        least, most = row.ratios or (row.ratio, row.ratio)
        axis.plot([least, most], [place, place], color=_BLUE, linewidth=2, zorder=1)
        axis.plot(row.ratio, place, "o", color=_BLUE, markersize=9)
        axis.plot(row.target.value, place, "|", color=_GREEN, markersize=16, markeredgewidth=2.5)
        _say(axis, max(most, row.target.value), place, words.ratio(row.ratio), left=False, color=_BLUE)
    axis.axvline(1.0, color=_GREY, linewidth=1)
    every = [ratio for row in rows for ratio in row.ratios or (row.ratio or 1.0,)]
    axis.set_xlim(min(0.95, min(every) - 0.03), max(every) + 0.15)
    title = "A training that is recorded, times the same one unrecorded; its target in green"
    _finish(axis, [row.question for row in rows], title)


def _clients(axis: Axes, rows: Sequence[Row]) -> None:
    """Questions a second."""
    (row,) = rows
    assert row.ours.seconds is not None
    assert row.beside_seconds is not None
    rates = [1 / row.beside_seconds, 1 / row.ours.seconds]
    axis.barh([0, 1], rates, color=[_GREY, _BLUE], height=0.6)
    for place, rate in enumerate(rates):
        _say(axis, rate, place, f"{rate:,.0f}", left=False, color="0.2")
    axis.set_xlim(0, max(rates) * 1.15)
    who = row.question.partition(":")[0]
    _finish(axis, [row.beside, who], f"Questions a second that {OURS} serve answers")


def _say(axis: Axes, x: float, y: float, text: str, *, left: bool, color: str) -> None:
    axis.annotate(
        text,
        (x, y),
        xytext=(-8 if left else 8, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=8.5,
        color=color,
    )


def _finish(axis: Axes, questions: Sequence[str], title: str) -> None:
    axis.set_yticks(range(len(questions)), [textwrap.fill(question, _WIDTH) for question in questions], fontsize=8.5)
    axis.set_ylim(len(questions) - 0.4, -0.6)
    axis.set_title(title, fontsize=10, loc="left", weight="bold")
    axis.tick_params(axis="x", labelsize=8)
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
