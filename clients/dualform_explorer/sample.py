"""The page of one training sample: its preview, when it was trained on, similar samples, and the predictions that
change without it.

    ./sample?dataset=…&sample=…     with several memories, &memory=…; for a query set or layer, &set=… or &layer=…
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dualform.answers import LayerInfo, MemoryInfo, Status
from dualform.errors import EmptyMask, NotFound
from dualform.questions import SlotKeys
from dualform_explorer.examples import evenly
from dualform_explorer.filter import Chip, complete_columns
from dualform_explorer.groups import hue_of
from dualform_explorer.panels.data import Samples
from dualform_explorer.panels.training import bars_of
from dualform_explorer.previews import ShownPreview, shown_of_slots
from dualform_explorer.start import ExampleCard, example_cards
from dualform_explorer.state import Fault, Params, Reading, State, default_by, layers_of, query_string
from dualform_explorer.view import Snapshot

MOST_TRIED = 1000
"""The most examples that are asked with and without the sample, evenly spread."""
MOST_NUMBERS = 1 << 23
"""The most outputs of all those examples."""
NEIGHBOURS = 12
_SHOWN = 8
_NAMES = ("memory", "dataset", "sample", "set", "layer", "from")
_LONGEST = 400


@dataclass(frozen=True)
class SampleAddress:
    memory: str
    """Empty if there is only one."""
    dataset: str | None
    sample: int
    query_set: str
    """The query set whose examples are asked; empty if the memory has none."""
    apart: bool = False
    """Whether this sample has no dataset, but others have one."""
    layer: str | None = None
    """The layer in which samples are compared; None for the one with the shortest keys."""
    item: str = ""
    """The example, or its token as SET/EXAMPLE:TOKEN, from whose page the reader came; empty if unknown."""

    def link(self, **changes: str) -> str:
        written = {"memory": self.memory, "dataset": self.dataset, "sample": str(self.sample), "set": self.query_set}
        written |= {"layer": self.layer, "from": self.item, **changes}
        return "sample?" + query_string({name: own for name, own in written.items() if own})

    def at(self, dataset: str | None, sample: int) -> str:
        """A link to the page of another sample."""
        return replace(self, dataset=dataset, sample=sample).link()

    @property
    def back(self) -> str:
        """The address of the page that the reader came from; empty if unknown."""
        item, _, token = self.item.partition(":")
        written = {"memory": self.memory, "item": item, "token": token, "layer": self.layer}
        return "explore?" + query_string({name: own for name, own in written.items() if own}) if item else ""

    @property
    def chip(self) -> Chip:
        """The filter chip that removes the sample."""
        if self.dataset is None and not self.apart:
            return Chip.of(False, ("sample",), (self.sample,))
        return Chip.of(False, ("dataset", "sample"), (self.dataset, self.sample))

    def state(self, info: MemoryInfo, layer: str, row: int = 0) -> State:
        """The page of an example without the sample."""
        return State(self.memory, self.query_set, row, layer, default_by(info), chips=(self.chip,))


def read_sample(params: Params, info: MemoryInfo, memory: str) -> SampleAddress | list[Fault]:
    """Read an address. Returns its faults if it has any."""
    reading, said = Reading(params, info, _NAMES, ()), dict(params)
    number, dataset, layer = said.get("sample", ""), said.get("dataset"), said.get("layer")
    names = [own.name for own in info.query_sets]
    query_set = said.get("set", next(iter(names), ""))
    if not number.removeprefix("-").isdecimal() or not number.isascii() or len(number) > 19:
        reading.fault("sample", f"sample is {number[:_LONGEST]!r}; it is a whole number.")
    if dataset is not None and dataset not in info.datasets:
        reading.fault("dataset", f"There is no dataset {dataset[:_LONGEST]!r}.", info.datasets, dataset)
    if query_set and query_set not in names:
        reading.fault("set", f"There is no query set {query_set[:_LONGEST]!r}.", names, query_set)
    layers = [own.name for own in layers_of(info, query_set)]
    if layer is not None and layer not in layers:
        reading.fault("layer", f"The query set has no queries of a layer {layer[:_LONGEST]!r}.", layers, layer)
    apart = dataset is None and bool(info.datasets) and "dataset" not in complete_columns(info)
    if dataset is None and info.datasets and not apart:
        dataset, *others = info.datasets
        if others and not reading.faults:
            reading.fault("dataset", "Each dataset has its own samples. Name one.", info.datasets)
    return reading.faults or SampleAddress(memory, dataset, int(number), query_set, apart, layer, said.get("from", ""))


@dataclass(frozen=True)
class SamplePanel:
    label: int | None
    label_name: str
    preview: ShownPreview
    missing: str
    visits: tuple[tuple[int, int], ...]
    """The steps it was trained on, each with its number of slots."""
    drawn: list[tuple[int, int, list[tuple[int, float]], float]]
    """For each bar of the timeline its first and last step, and the number of slots."""


def sample_panel(snapshot: Snapshot, address: SampleAddress) -> SamplePanel:
    """Raises NotFound if the sample has no slot."""
    layer, asked = _asked(snapshot, replace(address, layer=None))
    try:
        steps = snapshot.memory.group_sum(**asked, by="step")
    except EmptyMask:
        raise NotFound(f"No training on {address.chip.words} is recorded.", field="sample") from None
    labels = (
        snapshot.memory.group_sum(**asked, by="label").groups if "label" in snapshot.info.columns[layer.space] else ()
    )
    label = labels[0][0] if len(labels) == 1 else None
    visits = tuple((int(step), count) for (step,), count in zip(steps.groups, steps.counts.tolist(), strict=True))
    slot = {"dataset": address.dataset, "sample": address.sample, "label": label}
    shown = shown_of_slots(snapshot, [slot])
    hue = hue_of(snapshot.info, default_by(snapshot.info), [slot.get(column) for column in default_by(snapshot.info)])
    each, bars = bars_of(snapshot.info.steps)
    counts = np.zeros(bars)
    for step, count in visits:
        counts[step // each] += count
    return SamplePanel(
        label=label,
        label_name=snapshot.names.of(label, address.dataset),
        preview=shown[0],
        missing=shown.missing,
        visits=visits,
        drawn=[
            (bar * each, min((bar + 1) * each, snapshot.info.steps) - 1, [(hue, count)], count)
            for bar, count in enumerate(counts.tolist())
        ],
    )


@dataclass(frozen=True)
class NeighboursPanel:
    layer: str
    step: int
    """The step of the key that others are compared with."""
    position: int | None
    """Its position; None for a layer without positions."""
    samples: Samples
    """The most similar first, each with the cosine of its best key."""


def neighbours_panel(snapshot: Snapshot, address: SampleAddress) -> NeighboursPanel:
    """Other samples whose keys are similar to this sample's last key."""
    layer, asked = _asked(snapshot, address)
    by = tuple(name for name in ("step", "position") if name in snapshot.info.columns[layer.space])
    last = snapshot.memory.group_sum(**asked, by=by).groups[-1]
    own = snapshot.memory.topk(**{**asked, "where": f"{asked['where']} AND {Chip.of(True, by, last).sql(())}"}, k=1)
    others = f"sample IS NOT NULL AND {address.chip.sql(snapshot.complete)}"
    hits = snapshot.memory.topk(
        layer.name, SlotKeys(own.slots[0]), NEIGHBOURS, others, score="cosine", distinct="sample"
    )
    found = zip(snapshot.memory.slots(hits).records(), hits.scores[0].tolist(), strict=True)
    rows = [{"dataset": None, **row, "value": score} for row, score in found]
    samples = Samples(snapshot.page(address.state(snapshot.info, layer.name)), rows)
    return NeighboursPanel(layer.name, last[0], last[1] if "position" in by else None, samples)


@dataclass(frozen=True)
class Moved:
    card: ExampleCard
    change: float
    """The change of the margin without the sample."""
    becomes: int | None
    """The largest output without the sample, if it changes."""


@dataclass(frozen=True)
class MovedPanel:
    layer: str
    """The layer that gives the network's outputs; empty if there is none."""
    tried: int = 0
    count: int = 0
    """The number of examples in the query set."""
    helped: tuple[Moved, ...] = ()
    """Examples whose margin is smaller without the sample, the largest change first."""
    hurt: tuple[Moved, ...] = ()
    """Examples whose margin is larger without it."""
    changed: int = 0
    """The number of predictions that change without it."""
    labelled: bool = False
    of_tokens: bool = False
    """Whether each example is represented by one token, the last one with a label."""
    status: Status | None = None


def moved_panel(snapshot: Snapshot, address: SampleAddress) -> MovedPanel:
    """The margin of an example is the output of its label, or its largest output if it has no label, minus the largest
    other output, all from the complete training.
    """
    examples = snapshot.examples_of(address.query_set)
    found = snapshot.output_layer(examples)
    if found is None:
        return MovedPanel("")
    rows = evenly(examples.count, max(1, min(MOST_TRIED, MOST_NUMBERS // found.d_out)))
    tokens = snapshot.tokens_of(examples, found.name)
    at = [None if tokens == 1 else examples.default_token(row, tokens) for row in rows.tolist()]
    named = (str(row) if own is None else f"{row}:{own}" for row, own in zip(rows, at, strict=True))
    query = f"{address.query_set}/{','.join(named)}"
    answer = snapshot.memory.output(found.name, query)
    whole = np.asarray(answer, dtype=np.float64)
    left = np.asarray(snapshot.memory.output(found.name, query, address.chip.sql(snapshot.complete)), dtype=np.float64)
    every, becomes = np.arange(len(rows)), left.argmax(axis=1)
    own, labelled = whole.argmax(axis=1), False
    flips = becomes != own
    for place, (row, token) in enumerate(zip(rows.tolist(), at, strict=True)):
        label = examples.label_at(row, token, tokens)
        if label is not None and label < whole.shape[1]:
            own[place], labelled = label, True
    others = whole.copy()
    others[every, own] = -np.inf
    changes = (left - whole)[every, own]
    if whole.shape[1] > 1:
        changes -= (left - whole)[every, others.argmax(axis=1)]
    order = np.argsort(changes, kind="stable")
    helped = [place for place in order[:_SHOWN] if changes[place] < 0]
    hurt = [place for place in order[::-1][:_SHOWN] if changes[place] > 0]
    cards, _ = example_cards(snapshot, examples, rows[[*helped, *hurt]])
    moved = tuple(
        Moved(card, float(changes[place]), int(becomes[place]) if flips[place] else None)
        for place, card in zip([*helped, *hurt], cards, strict=True)
    )
    return MovedPanel(
        layer=found.name,
        tried=len(rows),
        count=examples.count,
        helped=moved[: len(helped)],
        hurt=moved[len(helped) :],
        changed=int(flips.sum()),
        labelled=labelled,
        of_tokens=tokens > 1,
        status=answer.status,
    )


def _asked(snapshot: Snapshot, address: SampleAddress) -> tuple[LayerInfo, dict[str, Any]]:
    """A layer, and the common arguments of questions about the sample's slots in it. By default the output layer, which
    is the smallest, or another one that has samples.
    """
    own = layers_of(snapshot.info, address.query_set)
    own = [layer for layer in own if not snapshot.of_no_sample(layer)] or own
    own = [layer for layer in own if layer.name == address.layer] or own
    if not own:
        raise NotFound("This memory has no query set, by whose layers slots are counted.")
    layer = min(own, key=lambda one: one.d_in)
    query = snapshot.page(State("", address.query_set, 0, layer.name, ())).query()
    only = Chip(True, address.chip.conditions).sql(())
    return layer, {"layer": layer.name, "queries": query, "where": only}
