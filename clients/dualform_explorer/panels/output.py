"""What the network answers, in full and without what the mask leaves out, and the difference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers import MemoryInfo, Status
from dualform.errors import NotFound
from dualform.methods import Answers
from dualform_explorer.examples import examples_of, query_of
from dualform_explorer.labels import label_names
from dualform_explorer.output_layer import MOST_OUTPUTS, output_layer
from dualform_explorer.questions import where
from dualform_explorer.reading import layer_of
from dualform_explorer.state import State


@dataclass(frozen=True)
class Output:
    number: int
    name: str
    full: float
    """As of the page's step, with all slots."""
    masked: float | None
    """Without what the mask leaves out; None where there is no mask."""
    label: bool
    """Whether it is the example's."""

    @property
    def difference(self) -> float | None:
        return None if self.masked is None else self.masked - self.full


@dataclass(frozen=True)
class OutputPanel:
    layer: str
    network: bool
    """Whether the layer's outputs are the network's."""
    difference: float | None
    """The largest between them, over the examples that were tried; None where it is not the network's."""
    tried: int
    outputs: tuple[Output, ...]
    """Those of which there is something to say, by number."""
    total: int
    """How many the layer has."""
    full: int
    """The number of the largest output."""
    masked: int | None
    stored: int | None
    """The number of the largest of the network's own outputs, when the query set was taken."""
    status: Status
    unrecorded_change: float

    @property
    def flips(self) -> bool:
        return self.masked is not None and self.masked != self.full

    @property
    def known(self) -> bool:
        """Whether one of the outputs is the label's."""
        return any(own.label for own in self.outputs)

    @property
    def differs(self) -> bool:
        """Whether the record as of the end has another largest output than the network had."""
        return self.network and self.stored is not None and self.stored != self.full


def output_panel(memory: Answers, info: MemoryInfo, state: State) -> OutputPanel:
    examples = examples_of(memory, info, state.query_set)
    found = output_layer(memory, info, examples)
    name = state.layer if found is None else found.name
    layer = layer_of(info, name)
    if layer is None:
        raise NotFound(f"There is no layer {name!r}.", field="layer")
    query = query_of(memory, info, state, name)
    answer = memory.output(name, query, None, state.at, state.inexact)
    full = np.asarray(answer, dtype=np.float64)[0]
    masked = None
    if state.masked:
        answer = memory.output(name, query, where(info, state), state.at, state.inexact, initial=state.initial)
        masked = np.asarray(answer, dtype=np.float64)[0]
    label = examples.label(state.row) if found is not None and len(full) > 1 else None
    names = label_names(memory, info)
    stored = None if examples.read is None else int(examples.read[state.row])
    outputs = tuple(
        Output(
            number,
            names.of(number) if found is not None else "",
            float(full[number]),
            None if masked is None else float(masked[number]),
            number == label,
        )
        for number in _shown(full, masked, label)
    )
    largest, left = int(full.argmax()), None if masked is None else int(masked.argmax())
    return OutputPanel(
        layer=name,
        network=found is not None,
        difference=None if found is None else found.difference,
        tried=0 if found is None else found.tried,
        outputs=outputs,
        total=layer.d_out,
        full=largest,
        masked=left,
        stored=stored,
        status=answer.status,
        unrecorded_change=answer.unrecorded_change,
    )


def _shown(full: NDArray[np.float64], masked: NDArray[np.float64] | None, label: int | None) -> list[int]:
    """All outputs where they are few; else the largest, those that the mask moves furthest, and the label's."""
    if len(full) <= MOST_OUTPUTS:
        return list(range(len(full)))
    chosen = [] if label is None else [label]
    if masked is None:
        chosen += np.argsort(-full, kind="stable")[:MOST_OUTPUTS].tolist()
    else:
        thirds = (-full, -masked, -np.abs(masked - full))
        each = MOST_OUTPUTS // len(thirds)
        chosen += [number for own in thirds for number in np.argsort(own, kind="stable")[:each].tolist()]
    return sorted(set(chosen))
