"""What each kind of way is good for, in sentences that are made from the figures.

Which way leads, and by how much, follows from the report, so that another training cannot falsify a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dualform_studies.attribution.contest import FLOOR, OURS
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.words import listed


@dataclass(frozen=True)
class Measure:
    words: str
    of: Callable[[Report], Sequence[float] | None]
    """The mean and its interval of a way, None where it has none."""
    least: bool = False
    """Whether the least is the best."""
    form: str = ".2f"

    def best(self, ways: Mapping[str, Report]) -> str | None:
        """The name of the best of the ways that have the measure."""
        found = {name: measured[0] for name, way in ways.items() if (measured := self.of(way)) is not None}
        return (min if self.least else max)(found, key=lambda name: found[name]) if found else None

    def beats(self, one: Report, other: Report) -> bool:
        """Whether the interval of one way lies wholly on the better side of that of the other."""
        own, theirs = self.of(one), self.of(other)
        if own is None or theirs is None:
            return False
        return own[2] < theirs[1] if self.least else own[1] > theirs[2]


def measures(report: Report) -> list[Measure]:
    """In the order of the tables."""
    shares = [f"{share:g}" for share in report["sizes"]["shares"]]
    return [
        *(Measure(f"LDS with {share} kept", _of("lds", share)) for share in shares),
        Measure("leave one out", _of("leave_one_out")),
        Measure("removals until a prediction turns", _of("brittleness", "mean"), least=True, form=".0f"),
        Measure("wrong labels by oneself", _of("wrong_labels", "self")),
        Measure("wrong labels by clean images", _of("wrong_labels", "group")),
    ]


def _of(*keys: str) -> Callable[[Report], Sequence[float] | None]:
    def find(way: Report) -> Sequence[float] | None:
        for key in keys:
            if key not in way:
                return None
            way = way[key]
        found: Sequence[float] = way  # type: ignore[assignment]
        return found

    return find


_KINDS = {
    "attention, ": (
        "Attention alone",
        "says which images a layer takes for alike, before any label or error comes in. It is the cheapest, needs no "
        "gradients, and tells what a layer looks at; what leaving images out does it was not made to foresee.",
    ),
    "attention times value, ": (
        "Attention times value, of one layer,",
        "weighs the likeness of two inputs with that of their errors: the gradient of that layer.",
    ),
    "contribution": (
        "The contribution to a margin",
        "is a term of the last layer's output, and adds up to it exactly; what the layers before learned is no part "
        "of it.",
    ),
    "GradDot": (
        "GradDot",
        "adds the layers up, at the weights of the end, with the errors that were recorded on the way.",
    ),
    "ledger": (
        "The ledger",
        "follows a test's loss through every update: by the path its terms add up to the whole change of the loss. It "
        "says what happened in this training, and takes the longest of dualform's ways; later steps that would have "
        "been others it does not foresee.",
    ),
    "captum": (
        "captum's ways",
        "need nothing that was recorded but checkpoints, or the network alone for similarity; captum takes any layer "
        "that torch has.",
    ),
    "dattri": (
        "dattri's ways",
        "need the network of the end, and TRAK-10 nine further trainings. What they model is how the optimum "
        "would lie without an image, and not the course of one training.",
    ),
}
"""By how the names of its ways begin: what a kind is called, and what it is."""


def findings(report: Report) -> Iterator[str]:
    """A paragraph for each kind of way, and one on those that chance or labels alone do as well as."""
    ways: Mapping[str, Report] = report["ways"]
    for begins, (called, says) in _KINDS.items():
        own = {name: way for name, way in ways.items() if name.startswith(begins)}
        if own:
            yield f"{called} {says} {_figures(report, own)}"
    yield " ".join(_above_floors(report))


def _figures(report: Report, own: Mapping[str, Report]) -> str:
    """The best of each measure among some ways."""
    found = []
    for measure in measures(report):
        if (best := measure.best(own)) is None:
            continue
        which = f" ({_short(best)})" if len(own) > 1 else ""
        found.append(f"{measure.words} {_value(measure, own[best])}{which}")
    seconds = [way["seconds"] for way in own.values()]
    time = f"{seconds[0]:.1f}" if len(seconds) == 1 else f"{min(seconds):.1f} to {max(seconds):.1f}"
    return f"{'At best, ' if len(own) > 1 else ''}{'; '.join(found)}; {time} seconds.".replace(
        "At best, L", "At best: L"
    )


def _short(name: str) -> str:
    """A way without the words that its kind has in common."""
    for begins in _KINDS:
        if name.startswith(begins):
            return name.removeprefix(begins).strip(", ") or name
    return name


def _above_floors(report: Report) -> Iterator[str]:
    """Which ways did better than each floor, by what they foresee."""
    ways: Mapping[str, Report] = report["ways"]
    floors = [name for name, way in ways.items() if way["package"] == FLOOR]
    others = [name for name in ways if name not in floors]
    for measure in measures(report)[: len(report["sizes"]["shares"]) + 1]:
        for floor in floors:
            better = [name for name in others if measure.beats(ways[name], ways[floor])]
            yield (
                f"By {measure.words}, {_which(better, others)} did better than the floor called {floor}, with an "
                "interval that does not meet its."
            )


def _which(some: Sequence[str], every: Sequence[str]) -> str:
    """Some of all ways, in as few words as may be."""
    rest = [name for name in every if name not in some]
    if not some:
        return "no way"
    if not rest:
        return "every way"
    return listed([_quoted(name) for name in some]) if len(some) <= len(rest) else (
        f"every way but {listed([_quoted(name) for name in rest])}"
    )  # fmt: skip


def _quoted(name: str) -> str:
    """Names have commas of their own."""
    return f'"{name}"'


def leaders(report: Report) -> Table:
    """The best of dualform's ways beside the best of the others', by measure."""
    ways: Mapping[str, Report] = report["ways"]
    ours = {name: way for name, way in ways.items() if way["package"] == OURS}
    theirs = {name: way for name, way in ways.items() if way["package"] not in (OURS, FLOOR)}
    rows: list[list[Cell]] = []
    for measure in measures(report):
        own, other = measure.best(ours), measure.best(theirs)
        if own is not None:
            beside = (
                [_named(measure, ways, other), _verdict(measure, ways[own], ways[other])] if other else [None, None]
            )
            rows.append([measure.words, _named(measure, ways, own), *beside])
    caption = (
        "The best of dualform's ways and of the others', by measure. One is ahead if their 95 % intervals do not "
        "overlap."
    )
    return Table("leaders", caption, ("measure", "dualform's best", "the others' best", "who is ahead"), rows)


def _named(measure: Measure, ways: Mapping[str, Report], name: str) -> str:
    return f"{name}: {_value(measure, ways[name])}"


def _value(measure: Measure, way: Report) -> str:
    """In words; what rounds to nothing has no sign."""
    mean = (measure.of(way) or [0.0])[0]
    return f"{mean:z{measure.form}}"


def _verdict(measure: Measure, own: Report, other: Report) -> str:
    if measure.beats(own, other):
        return "dualform"
    return "the others" if measure.beats(other, own) else "neither"
