"""docs/coverage.json, what the rows measured, and docs/coverage.md, its page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median

from .measure import Measured
from .rows import ROWS, Row
from .training import STEPS

DOCS = Path(__file__).parents[2] / "docs"
FIGURES, PAGE = DOCS / "coverage.json", DOCS / "coverage.md"

_INTRODUCTION = """# Coverage: networks, optimizers, precisions, trainers

Each row is a small network, trained for STEPS updates on one thread of a CPU, recorded and not. `make
coverage` writes this page, and `make test` trains every row again and fails where the page says something else. A row
holds that

- recording changed no bit of any weight or running statistic;
- every layer answers top-k, sums and, where its rule is known, outputs, and shares of two ways to part the slots add up
  to the same;
- the rebuilt weights make the network's own loss, where all of them are recorded or kept.

**Recorded** is the share of the trained numbers that a layer of the memory explains slot by slot; **kept** the share
whose values are stored step by step, without attention: norms, free parameters. **Reconstruction error** is what the
rebuilt weights miss, relative to how far the weights moved, of the layer that misses most; **status** is that of the
least exact layer. **Step** is the processor's time for an unrecorded step, **times** how much of it a recorded one
takes, the thread that writes included: medians over three trainings of either kind by turns, so that what else the
machine does changes both alike. In networks as small as these recording is a fixed price a layer and step, which may be
several times the step itself (docs/benchmarks.md has larger ones):
PRICES,
over the rows in float32 that are trained by a plain loop. The last column is what a step takes on disk.
`torch.compile` is its tracing, and runs what was traced as it is; of ranks there are two, of gloo, and the time is
that of the first one.
"""


def write(measured: Mapping[str, Measured]) -> None:
    """Put rows in place of those of their names, leave out what is no row, and write both files."""
    before = read() if FIGURES.exists() else {}
    found = {**before, **measured}
    rows = {row.name: found[row.name] for row in ROWS if row.name in found}
    FIGURES.write_text(json.dumps({name: asdict(own) for name, own in rows.items()}, indent=1) + "\n")
    PAGE.write_text(page(rows))


def read() -> dict[str, Measured]:
    """By the row's name."""
    return {name: Measured(**fields) for name, fields in json.loads(FIGURES.read_text()).items()}


def page(found: Mapping[str, Measured]) -> str:
    """The page as Markdown."""
    return "\n".join([_introduction(found), *_table(found), "", *_remarks(found)]) + "\n"


def price(found: Mapping[str, Measured], optimizer: str) -> tuple[float, float, float]:
    """What recording adds to a step, in seconds of the processor a layer: the median, the least and the greatest of the
    rows under an optimizer that a plain loop trains in float32.
    """
    same = [row.name for row in ROWS if (row.optimizer, row.precision, row.trainer) == (optimizer, "float32", "loop")]
    rows = [found[name] for name in same if name in found and not found[name].refused]
    added = [(row.recorded_seconds - row.seconds) / row.layers for row in rows]
    return median(added), min(added), max(added)


def _introduction(found: Mapping[str, Measured]) -> str:
    said = []
    for optimizer, name in (("AdamW", "AdamW"), ("SGD, momentum", "SGD with momentum")):
        middle, least, greatest = (f"{1e3 * seconds:.1f}" for seconds in price(found, optimizer))
        said.append(f"{middle} ms under {name} ({least} to {greatest})")
    return _INTRODUCTION.replace("STEPS", str(STEPS)).replace("PRICES", " and ".join(said))


_HEADING = (
    "network", "optimizer", "precision", "trainer", "recorded", "kept", "status", "reconstruction", "step", "times",
    "on disk",
)  # fmt: skip


def _table(found: Mapping[str, Measured]) -> Iterator[str]:
    yield f"| {' | '.join(_HEADING)} |"
    yield f"| {' | '.join('---' for _ in _HEADING)} |"
    for row in ROWS:
        if row.name in found:
            yield "| " + " | ".join([*_what(row), *_figures(found[row.name], bool(row.because))]) + " |"


def _what(row: Row) -> list[str]:
    return [row.network.name, row.optimizer, row.precision, row.trainer]


def _figures(found: Measured, remark: bool) -> list[str]:
    if found.refused:
        return ["", "", "refused, see below", "", "", "", ""]
    reconstruction = "" if found.reconstruction is None else f"{found.reconstruction:.0e}"
    return [
        _share(found.recorded),
        _share(found.kept),
        found.status + (" (see below)" if remark else ""),
        reconstruction,
        f"{1e3 * found.seconds:.1f} ms",
        f"{found.recorded_seconds / found.seconds:.1f}",
        f"{found.bytes_a_step / 1e3:,.0f} kB",
    ]


def _share(share: float) -> str:
    """Per cent, never rounded up to all of it nor down to nothing."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return f"{min(max(100 * share, 0.1), 99.9):.1f} %".replace(" %", "%")


def _remarks(found: Mapping[str, Measured]) -> Iterator[str]:
    """What falls short, row by row."""
    yield "## What falls short"
    yield ""
    for row in ROWS:
        measured = found.get(row.name)
        if measured is None:
            continue
        what = ", ".join(_what(row))
        if measured.refused:
            yield f"- **{what}** is refused: {measured.refused}"
        if row.because:
            yield f"- **{what}**: {row.because}"
        for name, reason in measured.skipped.items():
            if "frozen" not in reason:
                yield f"- **{what}**, `{name}`: {reason}."
