"""The start page: the contents of each memory, and examples of its query sets to look at first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.errors import DualformError, NotFound
from dualform_explorer.examples import BaseRates, Examples
from dualform_explorer.filter import Chip, where_of
from dualform_explorer.groups import hue_of
from dualform_explorer.previews import ShownPreview, shown_of_examples
from dualform_explorer.state import ALL, MISCLASSIFIED, default_by, layers_of
from dualform_explorer.view import Snapshot

_SHOWN = 12
_OF_CELL = 60
"""The most examples shown of a chosen cell."""
_CLASSES = 20
"""The most classes of a confusion matrix. With more, it is not shown."""
MOST_DATASETS = 6
"""The most datasets of which each is left out on trial. With more, none is."""


@dataclass(frozen=True)
class ExampleCard:
    row: int
    label: int | None
    label_name: str
    read: int | None
    read_name: str
    preview: ShownPreview


@dataclass(frozen=True)
class Correction:
    """Misclassified examples that are correct without one dataset."""

    dataset: str
    chip: Chip
    """Leaves that dataset out."""
    hue: int
    rates: BaseRates
    """The number of examples tried, how many correct ones it breaks, and the effect of random removals."""
    cards: tuple[ExampleCard, ...]


@dataclass(frozen=True)
class Confusion:
    """The number of examples with each label and each largest output."""

    classes: tuple[int, ...]
    """The classes that occur, as a label or as an output."""
    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """By label, then by output."""

    @property
    def most_mistakes(self) -> int:
        wrong = (own for row, counts in enumerate(self.counts) for column, own in enumerate(counts) if row != column)
        return max(wrong, default=0)


@dataclass(frozen=True)
class QuerySetPanel:
    examples: Examples
    misclassified: int | None
    """None if labels or outputs are unknown."""
    layer: str
    """The layer that pages start with."""
    by: tuple[str, ...]
    confusion: Confusion | None
    """None if labels or outputs are unknown, or if there are too many classes for a table."""
    among: str
    """The examples that the cards show, as in a state."""
    chosen: int
    """The number of these examples."""
    cards: tuple[ExampleCard, ...]
    """Examples of the chosen cell. By default misclassified examples, or the first ones if none is known to be
    misclassified."""
    missing: str
    """Why previews are missing; empty if none is."""

    @property
    def more(self) -> bool:
        """Whether a page can show more of these examples."""
        return len(self.cards) < min(self.chosen, _OF_CELL)


@dataclass(frozen=True)
class CorrectionsPanel:
    examples: Examples
    layer: str
    """The layer from which datasets were left out."""
    by: tuple[str, ...]
    corrections: tuple[Correction, ...]
    trouble: str
    """Why the filters were not tried."""


def query_set_panel(snapshot: Snapshot, name: str, cell: str = "") -> QuerySetPanel:
    """`cell`: ALL, MISCLASSIFIED, or a label and an output, such as 0-6: the examples to show, more than by default."""
    own = layers_of(snapshot.info, name)
    if not own:
        raise NotFound(f"The query set {name} has queries of no recorded layer.")
    examples = snapshot.examples_of(name)
    known = examples.labels is not None and examples.read is not None
    misclassified = examples.misclassified
    found = snapshot.output_layer(examples)
    among = cell if cell == ALL or (known and cell) else MISCLASSIFIED if len(misclassified) else ALL
    rows = examples.among(among)
    cards, missing = example_cards(snapshot, examples, rows[: _OF_CELL if among == cell else _SHOWN])
    return QuerySetPanel(
        examples=examples,
        misclassified=len(misclassified) if known else None,
        layer=own[-1].name if found is None else found.name,
        by=default_by(snapshot.info),
        confusion=_confusion(snapshot, examples),
        among=among,
        chosen=len(rows),
        cards=cards,
        missing=missing,
    )


def corrections_panel(snapshot: Snapshot, name: str) -> CorrectionsPanel:
    """Slower than the rest of the page, because it asks for a placebo for each dataset."""
    examples = snapshot.examples_of(name)
    found, corrections, trouble = None, tuple[Correction, ...](), ""
    if len(examples.misclassified) and 1 < len(snapshot.info.datasets) <= MOST_DATASETS:
        found = snapshot.output_layer(examples)
    try:
        if found is not None:
            corrections = _corrections(snapshot, examples, found.name)
    except DualformError as error:
        trouble = str(error)
    layer = "" if found is None else found.name
    return CorrectionsPanel(examples, layer, default_by(snapshot.info), corrections, trouble)


def _confusion(snapshot: Snapshot, examples: Examples) -> Confusion | None:
    if examples.labels is None or examples.read is None:
        return None
    known = examples.labels >= 0
    pairs = np.stack((examples.labels[known], examples.read[known]))
    classes, places = np.unique(pairs, return_inverse=True)
    if not 1 < len(classes) <= _CLASSES:
        return None
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(counts, tuple(places.reshape(pairs.shape)), 1)
    names = snapshot.names
    return Confusion(
        tuple(classes.tolist()), tuple(map(names.of, classes.tolist())), tuple(map(tuple, counts.tolist()))
    )


def _corrections(snapshot: Snapshot, examples: Examples, layer: str) -> tuple[Correction, ...]:
    """Filters that correct some examples. First comes the dataset whose removal corrects the most, minus those it
    breaks.
    """
    found: list[Correction] = []
    for dataset in snapshot.info.datasets:
        chip = Chip.of(False, ("dataset",), (dataset,))
        mask = where_of([chip], complete=snapshot.complete)
        own = snapshot.rated(examples, layer, mask or "")
        if own is not None and own.rates.corrected:  # skip filters that correct nothing
            cards, _ = example_cards(snapshot, examples, own.corrected_rows[:_SHOWN])
            found.append(Correction(dataset, chip, hue_of(snapshot.info, ("dataset",), (dataset,)), own.rates, cards))
    return tuple(sorted(found, key=lambda own: own.rates.broken - own.rates.corrected))


def example_cards(
    snapshot: Snapshot, examples: Examples, rows: NDArray[np.int64]
) -> tuple[tuple[ExampleCard, ...], str]:
    """Cards for some examples, `rows` int64[n], and why previews are missing."""
    names, read = snapshot.names, examples.read
    previews = shown_of_examples(snapshot, examples.query_set, rows.tolist())
    cards = tuple(
        ExampleCard(
            row,
            examples.label(row),
            names.of(examples.label(row)),
            None if read is None else int(read[row]),
            names.of(None if read is None else int(read[row])),
            preview,
        )
        for row, preview in zip(rows.tolist(), previews, strict=True)
    )
    return cards, previews.missing
