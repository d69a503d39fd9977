"""One training sample: what it looked like, when it was trained on, and which predictions change without it.

./sample?dataset=…&sample=…     where there are several memories, &memory=…; of a query set that is named, &set=…
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import MemoryInfo, Status
from dualform.errors import EmptyMask, NotFound
from dualform.methods import Answers
from dualform_explorer.address import Fault, Params, default_by
from dualform_explorer.examples import (
    evenly,
    examples_of,
    label_names,
    layer_of,
    layers_of,
    of_no_sample,
    output_layer,
    query_of,
    query_set_of,
    tokens_of,
)
from dualform_explorer.filter import Chip, complete_columns
from dualform_explorer.groups import hue_of
from dualform_explorer.panels.training import bars_of
from dualform_explorer.previews import ShownPreview, shown_of_slots
from dualform_explorer.start import ExampleCard, example_cards
from dualform_explorer.state import State, query_string

MOST_TRIED = 1000
"""Examples of a query set that are asked with and without the sample, evenly spread."""
MOST_NUMBERS = 1 << 23
"""Outputs that are asked for, of all of them together."""
_SHOWN = 8
_NAMES = ("memory", "dataset", "sample", "set")
_LONGEST = 400


@dataclass(frozen=True)
class SampleAddress:
    memory: str
    """Empty where there is only one."""
    dataset: str | None
    sample: int
    query_set: str
    """Whose examples are asked; empty where the memory has none."""
    apart: bool = False
    """Whether other samples have a dataset, while this one has none."""

    def link(self, **changes: str) -> str:
        written = {"memory": self.memory, "dataset": self.dataset, "sample": str(self.sample), "set": self.query_set}
        return "sample?" + query_string({name: own for name, own in (written | changes).items() if own})

    @property
    def chip(self) -> Chip:
        """That leaves the sample out."""
        if self.dataset is None and not self.apart:
            return Chip.of(False, ("sample",), (self.sample,))
        return Chip.of(False, ("dataset", "sample"), (self.dataset, self.sample))

    def state(self, info: MemoryInfo, layer: str, row: int = 0) -> State:
        """The page of an example without the sample."""
        return State(self.memory, self.query_set, row, layer, default_by(info), chips=(self.chip,))


def read_sample(params: Params, info: MemoryInfo, memory: str) -> SampleAddress | list[Fault]:
    """What an address names, or what is wrong with it."""
    said = dict(params)
    faults = [
        Fault(name, f"The page knows no parameter {name!r}. It knows {', '.join(_NAMES)}.")
        for name in said
        if name not in _NAMES
    ]
    number = said.get("sample", "")
    if not number.removeprefix("-").isdecimal() or not number.isascii() or len(number) > 19:
        faults.append(Fault("sample", f"sample is {number[:_LONGEST]!r}; it is a whole number."))
    dataset = said.get("dataset")
    datasets = tuple((own, query_string({**said, "dataset": own})) for own in list(info.datasets)[:40])
    if dataset is not None and dataset not in info.datasets:
        faults.append(Fault("dataset", f"There is no dataset {dataset[:_LONGEST]!r}.", datasets))
    names = [own.name for own in info.query_sets]
    query_set = said.get("set", next(iter(names), ""))
    if query_set and query_set not in names:
        choices = tuple((own, query_string({**said, "set": own})) for own in names)
        faults.append(Fault("set", f"There is no query set {query_set[:_LONGEST]!r}.", choices))
    apart = dataset is None and bool(info.datasets) and "dataset" not in complete_columns(info)
    if dataset is None and info.datasets and not apart:
        first, *others = info.datasets
        if others and not faults:
            faults.append(Fault("dataset", "Each dataset has its own samples. Name one.", datasets))
        dataset = first
    return faults or SampleAddress(memory, dataset, int(number), query_set, apart)


@dataclass(frozen=True)
class SamplePanel:
    dataset: str | None
    sample: int
    label: int | None
    label_name: str
    preview: ShownPreview
    missing: str
    visits: tuple[tuple[int, int], ...]
    """The steps it was trained on, each with its slots."""
    steps: int
    """Recorded ones."""
    hue: int

    @property
    def drawn(self) -> list[tuple[int, int, list[tuple[int, float]], float]]:
        """Of each bar of the timeline its first and last step, and how many slots are of them."""
        each, bars = bars_of(self.steps)
        counts = np.zeros(bars, dtype=np.int64)
        for step, count in self.visits:
            counts[step // each] += count
        return [
            (bar * each, min((bar + 1) * each, self.steps) - 1, [(self.hue, float(count))], float(count))
            for bar, count in enumerate(counts.tolist())
        ]


def sample_panel(memory: Answers, info: MemoryInfo, address: SampleAddress) -> SamplePanel:
    """Raises NotFound where no slot is of the sample."""
    layer, query = _asked(memory, info, address)
    only = Chip(True, address.chip.conditions).sql(complete_columns(info))
    try:
        steps = memory.group_sum(layer, query, by="step", where=only)
    except EmptyMask:
        raise NotFound(f"No training on {address.chip.words} is recorded.", field="sample") from None
    labels = memory.group_sum(layer, query, by="label", where=only) if "label" in _columns(info, layer) else None
    label = labels.groups[0][0] if labels is not None and len(labels.groups) == 1 else None
    slot = {"dataset": address.dataset, "sample": address.sample, "label": label}
    shown = shown_of_slots(memory, info, [slot])
    return SamplePanel(
        dataset=address.dataset,
        sample=address.sample,
        label=label,
        label_name=label_names(memory, info).of(label, address.dataset),
        preview=shown[0],
        missing=shown.missing,
        visits=tuple((int(step), count) for (step,), count in zip(steps.groups, steps.counts.tolist(), strict=True)),
        steps=info.steps,
        hue=hue_of(info, default_by(info), [slot.get(column) for column in default_by(info)]),
    )


@dataclass(frozen=True)
class Moved:
    card: ExampleCard
    change: float
    """Of the margin, without the sample."""
    becomes: int | None
    """The largest output without the sample, where it is another one."""
    state: State
    """The page of the example without the sample."""


@dataclass(frozen=True)
class MovedPanel:
    query_set: str
    layer: str
    """That gives the network's outputs; empty where none does."""
    tried: int = 0
    count: int = 0
    """Examples of the query set."""
    helped: tuple[Moved, ...] = ()
    """Whose margin is smaller without the sample, the largest change first."""
    hurt: tuple[Moved, ...] = ()
    """Whose margin is larger without it."""
    changed: int = 0
    """Predictions that are others without it."""
    largest: float = 0.0
    labelled: bool = False
    of_tokens: bool = False
    """Whether the predictions are those of one token of each example, its last one with a label."""
    status: Status | None = None


def moved_panel(memory: Answers, info: MemoryInfo, address: SampleAddress) -> MovedPanel:
    """The margin of an example is its label's output, or without a label the largest one, less the largest other one,
    all of the complete training.
    """
    examples = examples_of(memory, info, address.query_set)
    found = output_layer(memory, info, examples)
    if found is None:
        return MovedPanel(address.query_set, "")
    layer = layer_of(info, found.name)
    most = MOST_TRIED if layer is None else max(1, min(MOST_TRIED, MOST_NUMBERS // layer.d_out))
    rows = evenly(examples.count, most)
    tokens = tokens_of(memory, info, examples, found.name)
    at = None if tokens == 1 else [examples.default_token(row, tokens) for row in rows.tolist()]
    named = map(str, rows.tolist()) if at is None else (f"{row}:{own}" for row, own in zip(rows, at, strict=True))
    query = f"{address.query_set}/{','.join(named)}"
    answer = memory.output(found.name, query)
    whole = np.asarray(answer, dtype=np.float64)
    left = np.asarray(memory.output(found.name, query, address.chip.sql(complete_columns(info))), dtype=np.float64)
    every = np.arange(len(rows))
    own, labelled = whole.argmax(axis=1), False
    for place, row in enumerate(rows.tolist()):
        label = examples.label_at(row, None if at is None else at[place], tokens)
        if label is not None and label < whole.shape[1]:
            own[place], labelled = label, True
    others = whole.copy()
    others[every, own] = -np.inf
    other = others.argmax(axis=1)
    several = whole.shape[1] > 1
    changes = (left - whole)[every, own] - ((left - whole)[every, other] if several else 0.0)
    order = np.argsort(changes, kind="stable")
    helped = [place for place in order[:_SHOWN] if changes[place] < 0]
    hurt = [place for place in order[::-1][:_SHOWN] if changes[place] > 0]
    cards, _ = example_cards(memory, info, examples, rows[[*helped, *hurt]])
    becomes = left.argmax(axis=1)

    def moved(place: Any, card: ExampleCard) -> Moved:
        flips = int(becomes[place]) if becomes[place] != whole[place].argmax() else None
        return Moved(card, float(changes[place]), flips, address.state(info, found.name, card.row))

    return MovedPanel(
        query_set=address.query_set,
        layer=found.name,
        tried=len(rows),
        count=examples.count,
        helped=tuple(map(moved, helped, cards)),
        hurt=tuple(map(moved, hurt, cards[len(helped) :])),
        changed=int((becomes != whole.argmax(axis=1)).sum()),
        largest=float(np.abs(changes).max(initial=0.0)),
        labelled=labelled,
        of_tokens=at is not None,
        status=answer.status,
    )


def _asked(memory: Answers, info: MemoryInfo, address: SampleAddress) -> tuple[str, str | NDArray[np.float32]]:
    """A layer and a query of it, by which slots are counted: any will do that has samples, and the output layer is the
    smallest.
    """
    query_set = query_set_of(info, address.query_set)
    own = [] if query_set is None else layers_of(info, query_set)
    own = [layer for layer in own if not of_no_sample(memory, info, layer)] or own
    if not own:
        raise NotFound("This memory has no query set, by whose layers slots are counted.")
    layer = min(own, key=lambda one: one.d_in).name
    return layer, query_of(memory, info, State("", address.query_set, 0, layer, ()), layer)


def _columns(info: MemoryInfo, layer: str) -> Any:
    return next(info.columns[own.space] for own in info.layers if own.name == layer)
