"""The demo: record, serve over gRPC, ask, mask and draw, on scikit-learn's digits; and the paper's Figures 1 and 2.

The paper's Figures 1 and 2 drawn again: a linear layer in its primal form, and in its dual form.

python -m dualform_studies.demo docs/assets

The whole path on data that scikit-learn brings along: record, serve over gRPC, ask, mask, draw.

A small network learns handwritten digits, then the same digits with their pixels permuted, and forgets the first. The
memory tells where a prediction comes from, and gives the first network back.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Rectangle

from dualform.errors import AlreadyExists
from dualform.methods import Answers
from dualform.query.engine import Engine, open_memory
from dualform_client import Client
from dualform_service.server import Server
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.figures import HATCHES, INK, new_figure
from dualform_studies.images.datasets import digits, permuted
from dualform_studies.images.prediction import PaperFigures, draw_example, show_example
from dualform_studies.images.query_figure import Query
from dualform_studies.images.training import (
    Pair,
    Recipe,
    TrainedNetwork,
    Verdict,
    judge_moments,
    layer_names,
    moments,
    train_in_succession,
    weights_by_moment,
    without,
)
from dualform_studies.recorded_memory import verify_report
from dualform_studies.report import Page, Report, bytes_on_disk, check_free, percent, report_folder, study_of

PRIMAL, DUAL = "primal-form", "dual-form"
"""Names of the figures' files, less their endings."""

_CELL = 0.34
_QUERY, _KEY, _VALUE, _OUTPUT = (INK[0], HATCHES[0]), (INK[0], HATCHES[1]), (INK[1], HATCHES[3]), (INK[2], HATCHES[0])
"""Colour and hatch of each kind of vector."""
_IN, _OUT = 4, 3
"""Cells of a vector of d_in and of d_out numbers."""
_WEIGHT = "0.93"
_TYPE = 9.5


def draw_dual_form(folder: Path) -> list[Path]:
    """Both figures as PNG and SVG in a folder, in the order of the paper; their PNGs."""
    return [_draw_primal(folder / f"{PRIMAL}.png"), _draw_dual(folder / f"{DUAL}.png")]


def _draw_primal(path: Path) -> Path:
    with new_figure(path, 1.35) as figure:
        axes = _canvas(figure, 15.0, 2.7)
        _vector(axes, 2.2, 1.65, _IN, _QUERY)
        axes.text(2.2, 0.45, "input $x$", ha="center", va="center", fontsize=_TYPE)
        _box(axes, 4.6, 0.85, 5.8, 1.6, "$W \\;=\\; W_0 \\,+\\, \\sum_{t=1}^{T} e_t \\otimes x_t$")
        axes.text(7.5, 0.45, "a weight of fixed size, trained on $T$ datapoints", ha="center", va="center", fontsize=8)
        _vector(axes, 12.8, 1.65, _OUT, _OUTPUT)
        axes.text(12.8, 0.45, "output $W x$", ha="center", va="center", fontsize=_TYPE)
        _arrow(axes, (2.55, 1.65), (4.5, 1.65))
        _arrow(axes, (10.5, 1.65), (12.45, 1.65))
    return path


def _draw_dual(path: Path) -> Path:
    with new_figure(path, 3.7) as figure:
        axes = _canvas(figure, 15.0, 7.4)
        _vector(axes, 1.0, 3.6, _IN, _QUERY)
        axes.text(1.0, 2.5, "query $x$", ha="center", va="center", fontsize=_TYPE)
        _box(axes, 4.9, 6.2, 4.3, 0.95, "initial weight $W_0$")
        axes.add_patch(
            Rectangle((2.75, 0.25), 8.6, 5.45, facecolor="none", edgecolor="0.55", linewidth=0.8, linestyle="--")
        )
        axes.text(7.05, 5.4, "the memory: every training datapoint", ha="center", va="center", fontsize=8, color="0.35")
        _memory(axes)
        _sum(axes, 13.0, 3.6)
        _vector(axes, 14.4, 3.6, _OUT, _OUTPUT)
        axes.text(14.4, 2.5, "output", ha="center", va="center", fontsize=_TYPE)
        _arrow(axes, (1.35, 3.6), (2.7, 3.6))
        _bent(axes, [(1.0, 4.4), (1.0, 6.68), (4.8, 6.68)])
        _bent(axes, [(9.3, 6.68), (13.0, 6.68), (13.0, 3.95)])
        axes.text(13.15, 5.3, "$W_0\\,x$", ha="left", va="center", fontsize=_TYPE)
        _arrow(axes, (11.4, 3.6), (12.68, 3.6))
        axes.text(12.05, 3.05, "$\\sum_t \\alpha_t\\, e_t$", ha="center", va="center", fontsize=_TYPE)
        _arrow(axes, (13.32, 3.6), (14.08, 3.6))
    return path


def _memory(axes: Axes) -> None:
    """Keys above, attention weights in the middle, values below; the dots stand for the datapoints between."""
    axes.text(2.95, 4.35, "keys", ha="left", va="center", fontsize=8)
    axes.text(2.95, 2.76, "attention", ha="left", va="center", fontsize=8)
    axes.text(2.95, 1.2, "values", ha="left", va="center", fontsize=8)
    for name, place in (("1", 5.0), ("2", 6.5), ("3", 8.0), ("T", 10.5)):
        _vector(axes, place, 4.35, _IN, _KEY)
        axes.text(place + 0.3, 4.35, f"$x_{name}$", ha="left", va="center", fontsize=_TYPE)
        _vector(axes, place, 1.2, _OUT, _VALUE)
        axes.text(place + 0.3, 1.2, f"$e_{name}$", ha="left", va="center", fontsize=_TYPE)
        axes.text(place, 2.76, f"$\\alpha_{name} = x_{name}^{{\\top}} x$", ha="center", va="center", fontsize=8)
        _arrow(axes, (place, 3.55), (place, 3.08))
        _arrow(axes, (place, 2.46), (place, 1.82))
    for height in (4.35, 2.76, 1.2):
        axes.text(9.3, height, "…", ha="center", va="center", fontsize=12)


def _canvas(figure: Figure, width: float, height: float) -> Axes:
    """Axes without ticks, a unit of which is half an inch both ways."""
    axes = figure.subplots()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.set_aspect("equal")
    axes.set_axis_off()
    return axes


def _vector(axes: Axes, x: float, y: float, cells: int, kind: tuple[str, str]) -> None:
    """A column of cells around a point."""
    colour, hatch = kind
    for at in range(cells):
        low = y + (at - cells / 2) * _CELL
        axes.add_patch(
            Rectangle(
                (x - _CELL / 2, low), _CELL, _CELL, facecolor="white", edgecolor=colour, hatch=hatch, linewidth=1.1
            )
        )


def _box(axes: Axes, x: float, y: float, width: float, height: float, words: str) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", facecolor=_WEIGHT, edgecolor="0.3"
        )
    )
    axes.text(x + width / 2, y + height / 2, words, ha="center", va="center", fontsize=11)


def _sum(axes: Axes, x: float, y: float) -> None:
    axes.add_patch(Circle((x, y), 0.3, facecolor="white", edgecolor="0.3"))
    axes.text(x, y, "+", ha="center", va="center", fontsize=12)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.25", "shrinkA": 0, "shrinkB": 0})


def _bent(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """A line through the points that ends in an arrow."""
    axes.plot(*zip(*points[:-1], strict=True), color="0.25", linewidth=1, solid_capstyle="butt")
    _arrow(axes, points[-2], points[-1])


DEMO_RECIPE = Recipe(hidden=(64, 64), lr=2e-2, batch=64, steps=300)
"""About fourteen epochs on each dataset: enough to learn each, and to forget the first while learning the second."""

_ANSWERS_WITHIN = 60.0
"""Seconds: generous, as a busy machine may take long to start threads."""
_REBUILDING = "rebuilding the weights of each moment, and testing them"
_ASKING = "serving the memory, asking it over gRPC, and drawing"


def run_demo(out: Path, progress: Progress | None = None, recipe: Recipe = DEMO_RECIPE, seed: int = 0) -> Report:
    """Run the demo; the memory is `out` itself, the figures and report.json lie in `out/report`.

    A demo that `out` holds already is replaced. Raises AlreadyExists where it holds anything else.
    """
    _make_room(out)
    start = perf_counter()
    pair, trained = record_demo(out, progress, recipe, seed)
    say = or_silent(progress)
    with open_memory(out) as memory:
        say(_REBUILDING, 0, 1)
        judged = judge_moments(weights_by_moment(memory, trained, pair, recipe), pair, recipe)
        say(_REBUILDING, 1, 1)
        say(_ASKING, 0, 1)
        report = _ask_over_grpc(memory, judged, layer_names(recipe.widths(pair[0])), report_folder(out))
        report["cancellation"] = dict(memory.cancellation(where=without(pair[1])))
        say(_ASKING, 1, 1)
    report |= {
        "study": "demo",
        "command": "dualform demo",
        "seed": seed,
        "mask": without(pair[1]),
        "accuracy": judged.accuracy(),
        "disk_bytes": bytes_on_disk(out),
        "seconds": {"training": trained.seconds, "all": perf_counter() - start},
    }
    page = Page(out, "A demonstration on handwritten digits")
    page.table(
        "accuracy",
        "Test accuracy.",
        ["network", *report["accuracy"]],
        [
            [words.replace("\n", " "), *(percent(by_moment[moment]) for by_moment in report["accuracy"].values())]
            for moment, words in moments(pair).items()
        ],
    )
    show_example(page, report["prediction"], PaperFigures())
    page.write(report)
    return report


def record_demo(
    out: Path, progress: Progress | None = None, recipe: Recipe = DEMO_RECIPE, seed: int = 0
) -> tuple[Pair, TrainedNetwork]:
    """Train on both datasets, one after the other, and record that to `out`."""
    pair = digits(), permuted(digits())
    with _one_thread():
        return pair, train_in_succession(pair, recipe, seed, record_to=out, progress=progress)


def _make_room(out: Path) -> None:
    """Remove an earlier demo, so that the command can be given twice; never anything else."""
    try:
        check_free(out)
    except AlreadyExists:
        if study_of(out) != "demo":
            raise
        shutil.rmtree(out)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Train on one thread: with layers this small, threads of a busy machine mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _ask_over_grpc(memory: Engine, judged: Verdict, layers: tuple[str, ...], folder: Path) -> Report:
    """Serve the memory on a free port of this machine, and ask everything as a remote client would."""
    server = Server(memory, "127.0.0.1:0")
    address = f"127.0.0.1:{server.start()}"
    try:
        with Client(address, timeout=_ANSWERS_WITHIN) as client:
            return _ask(client, judged, layers, folder) | {"address": address}
    finally:
        server.stop(grace=1.0)


def _ask(client: Answers, judged: Verdict, layers: tuple[str, ...], folder: Path) -> Report:
    first, spoilt = judged.pair[0], judged.interfered()
    # A digit that the second dataset spoils, where there is one.
    row = int(spoilt[0]) if len(spoilt) else 0
    query = Query(first, row, int(judged.classes["final"][first.name][row]))
    return {
        "slots": sum(client.info().slots.values()),
        "verify": verify_report(client),
        "prediction": draw_example(client, query, layers, judged.pair, folder, "prediction", PaperFigures()),
    }


if __name__ == "__main__":
    for drawn in draw_dual_form(Path(sys.argv[1])):
        drawn.with_suffix(".svg").unlink()
