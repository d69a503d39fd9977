"""docs/results/coverage.json, what the rows measured, and the tables of docs/results/coverage.md, made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from dualform_studies.documents import write_page

from .measure import Measured
from .rows import ROWS, Row
from .training import STEPS

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FIGURES, PAGE = RESULTS / "coverage.json", RESULTS / "coverage.md"

_PLAIN = ("float32", "loop")
_WORDS: Mapping[str, Callable[[Row], str]] = {
    "network": lambda row: row.network.name,
    "optimizer": lambda row: row.optimizer,
    "precision": lambda row: row.precision,
    "trainer": lambda row: row.trainer,
}
"""What tells rows apart, by the heading of its column."""
_MEASURED = ("recorded", "error", "times", "kB a step")
_SETTING = ("optimizer", "precision", "trainer")


def write(measured: Mapping[str, Measured]) -> None:
    """Put rows in place of those of their names, leave out what is no row, and write both files."""
    before = read() if FIGURES.exists() else {}
    found = {**before, **measured}
    rows = {row.name: found[row.name] for row in ROWS if row.name in found}
    FIGURES.write_text(json.dumps({name: asdict(own) for name, own in rows.items()}, indent=1) + "\n")
    write_page(PAGE, "Coverage", [page(rows)])


def read() -> dict[str, Measured]:
    """By the row's name."""
    return {name: Measured(**fields) for name, fields in json.loads(FIGURES.read_text()).items()}


def page(found: Mapping[str, Measured]) -> str:
    """What the page has below its summary, as Markdown."""
    rows = [row for row in ROWS if row.name in found]
    networks = [row for row in rows if (row.optimizer, row.precision, row.trainer) == ("AdamW", *_PLAIN)]
    rules = [row for row in rows if row.network.name == "MLP" and (row.precision, row.trainer) == _PLAIN]
    others = [row for row in rows if row not in networks and row not in rules]
    return "\n".join(
        [
            _introduction(found),
            *_table("Networks: AdamW, float32, a plain loop", ("network", *_MEASURED), _each(networks, found)),
            *_table("Optimizers: an MLP, float32, a plain loop", ("optimizer", *_MEASURED[1:3]), _rules(rules, found)),
            *_table("Other combinations", (*_SETTING, "networks", *_MEASURED[1:3]), _settings(others, found)),
            *_remarks(found),
        ]
    )


def price(found: Mapping[str, Measured], optimizer: str) -> tuple[float, float, float]:
    """What recording adds to a step, in seconds of the processor a layer: the median, the least and the greatest of the
    rows under an optimizer that a plain loop trains in float32.
    """
    same = [row.name for row in ROWS if (row.optimizer, row.precision, row.trainer) == (optimizer, *_PLAIN)]
    rows = [found[name] for name in same if name in found and not found[name].refused]
    added = [(row.recorded_seconds - row.seconds) / row.layers for row in rows]
    return median(added), min(added), max(added)


def _introduction(found: Mapping[str, Measured]) -> str:
    prices = []
    for optimizer, name in (("AdamW", "AdamW"), ("SGD, momentum", "SGD with momentum")):
        middle, least, greatest = (f"{1e3 * seconds:.1f}" for seconds in price(found, optimizer))
        prices.append(f"{middle} ms under {name} ({least} to {greatest})")
    return f"""\
`make coverage` trains every row for {STEPS} updates on one thread, recorded and unrecorded, and writes these tables.
For each layer and step, recording adds {" and ".join(prices)}; these are medians over
the rows in float32 with a plain loop.

- **recorded**: the share of the trained numbers that layers explain slot by slot. The rest, such as norms, is kept step
  by step.
- **error**: the reconstruction error of the worst layer. Its status is exact unless another one is given.
- **times**: processor time of a recorded step, as a multiple of an unrecorded one.
- **kB a step**: the disk space of a step. Each row has its own in `docs/results/coverage.json`.
"""


def _table(title: str, heading: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from (f"## {title}", "", f"| {' | '.join(heading)} |", f"| {' | '.join('---' for _ in heading)} |")
    yield from (f"| {' | '.join(line)} |" for line in lines)
    yield ""


def _each(rows: Sequence[Row], found: Mapping[str, Measured]) -> Iterator[list[str]]:
    for row in rows:
        own = found[row.name]
        space = f"{own.bytes_a_step / 1e3:,.0f}"
        yield [row.network.name, _share(own.recorded), _errors([own]), _times([own]), space]


def _rules(rows: Sequence[Row], found: Mapping[str, Measured]) -> Iterator[list[str]]:
    for row in rows:
        yield [row.optimizer, _errors([found[row.name]]), _times([found[row.name]])]


def _settings(rows: Sequence[Row], found: Mapping[str, Measured]) -> Iterator[list[str]]:
    """One line for all networks that are trained alike."""
    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault(tuple(_WORDS[word](row) for word in _SETTING), []).append(row)
    for setting, own in alike.items():
        measured = [found[row.name] for row in own]
        yield [*setting, ", ".join(row.network.name for row in own), _errors(measured), _times(measured)]


def _errors(found: Sequence[Measured]) -> str:
    """The least and the greatest error, and each status that is not exact."""
    if any(own.refused for own in found):
        return "refused"
    errors = [own.reconstruction for own in found if own.reconstruction is not None]
    statuses = dict.fromkeys(own.status for own in found if own.status != "exact")
    return ", ".join([*_span(errors, ".0e"), *statuses])


def _times(found: Sequence[Measured]) -> str:
    return "".join(_span([own.recorded_seconds / own.seconds for own in found if not own.refused], ".1f"))


def _span(figures: Sequence[float], form: str) -> list[str]:
    """From the least to the greatest; nothing if there are none."""
    ends = dict.fromkeys(f"{figure:{form}}" for figure in (min(figures), max(figures))) if figures else []
    return [" to ".join(ends)] if ends else []


def _share(share: float) -> str:
    """Per cent, never rounded up to all of it nor down to nothing."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return f"{min(max(100 * share, 0.1), 99.9):.1f}%"


def _remarks(found: Mapping[str, Measured]) -> Iterator[str]:
    """What falls short: the rows and layers of each reason."""
    rows: dict[str, list[str]] = {}
    for row in ROWS:
        measured = found.get(row.name)
        if measured is None:
            continue
        what = ", ".join(of(row) for of in _WORDS.values())
        if measured.refused:
            rows.setdefault(f"refused: {measured.refused}", []).append(what)
        if row.because:
            rows.setdefault(f"{row.because}.", []).append(what)
        layers: dict[str, list[str]] = {}
        for name, reason in measured.skipped.items():
            if "frozen" not in reason:
                layers.setdefault(f"{reason}.", []).append(f"`{name}`")
        for reason, names in layers.items():
            rows.setdefault(reason, []).append(f"{what} ({', '.join(names)})")
    yield from ("## What falls short", "")
    yield from (f"- **{'; '.join(own)}**: {reason}" for reason, own in rows.items())
