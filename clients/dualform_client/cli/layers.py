"""--layer: one layer, or several that a command asks one after the other, or sums over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from dualform.errors import BadInput, NotFound
from dualform.methods import Answers
from dualform.patterns import matches
from dualform.questions.gradients import EVERY_LAYER, GRADIENT
from dualform_client.cli.importance import Importance
from dualform_client.cli.printing import print_json, print_note, print_table

_OF_SEVERAL = ",*?["
"""Letters without which a text names one layer."""


@dataclass(frozen=True)
class LayerAnswer:
    """What a command says of one layer."""

    record: Mapping[str, Any]
    """As JSON has it."""
    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]
    """Of the table; gone through once."""
    importance: Importance
    """Which columns a narrow terminal gets."""
    notes: Sequence[str] = ()
    """What the reader should know beside it: sentences, of which several layers may share some."""


def asks_layers(command: Callable[..., LayerAnswer]) -> Callable[..., None]:
    """Has a command, which answers for one layer of a memory or of two, asked of each layer that --layer names.

    Gradients are summed over all that it names, so that with their score the command is asked once, with a list of
    names, or "*" for every layer that has some. JSON is the record of the one answer, or {"layers": [{"layer": NAME,
    …}, …]} where --layer may name several that are asked one after the other.
    """

    @wraps(command)
    def asked(memory: Answers | tuple[Answers, ...], layer: str, as_json: bool, **rest: Any) -> None:
        of = memory[0] if isinstance(memory, tuple) else memory
        if rest.get("score") == GRADIENT:
            summed = layer if layer == EVERY_LAYER else named_layers(of, layer) or [layer]
            answer = command(memory, summed, **rest)
            print_json(answer.record) if as_json else _show(iter([answer]))
            return
        names = named_layers(of, layer)
        if not as_json:
            _show(command(memory, name, **rest) for name in names or [layer])
        elif names is None:
            print_json(command(memory, layer, **rest).record)
        else:
            print_json({"layers": [{"layer": name, **command(memory, name, **rest).record} for name in names]})

    return asked


def named_layers(memory: Answers, said: str) -> Sequence[str] | None:
    """The layers that a list of names and patterns names, each once, in the list's order and the network's.

    None for a text that is the name of one layer, known or not. Raises NotFound for a part that names none.
    """
    if not any(letter in said for letter in _OF_SEVERAL):
        return None
    layers = memory.info().layers
    names, views = [layer.name for layer in layers], {view for layer in layers for view in layer.views}
    if said in (*names, *views):
        return None
    found = dict[str, None]()
    for part in (part.strip() for part in said.split(",")):
        if not part:
            raise BadInput(f"--layer {said!r} holds an empty name.", hint="Write NAME or NAME,NAME.", field="layer")
        fitting = [name for name in names if matches(name, part)] or [part] * (part in views)
        if not fitting:
            raise NotFound(f"no layer fits {part!r}.", hint=f"Layers: {', '.join(names)}.", field="layer")
        found |= dict.fromkeys(fitting)
    return list(found)


def _show(answers: Iterator[LayerAnswer]) -> None:
    """A table for each, as soon as it is answered; no note twice."""
    told = set[str]()
    for answer in answers:
        print_table(answer.title, answer.columns, answer.rows, answer.importance)
        for note in answer.notes:
            if note not in told:
                print_note(note)
                told.add(note)
