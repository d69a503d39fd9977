"""What is exported: predictions, and the masks that each is shown under."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from dualform.answers import MemoryInfo
from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_explorer.chip import Chip, read_chip
from dualform_explorer.examples import examples_of
from dualform_explorer.output_layer import output_layer
from dualform_explorer.reading import layer_of, layers_of, query_set_of, read_state
from dualform_explorer.start import MOST_DATASETS, query_set_panel
from dualform_explorer.state import State

_MOST = 12
"""Predictions where none are named."""


@dataclass(frozen=True)
class Choice:
    items: tuple[State, ...]
    """Each as it stands with nothing left out."""
    masks: tuple[tuple[Chip, ...], ...]
    """The first one leaves nothing out."""

    def state(self, item: int, mask: int) -> State:
        return replace(self.items[item], chips=self.masks[mask])

    @property
    def views(self) -> int:
        return len(self.items) * len(self.masks)


def choose(memory: Answers, info: MemoryInfo, items: Sequence[str], without: Sequence[str]) -> Choice:
    """`items`: QUERY_SET/EXAMPLE each; of none, those that the start page leads to. `without`: COLUMN:VALUE each; of
    none, each dataset where there are several.

    Raises BadInput for what there is not.
    """
    if not info.query_sets:
        raise BadInput(
            "This memory has no query set, whose predictions would be exported.",
            hint="Store examples with recorder.query_set while you record.",
            field="item",
        )
    chosen = items or [f"{query_set}/{row}" for query_set, row in _worth_looking_at(memory, info)]
    states = list(dict.fromkeys(_state(memory, info, item) for item in chosen))
    return Choice(tuple(states), ((), *_masks(info, states, without)))


def _state(memory: Answers, info: MemoryInfo, item: str) -> State:
    reading = read_state([("item", item)], info)
    state = reading.state
    if state is None:
        raise BadInput(" ".join(fault.message for fault in reading.faults), field="item")
    examples = examples_of(memory, info, state.query_set)
    if state.row >= examples.count:
        raise BadInput(
            f"The query set {state.query_set} has no example {state.row}: it has 0 to {examples.count - 1}.",
            field="item",
        )
    found = output_layer(memory, info, examples)
    return state if found is None else replace(state, layer=found.name)


def _worth_looking_at(memory: Answers, info: MemoryInfo) -> list[tuple[str, int]]:
    """Of each query set in turn: misclassified examples that a filter corrects, then other misclassified ones, or the
    first.
    """
    query_sets = [query_set for query_set in info.query_sets if layers_of(info, query_set)]
    panels = [query_set_panel(memory, info, query_set.name) for query_set in query_sets]
    corrected = [[(one.query_set, card.row) for own in one.corrections for card in own.cards] for one in panels]
    others = [[(one.query_set, card.row) for card in one.cards] for one in panels]
    return list(dict.fromkeys(chain(_in_turn(corrected), _in_turn(others))))[:_MOST]


def _in_turn(lists: Sequence[Sequence[tuple[str, int]]]) -> Iterator[tuple[str, int]]:
    return (own for turn in zip_longest(*lists) for own in turn if own is not None)


def _masks(info: MemoryInfo, states: Sequence[State], without: Sequence[str]) -> list[tuple[Chip, ...]]:
    if not without:
        datasets = info.datasets if 1 < len(info.datasets) <= MOST_DATASETS else ()
        return [(Chip.of(False, ("dataset",), (name,)),) for name in datasets]
    columns: dict[str, str] = {}
    for state in states:
        layer, query_set = layer_of(info, state.layer), query_set_of(info, state.query_set)
        if layer is not None and query_set is not None:
            own = info.columns[layer.space]
            columns = {name: own[name] for name in own if name in columns} if columns else dict(own)
    masks: list[tuple[Chip, ...]] = []
    for said in dict.fromkeys(without):
        try:
            chip = read_chip(said, False, columns)
        except BadInput as error:
            raise BadInput(
                f"--without {said}: {error}",
                hint=f"Write COLUMN:VALUE; columns are {', '.join(columns)}.",
                field="without",
            ) from None
        _check_dataset(info, chip)
        masks.append((chip,))
    return list(dict.fromkeys(masks))  # the same may be written in several ways


def _check_dataset(info: MemoryInfo, chip: Chip) -> None:
    for own in chip.conditions:
        if own.column == "dataset" and isinstance(own.value, str) and own.value not in info.datasets:
            raise BadInput(
                f"There is no dataset {own.value!r}.", hint=f"There is {', '.join(info.datasets)}.", field="without"
            )
