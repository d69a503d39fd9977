"""The answer: the prediction as a sum of contributions, all outputs, and the effect of a filter."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import LayerInfo, MemoryInfo, Placebos, Status
from dualform.answers.outputs import FEWEST_SIBLINGS, central, outside
from dualform.errors import BadInput, Inexact, ServiceError
from dualform_explorer.examples import SETS, BaseRates, LabelNames
from dualform_explorer.groups import MOST_GROUPS, Terms, hue_of, name_of, terms_of
from dualform_explorer.state import State
from dualform_explorer.view import View
from dualform_explorer.words import rounded

_MOST = 10
"""The number of groups with separate bars. A single further group gets one too, in place of "1 more"."""
_TOLD, _NAMED = 6, 4
"""The most parts that the sentence names. If there are more, it names the largest, and the rest as one."""
_OFTEN = 0.05
"""If more random removals than this share change a prediction, a change of it is not unusual."""
_OF_SLOTS = ("group", "rest")
_WHOLE = frozenset(("dataset", "sample", "row", "step", "call"))
"""Columns whose conditions remove all tokens of a sample."""
MOST_OUTPUTS = 12
"""The most outputs that a page shows of a layer."""
_NEXT = 5
"""The number of a token's outputs that are named."""


@dataclass(frozen=True, eq=False)
class Term:
    """One term of a layer's output."""

    kind: str
    """"initial", "bias", "unrecorded", "group", or "rest" for all groups without a separate term."""
    said: tuple[Any, ...]
    """The values of a group's columns, or the name of another term."""
    values: NDArray[np.float64]
    """float64[d_out]"""
    name: str = ""
    """The name of a group's label."""
    count: int | None = None
    """The number of slots."""
    hue: int = 0


def _listed(
    info: MemoryInfo,
    by: tuple[str, ...],
    names: LabelNames,
    terms: Terms,
    sizes: NDArray[np.float64],
    most: int,
    named: Collection[tuple[Any, ...]] = (),
) -> list[Term]:
    """All terms. Groups with a separate term are the `most` with the largest `sizes` (float64[G]), and those that are
    `named`.
    """
    answer = terms.answer
    found = [
        Term("initial", ("initial weights",), answer.initial[0]),
        Term("bias", ("bias",), answer.bias),
        Term("unrecorded", ("outside the record",), answer.unrecorded_change[0]),
    ]
    also = [place for place, group in enumerate(terms.groups) if group in named]
    chosen = sorted({*np.argsort(-sizes, kind="stable")[:most].tolist(), *also})
    for place in chosen:
        group, own = terms.groups[place], terms.sums[place]
        name, count = name_of(names, by, group), int(terms.counts[place])
        found.append(Term("group", group, own, name, count, hue_of(info, by, group)))
    if more := len(terms.groups) - len(chosen) + terms.others:
        rest = np.delete(terms.sums, chosen, axis=0).sum(axis=0)
        rest = rest if terms.other_sum is None else rest + terms.other_sum
        count = int(np.delete(terms.counts, chosen).sum()) + terms.other_count
        found.append(Term("rest", (f"{more:,} more",), rest, count=count))
    return found


@dataclass(frozen=True)
class Part:
    """What a term adds to the output or margin that the page is about."""

    kind: str
    said: tuple[Any, ...]
    name: str
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
    """The layer that gives the network's outputs."""
    predicted: tuple[int, str]
    """The largest output without a filter, and its name. A filter does not change the question."""
    becomes: tuple[int, str] | None
    """The largest output under the filter; None without one."""
    other: tuple[int, str] | None
    """The label if the prediction is wrong, otherwise the second largest output. None for a single output."""
    label: int | None
    margin: float
    margin_before: float | None
    """The margin without the filter; None if there is no filter."""
    by: tuple[str, ...]
    """The columns that group slots."""
    parts: tuple[Part, ...]
    status: Status
    next: tuple[tuple[int, str, float], ...]
    """The largest outputs of a token: number, name, and softmax probability."""
    token: int | None
    """The token of the example whose outputs these are; None if the example has outputs as a whole."""
    most_attended: int | None
    """If parts were computed only for the groups with the largest attention, the number of all groups; otherwise None.
    """
    why_no_parts: str
    """Why the output has no parts."""
    seconds: float | None
    """The approximate seconds for the parts, if they wait to be asked for."""
    at: int | None
    """The page's step. Before the end it is no prediction of the network: only the output layer goes back in time."""
    asked: bool
    """Whether the reader chose the pair of outputs."""

    @property
    def target(self) -> str:
        """The target of the contributions, as in an address."""
        return str(self.predicted[0]) if self.other is None else f"{self.predicted[0]}-{self.other[0]}"

    @property
    def sentence(self) -> list[tuple[str, Any]]:
        """The prediction and its margin, in pieces: "text", "strong" or "number". The parts follow it."""

        def called(output: tuple[int, str]) -> list[tuple[str, Any]]:
            name = f" “{output[1]}”" if self.token is not None else f" {output[1]}"  # a word may be a comma
            return [("strong", str(output[0])), ("text", name if output[1] else "")]

        margin = ("number", self.margin)
        if self.other is None:
            begin = "Under this filter the output is " if self.becomes else "The output is "
            return [("text", begin), margin]
        top, other = called(self.predicted), called(self.other)
        begin = "" if self.at is None else f"As of step {self.at}, "
        if self.becomes or self.asked:
            said: list[tuple[str, Any]] = [("text", begin)]
            if self.becomes and not self.asked:
                stays = "stays" if self.becomes == self.predicted else "changes to"
                what = "prediction" if self.at is None else "largest output"
                said = [("text", f"{begin}{'u' if begin else 'U'}nder this filter the {what} {stays} ")]
                said += [*called(self.becomes), ("text", "; ")]
            said += [*top, ("text", " less "), *other, ("text", " is "), margin]
            before = [("text", " ("), ("number", self.margin_before), ("text", " before)")]
            return said if self.margin_before is None else [*said, *before]
        said = [("text", "Predicted "), *top]
        if self.at is not None:
            said = [("text", begin), *top, ("text", " is the largest output")]
        if self.wrong:
            return [*said, ("text", ", not "), *other, ("text", ", by "), margin]
        labelled = ", as labelled" if self.label is not None else ""
        return [*said, ("text", f"{labelled}, ahead of "), *other, ("text", " by "), margin]

    @property
    def words(self) -> str:
        """The sentence and the parts as plain text."""
        head = "".join(f"{value:.4g}" if kind == "number" else value for kind, value in self.sentence)
        parts = (f"{' '.join(map(str, part.said))} {part.value:+.4g}" for part in self.told)
        return f"{head}. {self.lead} {', '.join(parts)}." if self.parts else f"{head}."

    @property
    def lead(self) -> str:
        """What the parts after the sentence are."""
        return f"By {self.by[0]} of the training data:"

    @property
    def wrong(self) -> bool:
        return self.label is not None and self.label != self.predicted[0]

    @property
    def told(self) -> tuple[Part, ...]:
        """The parts that the sentence names, largest first unless it names all."""
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
        """The range of all partial sums."""
        sums = [0.0, *(part.end for part in self.parts)]
        return min(sums), max(sums)


def answer_panel(view: View, seconds: float | None = None) -> AnswerPanel | None:
    """None if no recorded layer gives the network's outputs. `seconds`: the approximate time for the parts, which are
    then left out.
    """
    return None if view.outputs is None else answer_of(view, view.outputs, seconds=seconds)


def answer_of(
    view: View,
    found: LayerInfo,
    pair: tuple[int, int | None] | None = None,
    named: Collection[tuple[Any, ...]] = (),
    seconds: float | None = None,
) -> AnswerPanel:
    """`found`: the layer that gives the network's outputs. `pair`: the two outputs of the margin, in place of the
    prediction and its label or runner-up, or of a margin that is the page's target. `named`: groups with a separate
    part, besides the largest. `seconds`: the approximate time for the parts, which are then left out.
    """
    names, by, chosen = view.names, view.state.by[:1], chosen_pair(view.state, found.name)
    token, label = view.token(found.name), view.label(found.name)
    whole = np.asarray(view.output(found.name, masked=False), dtype=np.float64)[0]
    default = default_pair(whole, label)
    top, other = pair or chosen or default
    if by == ("label",):  # the groups of the two outputs are never among "others"
        named = [*named, *((own,) for own in (top, other) if own is not None)]
    terms, why_no_parts = None, ""
    try:
        terms = None if seconds is not None else terms_of(view, found.name, by, named)
    except BadInput as error:  # the layer is too wide for weights of groups
        if error.field != "by":
            raise
        why_no_parts = error.message
    if terms is None:
        given = view.output(found.name)
        output, status = np.asarray(given, dtype=np.float64)[0], given.status
    else:
        output, status = terms.output(view.state.initial), terms.answer.status

    def along(values: NDArray[np.float64]) -> Any:
        return values[..., top] - (0.0 if other is None else values[..., other])

    listed = []
    if terms is not None:
        most = _MOST + (not terms.others and len(terms.groups) == _MOST + 1)
        listed = _listed(view.info, by, names, terms, np.abs(along(terms.sums)), most, named)
    shown = [term for term in listed if term.kind in _OF_SLOTS or (view.state.initial and along(term.values))]
    values = [float(along(term.values)) for term in shown]
    return AnswerPanel(
        layer=found.name,
        predicted=(top, names.of(top)),
        becomes=(int(output.argmax()), names.of(int(output.argmax()))) if view.state.masked else None,
        other=None if other is None else (other, names.of(other)),
        label=label,
        margin=float(along(output)),
        margin_before=float(along(whole)) if view.state.masked else None,
        by=by,
        parts=tuple(
            Part(term.kind, term.said, term.name, value, begin, term.hue)
            for term, value, begin in zip(shown, values, accumulate(values, initial=0.0), strict=False)
        ),
        status=status,
        next=_next(output, names) if token is not None else (),
        token=token,
        most_attended=len(terms.groups) if terms is not None and terms.others else None,
        why_no_parts=why_no_parts,
        seconds=seconds,
        at=view.state.at,
        asked=chosen not in (None, default),
    )


def chosen_pair(state: State, output_layer: str) -> tuple[int, int] | None:
    """The two outputs of a margin of the network's outputs that the reader's contributions are measured along."""
    if state.score != "contribution" or state.layer != output_layer or "-" not in state.target:
        return None
    top, other = map(int, state.target.split("-"))
    return top, other


def default_pair(outputs: NDArray[np.float64], label: int | None) -> tuple[int, int | None]:
    """The largest of float64[d_out], and the label if it is another one, or else the second largest."""
    top, second = [*np.argsort(-outputs, kind="stable")[:2].tolist(), None][:2]
    return top, label if second is not None and label not in (None, top) else second


def _next(output: NDArray[np.float64], names: LabelNames) -> tuple[tuple[int, str, float], ...]:
    """The largest outputs and their softmax probabilities."""
    shares = np.exp(output - output.max())
    shares = shares / shares.sum()
    order = np.argsort(-output, kind="stable")[:_NEXT].tolist()
    return tuple((number, names.of(number), float(shares[number])) for number in order)


@dataclass(frozen=True, eq=False)
class TermsPanel:
    layer: str
    outputs: tuple[tuple[int, str], ...]
    """The outputs to show: number and name."""
    terms: tuple[Term, ...]
    output: NDArray[np.float64]
    """float64[d_out]: the output on the page, which may lack the initial weights and the bias."""
    residual: NDArray[np.float64]
    """float64[d_out]: the output minus all terms."""
    unexplained: float | None
    """The largest difference between the network's own output at the end of training and the output from the record."""
    status: Status

    @property
    def largest(self) -> float:
        """The largest absolute value of a term that is shown."""
        shown = [number for number, _ in self.outputs]
        return max((float(np.abs(term.values[shown]).max(initial=0.0)) for term in self.terms), default=0.0)


def terms_panel(view: View) -> TermsPanel:
    found, names = view.outputs, view.names
    layer = view.state.layer if found is None else found.name
    terms = terms_of(view, layer, view.state.by)
    answer, output = terms.answer, terms.output(view.state.initial)
    sizes = np.abs(terms.sums).max(axis=1, initial=0.0)
    listed = _listed(view.info, view.state.by, names, terms, sizes, MOST_GROUPS)
    shown = _shown(output, None, view.label(layer) if found is not None else None)
    return TermsPanel(
        layer=layer,
        outputs=tuple((number, names.of(number) if found is not None else "") for number in shown),
        terms=tuple(term for term in listed if term.kind != "unrecorded" or term.values.any()),
        output=output,
        residual=answer.residual[0],
        unexplained=None if answer.unexplained is None else float(np.abs(answer.unexplained[0]).max(initial=0.0)),
        status=answer.status,
    )


@dataclass(frozen=True)
class Output:
    number: int
    name: str
    full: float
    """After the page's step, with all slots."""
    masked: float | None
    """Under the filter; None without one."""
    label: bool
    """Whether it is the example's label."""

    @property
    def difference(self) -> float | None:
        return None if self.masked is None else self.masked - self.full


@dataclass(frozen=True)
class OutputPanel:
    layer: str
    network: bool
    """Whether the layer's outputs are the network's."""
    outputs: tuple[Output, ...]
    """The outputs to show, by number."""
    total: int
    """The number of outputs of the layer."""
    full: int
    """The number of the largest output."""
    masked: int | None
    stored: int | None
    """The number of the network's largest output when the query set was stored."""
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
        """Whether the record at the end has a different largest output than the network had."""
        return self.network and self.stored is not None and self.stored != self.full


def output_panel(view: View) -> OutputPanel:
    found, names, masked = view.outputs, view.names, None
    layer = view.layer if found is None else found
    name = view.state.layer if found is None else found.name
    answer = view.output(name, masked=False)
    full = np.asarray(answer, dtype=np.float64)[0]
    if view.state.masked:
        answer = view.output(name)
        masked = np.asarray(answer, dtype=np.float64)[0]
    label = view.label(name) if found is not None and len(full) > 1 else None
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
        outputs=outputs,
        total=layer.d_out,
        full=largest,
        masked=left,
        stored=view.predicted(name),
        status=answer.status,
        unrecorded_change=answer.unrecorded_change,
    )


def _shown(full: NDArray[np.float64], masked: NDArray[np.float64] | None, label: int | None) -> list[int]:
    """All outputs if there are few. Otherwise the largest, those that the filter moves most, and the label's."""
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


@dataclass(frozen=True, eq=False)
class Null:
    """Other changes of the margin, with which a filter's change is compared."""

    name: str
    changes: NDArray[np.float64]
    """float64[sets]"""
    judges: bool
    """Whether they are enough for a verdict."""

    @property
    def range(self) -> str:
        """The range of the central 95 %, as verdicts have it."""
        low, high = central(self.changes[None])[:, 0].tolist()
        return f"{rounded(low)} to {rounded(high)}"


@dataclass(frozen=True, eq=False)
class PlaceboPanel:
    answer: Placebos | None = None
    """For the page's example."""
    rates: BaseRates | None = None
    """Over the query set; None without labels."""
    before: str = ""
    """The name of the prediction without the filter."""
    after: str = ""
    note: str = ""
    """Why there is no answer."""
    of_tokens: bool = False
    """Whether the filter may remove some tokens of a sample, where random sets remove samples whole."""
    at: int | None = None
    """The page's step."""

    @property
    def verdict(self) -> str:
        """Where the margin's change is among others; empty without an answer, and with none that are alike."""
        own = self.answer
        if own is None:
            return ""
        siblings = len(own.siblings) >= FEWEST_SIBLINGS
        if self.of_tokens:
            within = not outside(own.change, own.sibling_changes)[0]
            return "" if not siblings else "usual among its siblings" if within else "unusual among its siblings"
        if own.unusual[0]:
            return "unusual"
        outer = outside(own.change, own.random_changes)[0]
        return "more than random, usual among its siblings" if outer else "within the random range"

    @property
    def unusual(self) -> bool:
        return self.verdict.startswith("unusual")

    @property
    def nulls(self) -> tuple[Null, ...]:
        """The changes to compare with: random sets, and siblings."""
        own = self.answer
        if own is None:
            return ()
        random = f"{own.random} removals of about {rounded(own.removed)} of {rounded(own.total)} {own.unit} at random"
        if self.of_tokens:
            random += ", each whole: another kind of removal than of some tokens"
        found = [Null(random, own.random_changes[0], not self.of_tokens)]
        if count := len(own.siblings):
            some = ", ".join(own.siblings[:2])
            siblings = f"{count} other removal{'s' if count > 1 else ''} of its kind ({some}"
            siblings += f"{', …' if count > 2 else ''})"
            found.append(Null(siblings, own.sibling_changes[0], count >= FEWEST_SIBLINGS))
        return tuple(found)

    @property
    def prediction(self) -> str:
        """How the prediction changes, and how often it does by chance."""
        own = self.answer
        if own is None:
            return ""
        flips, change, margin = float(own.random_flips[0]), own.change.item(), own.margin.item()
        share = "none" if not flips else "all" if flips == 1 else f"{100 * flips:.0f}\N{NARROW NO-BREAK SPACE}%"
        what = "prediction" if self.at is None else "largest output"
        if not own.flips[0]:
            return f"The {what} stays {self.before}; {share} of the random removals change it."
        leads = f"{self.before} led by {rounded(margin)}, and is {rounded(-margin - change)} behind {self.after}"
        size = ", but the size of the change is unusual" if self.unusual else ""
        little = f", so the flip alone says little{size}" if flips > _OFTEN else ""
        return f"The {what} changes: {leads}. Of the random removals, {share} change it, too{little}."

    @property
    def words(self) -> str:
        """The whole panel as plain text."""
        if self.answer is None:
            return self.note
        change = f"The margin changes by {rounded(self.answer.change.item())}"
        nulls = (f"by {null.range} in {null.name}" for null in self.nulls if null.judges)
        return f"{'; '.join((change, *nulls))}. {self.prediction}"


def placebo_panel(view: View) -> PlaceboPanel | None:
    """Asked only about the output layer, and only under a filter, because the first question needs a pass over its
    training. None without a filter of slots.
    """
    kept = view.where
    if kept is None:
        return None
    found, names = view.outputs, view.names
    layer = view.state.layer if found is None else found.name
    if layer != view.info.output_layer:
        return PlaceboPanel(note="Random sets are drawn only for the output layer.")
    if not view.state.initial:
        return PlaceboPanel(note="Random sets are drawn only with the initial weights and the bias.")
    try:
        query = view.query(layer)
        answer = view.memory.placebo(layer, query, kept, SETS, view.state.at, view.state.inexact)
        whole = None
        if found is not None:
            whole = view.rated(view.examples, layer, kept, view.state.at, view.state.inexact)
    except (BadInput, Inexact, ServiceError) as error:
        if error.field == "where":
            raise
        return PlaceboPanel(note=f"No random sets: {error.message}")
    of_tokens = view.layer_named(layer).space != "sample"
    quoted = "“{}”" if of_tokens else "{}"  # a word may be a comma
    before, after = (
        " ".join((str(number), *(quoted.format(own) for own in (names.of(number),) if own)))
        for number in (int(answer.predicted[0]), int(answer.outcomes[0, 0]))
    )
    columns = [own.column for chip in view.state.chips for own in chip.conditions]
    some = of_tokens and (bool(view.state.where) or any(own not in _WHOLE for own in columns))
    return PlaceboPanel(answer, None if whole is None else whole.rates, before, after, "", some, view.state.at)
