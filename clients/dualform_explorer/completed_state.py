"""The whole state of the page that is meant, where its address leaves something to the memory."""

from __future__ import annotations

from dataclasses import replace

from dualform.answers import MemoryInfo
from dualform.methods import Answers
from dualform_explorer.examples import examples_of, moved
from dualform_explorer.output_layer import output_layer
from dualform_explorer.reading import layer_of
from dualform_explorer.state import State


def completed(memory: Answers, info: MemoryInfo, state: State, move: int) -> State:
    """So many examples further on, and of contributions where they go to."""
    there = moved(memory, info, state, move)
    if there.score != "contribution" or there.target:
        return there
    return replace(there, target=_target(memory, info, there))


def _target(memory: Answers, info: MemoryInfo, state: State) -> str:
    """What tells most of an example: the output that the network read, less the one that it should have read, where it
    misclassified it. The layer's first output where its outputs are not the network's.
    """
    examples = examples_of(memory, info, state.query_set)
    found, layer = output_layer(memory, info, examples), layer_of(info, state.layer)
    if found is None or layer is None or found.name != layer.name:
        return "0"
    if examples.read is None or state.row >= examples.count:
        return "0"
    read = int(examples.read[state.row])
    return f"{read}-{examples.label(state.row)}" if state.row in examples.misclassified else str(read)
