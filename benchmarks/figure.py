"""One picture: the time of everyone who can answer, question by question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import words
from benchmarks.result import OURS, Row, Section

MOST = 9
ACROSS = 3


def draw(path: Path, sections: Sequence[Section]) -> bool:
    """False, and no picture, where no question was put to anyone else."""
    rows = _questions(sections)
    if not rows:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from dualform_studies.pages.frame import packed_png

    down = -(-len(rows) // ACROSS)
    drawing, axes = pyplot.subplots(down, ACROSS, figsize=(12, 2.6 * down), squeeze=False, layout="constrained")
    for axis, row in zip(axes.flat, rows, strict=False):
        _panel(axis, row)
    for axis in axes.flat[len(rows) :]:
        axis.set_axis_off()
    drawing.suptitle("Seconds an answer takes, median; logarithmic, shorter is faster")
    path.write_bytes(packed_png(drawing, dpi=110))
    pyplot.close(drawing)
    return True


def _questions(sections: Sequence[Section]) -> list[Row]:
    """Those with a peer's time, spread over the sections."""
    found = {section.name: [row for row in section.rows if len(_times(row)) > 1] for section in sections}
    wanted = [
        *found.get("topk", [])[:3],
        *found.get("filtered", [])[:2],
        *found.get("grouped", []),
        *[row for row in found.get("sums", []) if row.short != "dot, first time"][:3],
    ]
    return wanted[:MOST]


def _times(row: Row) -> dict[str, float]:
    return {name: cell.seconds for name, cell in row.cells.items() if cell.counts and cell.seconds is not None}


def _panel(axis: object, row: Row) -> None:
    times = dict(sorted(_times(row).items(), key=lambda entry: -entry[1]))
    colors = ["tab:blue" if name.startswith(OURS) else "0.7" for name in times]
    bars = axis.barh(list(times), list(times.values()), color=colors)  # type: ignore[attr-defined]
    axis.bar_label(bars, [words.duration(seconds) for seconds in times.values()], padding=3, fontsize=8)  # type: ignore[attr-defined]
    axis.set_xscale("log")  # type: ignore[attr-defined]
    low, high = min(times.values()), max(times.values())
    axis.set_xlim(low / 3, high * (high / low) ** 0.3 * 2)  # type: ignore[attr-defined]
    axis.set_title(row.question, fontsize=8)  # type: ignore[attr-defined]
    axis.tick_params(labelsize=8)  # type: ignore[attr-defined]
