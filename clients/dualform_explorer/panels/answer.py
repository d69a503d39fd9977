"""The answer: the prediction as a sum of what the training brought, all outputs, and what a filter changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import MemoryInfo, Placebos, Status
from dualform.answers.placebos import FEWEST_SIBLINGS, central
from dualform.errors import BadInput, Inexact, NotFound, ServiceError
from dualform.methods import Answers
from dualform_explorer.examples import (
    MOST_OUTPUTS,
    SETS,
    BaseRates,
    LabelNames,
    examples_of,
    label_in,
    label_names,
    layer_of,
    output_layer,
    query_of,
    rated,
    token_of,
    tokens_of,
)
from dualform_explorer.groups import MOST_GROUPS, hue_of, name_of, terms_of, where
from dualform_explorer.state import State

_MOST = 10
"""Groups that have a bar of their own; one more has its own, too, in the place of "1 more"."""
_TOLD, _NAMED = 6, 4
"""Parts that the sentence names; of more, the largest and all others as one."""
_NEXT = 5
"""Of the outputs for a token, that are named."""


@dataclass(frozen=True)
class Part:
    kind: str
    """"initial", "bias", "unrecorded", "group" or "rest"."""
    said: tuple[Any, ...]
    """The values of a group's columns, or what the part is."""
    name: str
    """What a group's label is called."""
    value: float
    begin: float
    """The sum of the parts before it."""
    hue: int = 0

    @property
    def end(self) -> float:
        return self.begin + self.value


@dataclass(frozen=True)
class AnswerPanel:
    layer: str
    """That gives the network's outputs; empty where none does."""
    predicted: tuple[int, str] = (0, "")
    """The largest output without a filter, and its name: a filter changes no question."""
    becomes: tuple[int, str] | None = None
    """The largest output under the filter; None without one."""
    other: tuple[int, str] | None = None
    """The label where the prediction is wrong, else the second largest output; None of a single output."""
    label: int | None = None
    margin: float = 0.0
    by: tuple[str, ...] = ()
    """The column that groups slots."""
    parts: tuple[Part, ...] = ()
    status: Status | None = None
    next: tuple[tuple[int, str, float], ...] = ()
    """Of a token its largest outputs: number, name, and share of a softmax."""
    token: int | None = None
    """Of the example, whose outputs these are; None where it has outputs as a whole."""
    most_attended: int | None = None
    """Of how many groups, those with the largest attention, parts were computed; None where of all."""
    why_no_parts: str = ""
    """Why the output has no parts."""
    seconds: float | None = None
    """About how long the parts take, where they wait to be asked for."""
    past: bool = True
    """Whether it is of the training's end, so that the network predicted it."""

    @property
    def sentence(self) -> list[tuple[str, Any]]:
        """What is predicted, and by how much, in pieces: "text", "strong", or a "number". The parts follow it."""

        def called(output: tuple[int, str]) -> list[tuple[str, Any]]:
            name = f" “{output[1]}”" if self.token is not None else f" {output[1]}"  # a word may be a comma
            return [("strong", str(output[0])), ("text", name if output[1] else "")]

        margin = ("number", self.margin)
        if self.other is None:
            begin = "Under this filter the output is " if self.becomes else "The output is "
            return [("text", begin), margin]
        top, other = called(self.predicted), called(self.other)
        if self.becomes:
            stays = "stays" if self.becomes == self.predicted else "changes to"
            said = [("text", f"Under this filter the prediction {stays} "), *called(self.becomes), ("text", "; "), *top]
            return [*said, ("text", " less "), *other, ("text", " is "), margin]
        said = [("text", "Predicted " if self.past else "Predicts "), *top]
        if self.wrong:
            return [*said, ("text", ", not "), *other, ("text", ", by "), margin]
        labelled = ", as labelled" if self.label is not None else ""
        return [*said, ("text", f"{labelled}, ahead of "), *other, ("text", " by "), margin]

    @property
    def words(self) -> str:
        """The sentence with the parts, as plain text."""
        head = "".join(f"{value:.4g}" if kind == "number" else value for kind, value in self.sentence)
        parts = (f"{' '.join(map(str, part.said))} {part.value:+.4g}" for part in self.told)
        return f"{head}: {', '.join(parts)}." if self.parts else f"{head}."

    @property
    def wrong(self) -> bool:
        return self.label is not None and self.label != self.predicted[0]

    @property
    def told(self) -> tuple[Part, ...]:
        """What the sentence names, largest first where that is not all."""
        if len(self.parts) <= _TOLD:
            return self.parts
        order = sorted((own for own in self.parts if own.kind != "rest"), key=lambda own: -abs(own.value))
        named = tuple(order[:_NAMED])
        others = self.parts[-1].end - sum(own.value for own in named)
        return (*named, Part("rest", ("all others",), "", others, 0.0))

    @property
    def largest(self) -> float:
        return max((abs(part.value) for part in self.parts), default=0.0)

    @property
    def ends(self) -> tuple[float, float]:
        """Between which all sums lie."""
        sums = [0.0, *(part.end for part in self.parts)]
        return min(sums), max(sums)


def answer_panel(
    memory: Answers,
    info: MemoryInfo,
    state: State,
    pair: tuple[int, int | None] | None = None,
    named: Collection[tuple[Any, ...]] = (),
    seconds: float | None = None,
) -> AnswerPanel:
    """`pair`: the outputs whose margin it is, in place of the predicted one and its label or rival. `named`: groups
    that have a part of their own, besides the largest. `seconds`: about how long the parts would take; it is without
    them then.
    """
    examples = examples_of(memory, info, state.query_set)
    found = output_layer(memory, info, examples)
    if found is None:
        return AnswerPanel("")
    by = state.by[:1]
    terms, why_no_parts = None, ""
    try:
        terms = None if seconds is not None else terms_of(memory, info, state, found.name, by)
    except BadInput as error:  # of a layer that is too wide for the weights of groups
        if error.field != "by":
            raise
        why_no_parts = error.message
    if terms is None:
        query = query_of(memory, info, state, found.name)
        given = memory.output(found.name, query, where(info, state), state.at, state.inexact, initial=state.initial)
        output, status, fixed, most_attended = np.asarray(given, dtype=np.float64)[0], given.status, [], None
        groups = np.empty((0, len(output)))
    else:
        answer = terms.answer
        fixed = [("initial", "initial weights", answer.initial[0]), ("bias", "bias", answer.bias)]
        fixed.append(("unrecorded", "outside the record", answer.unrecorded_change[0]))
        output, status, groups = answer.output[0], answer.status, terms.sums
        most_attended = len(terms.groups) if terms.others else None
        if not state.initial:
            output = output - sum(own for _, _, own in fixed)
            fixed = []
    tokens = tokens_of(memory, info, examples, found.name)
    token = token_of(memory, info, examples, found.name, tokens, state)
    label = examples.label_at(state.row, token, tokens)
    if label is not None and label >= len(output):
        label = None
    whole = output
    if state.masked:
        query = query_of(memory, info, state, found.name)
        whole = np.asarray(memory.output(found.name, query, None, state.at, state.inexact))[0]
    order = np.argsort(-whole, kind="stable")
    top = int(order[0])
    other = None if len(output) < 2 else int(order[1]) if label is None or label == top else label

    if pair is not None:
        top, other = pair

    def along(values: np.ndarray) -> Any:
        return values[..., top] - (0.0 if other is None else values[..., other])

    values, names = along(groups), label_names(memory, info)
    most = _MOST + (terms is not None and not terms.others and len(values) == _MOST + 1)
    also = [] if terms is None else [place for place, group in enumerate(terms.groups) if group in named]
    chosen = sorted({*np.argsort(-np.abs(values), kind="stable")[:most].tolist(), *also})
    listed: list[tuple[str, tuple[Any, ...], str, float, int]] = [
        (kind, (words,), "", float(along(own)), 0) for kind, words, own in fixed if along(own)
    ]
    for place in chosen:
        assert terms is not None  # else there are none
        group = terms.groups[place]
        hue = hue_of(info, by, group)
        listed.append(("group", group, name_of(names, by, group), float(values[place]), hue))
    if terms is not None and (more := len(values) - len(chosen) + terms.others):
        rest = float(np.delete(values, chosen).sum())
        rest += 0.0 if terms.other_sum is None else float(along(terms.other_sum))
        listed.append(("rest", (f"{more:,} more",), "", rest, 0))
    begins = accumulate((own[3] for own in listed), initial=0.0)
    return AnswerPanel(
        layer=found.name,
        predicted=(top, names.of(top)),
        becomes=(int(output.argmax()), names.of(int(output.argmax()))) if state.masked else None,
        other=None if other is None else (other, names.of(other)),
        label=label,
        margin=float(along(output)),
        by=by,
        parts=tuple(
            Part(kind, said, name, value, begin, hue)
            for (kind, said, name, value, hue), begin in zip(listed, begins, strict=False)
        ),
        status=status,
        next=_next(output, names) if token is not None else (),
        token=token,
        most_attended=most_attended,
        why_no_parts=why_no_parts,
        seconds=seconds,
        past=state.at is None,
    )


def _next(output: NDArray[np.float64], names: LabelNames) -> tuple[tuple[int, str, float], ...]:
    """The largest outputs, and the share that a softmax gives each."""
    shares = np.exp(output - output.max())
    shares = shares / shares.sum()
    order = np.argsort(-output, kind="stable")[:_NEXT].tolist()
    return tuple((number, names.of(number), float(shares[number])) for number in order)


@dataclass(frozen=True)
class Term:
    kind: str
    """"group", "initial", "bias", "unrecorded change", "residual", "rest" (of the groups that are not shown) or
    "output".
    """
    said: tuple[Any, ...]
    """The values of a group's columns, or what else is to be said of the term."""
    name: str
    """What a group's label is called."""
    values: tuple[float, ...]
    """Along each output that is shown."""
    count: int | None = None
    """Slots."""
    hue: int = 0


@dataclass(frozen=True)
class TermsPanel:
    layer: str
    network: bool
    outputs: tuple[tuple[int, str], ...]
    """Those that are shown: number and name."""
    total: int
    """How many the layer has."""
    terms: tuple[Term, ...]
    largest: float
    """The size of the largest term of a group, or of the initial weights or the bias."""
    residual: float
    """The largest over all outputs: what the terms miss of the output."""
    unexplained: float | None
    """The largest difference between the network's own output as its training ended and what the record makes of it."""
    by: tuple[str, ...]
    initial: bool
    """Whether W_0 and the bias are part of the page's output."""
    status: Status


def terms_panel(memory: Answers, info: MemoryInfo, state: State) -> TermsPanel:
    examples = examples_of(memory, info, state.query_set)
    found = output_layer(memory, info, examples)
    layer = state.layer if found is None else found.name
    terms = terms_of(memory, info, state, layer, state.by)
    answer, names = terms.answer, label_names(memory, info)
    own, output = terms.sums, answer.output[0]
    if not state.initial:
        output = (
            output - answer.initial[0] - answer.bias - answer.unrecorded_change[0]
        )  # what slots brought, as `output` has it
    label = label_in(memory, info, state, examples, layer) if found is not None else None
    shown = _shown(output, None, label)
    order = np.argsort(-np.abs(own).max(axis=1, initial=0.0), kind="stable")[:MOST_GROUPS]
    order = np.sort(order)
    rest = np.setdiff1d(np.arange(len(own)), order)
    groups = [
        Term(
            "group",
            terms.groups[place],
            name_of(names, state.by, terms.groups[place]),
            _row(own[place], shown),
            int(terms.counts[place]),
            hue_of(info, state.by, terms.groups[place]),
        )
        for place in order.tolist()
    ]
    if more := len(rest) + terms.others:
        left = own[rest].sum(axis=0) + (0.0 if terms.other_sum is None else terms.other_sum)
        count = int(terms.counts[rest].sum()) + terms.other_count
        groups.append(Term("rest", (f"{more:,} more",), "", _row(left, shown), count))
    others = [
        Term("initial", ("W₀",), "", _row(answer.initial[0], shown)),
        Term("bias", ("bias",), "", _row(answer.bias, shown)),
    ]
    if np.any(answer.unrecorded_change[0]):
        others.append(Term("unrecorded_change", ("outside the record",), "", _row(answer.unrecorded_change[0], shown)))
    ends = [
        Term("residual", ("residual",), "", _row(answer.residual[0], shown)),
        Term("output", ("output",), "", _row(output, shown)),
    ]
    sizes = [abs(value) for term in (*others, *groups) for value in term.values]
    return TermsPanel(
        layer=layer,
        network=found is not None,
        outputs=tuple((number, names.of(number) if found is not None else "") for number in shown),
        total=len(output),
        terms=(*others, *groups, *ends),
        largest=max(sizes, default=0.0),
        residual=float(np.abs(answer.residual[0]).max(initial=0.0)),
        unexplained=None if answer.unexplained is None else float(np.abs(answer.unexplained[0]).max(initial=0.0)),
        by=state.by,
        initial=state.initial,
        status=answer.status,
    )


def _row(values: np.ndarray, shown: list[int]) -> tuple[float, ...]:
    return tuple(float(values[number]) for number in shown)


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
    label = label_in(memory, info, state, examples, name) if found is not None and len(full) > 1 else None
    if label is not None and label >= len(full):
        label = None
    names, tokens = label_names(memory, info), tokens_of(memory, info, examples, name)
    stored = examples.read_at(state.row, token_of(memory, info, examples, name, tokens, state), tokens)
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


@dataclass(frozen=True)
class Interval:
    """The central 95 % of a query's changes under several sets."""

    sets: int
    low: float
    high: float

    @classmethod
    def of(cls, changes: NDArray[np.float64]) -> Interval:
        ((low,), (high,)) = central(changes)
        return cls(changes.shape[1], float(low), float(high))


@dataclass(frozen=True)
class Verdict:
    unusual: bool
    predicted: int
    becomes: int
    change: float
    """Of the margin."""
    random: Interval
    siblings: Interval | None
    """None where they are too few to decide anything."""
    random_flips: float
    """The share of the random sets that change the prediction."""
    removed: int
    total: int
    unit: str
    rates: BaseRates | None = None
    """Over the query set; None without labels."""

    @property
    def flips(self) -> bool:
        return self.becomes != self.predicted

    @property
    def words(self) -> str:
        """As random sets do, as siblings do, or unusual among both."""
        if self.unusual:
            return "unusual"
        inside = self.random.low <= self.change <= self.random.high
        return "as random" if inside else "as its siblings"


@dataclass(frozen=True)
class PlaceboPanel:
    asked: bool
    """Whether there is a filter of slots at all; without one there is nothing to show."""
    verdict: Verdict | None = None
    note: str = ""
    """Why there is no verdict."""


def placebo_panel(memory: Answers, info: MemoryInfo, state: State) -> PlaceboPanel:
    """Asked of the output layer alone, and only under a filter: the first question takes a pass over its training."""
    kept = where(info, state)
    if kept is None:
        return PlaceboPanel(False)
    examples = examples_of(memory, info, state.query_set)
    found = output_layer(memory, info, examples)
    layer = state.layer if found is None else found.name
    if layer != info.output_layer:
        return PlaceboPanel(True, note="Random sets are drawn only for the output layer.")
    if not state.initial:
        return PlaceboPanel(True, note="Random sets are drawn only with W₀ and bias.")
    try:
        query = query_of(memory, info, state, layer)
        answer = memory.placebo(layer, query, kept, SETS, state.at, state.inexact)
        whole = None if found is None else rated(memory, examples, layer, kept, state.at, state.inexact)
    except (BadInput, Inexact, ServiceError) as error:
        if error.field == "where":
            raise
        return PlaceboPanel(True, note=f"No random sets: {error.message}")
    return PlaceboPanel(True, replace(verdict_of(answer), rates=None if whole is None else whole.rates))


def verdict_of(answer: Placebos) -> Verdict:
    """Of the answer to one query."""
    several = len(answer.siblings) >= FEWEST_SIBLINGS
    return Verdict(
        unusual=bool(answer.unusual[0]),
        predicted=int(answer.predicted[0]),
        becomes=int(answer.outcomes[0, 0]),
        change=float(answer.change[0]),
        random=Interval.of(answer.random_changes),
        siblings=Interval.of(answer.sibling_changes) if several else None,
        random_flips=float(answer.random_flips[0]),
        removed=answer.removed,
        total=answer.total,
        unit=answer.unit,
    )
