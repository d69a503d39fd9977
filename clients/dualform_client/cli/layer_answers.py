"""Answers for one layer: which layers, queries and score were asked for, and how the answer is printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any

import click

from dualform.answers import Contributions, GroupSums, Scan, Status
from dualform.answers.table import counted
from dualform.errors import BadInput, DualformError, NotFound
from dualform.methods import Answers
from dualform.patterns import matches
from dualform.questions import Queries, QuerySetExamples
from dualform.questions.gradients import EVERY_LAYER, GRADIENT
from dualform.questions.scores import CONTRIBUTION
from dualform_client.cli.options import abs_option, allow_inexact_option, at_step_option, one_score, score_option
from dualform_client.cli.printing import Note, Report, titled

_OF_SEVERAL = ",*?["
"""A --layer without these characters names one layer."""
_OF_EXAMPLES = "sample"
"""The slot space of layers with one row for each example, which has the example's label; others have rows of tokens."""
_SCORES = {"dot": "attention scores", "abs": "absolute attention scores"}
"""Names for titles; other scores have their own name."""


def asks_layers(command: Callable[..., Report]) -> Callable[..., Report]:
    """Calls a command, which answers for one layer, for each layer that --layer names.

    Gradients are summed over the layers instead: with --score gradient the command is called once, with a list of
    names, or "*" for all. JSON is the record of the one answer, or {"layers": [{"layer": NAME, …}, …]} if --layer may
    name several.
    """

    @wraps(command)
    def asked(memory: Answers | tuple[Answers, ...], layer: str | None, **rest: Any) -> Report:
        of = memory[0] if isinstance(memory, tuple) else memory
        if layer is None:
            layer = EVERY_LAYER if rest.get("score") == GRADIENT else of.info().require_output_layer()
        if rest.get("score") == GRADIENT:
            summed = layer if layer == EVERY_LAYER else named_layers(of, layer) or [layer]
            return command(memory, summed, **rest)
        names = named_layers(of, layer)
        if names is None:
            return command(memory, layer, **rest)
        reports = ((name, command(memory, name, **rest)) for name in names)
        return Report(
            lambda: {"layers": [{"layer": name, **report.for_json()} for name, report in reports]},
            (part for _, report in reports for part in report.shown),
        )

    return asked


def named_layers(memory: Answers, said: str) -> Sequence[str] | None:
    """The layers that a list of names and patterns matches, each once, in the order of the list and the network.

    None if `said` is the name of one layer, known or not. Raises NotFound if a part of the list matches no layer.
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
            raise BadInput(f"--layer {said!r} holds an empty name.", hint="Write --layer NAME,NAME.", field="layer")
        fitting = [name for name in names if matches(name, part)] or [part] * (part in views)
        if not fitting:
            raise NotFound(f"No layer matches {part!r}.", hint=f"Layers: {', '.join(names)}.", field="layer")
        found |= dict.fromkeys(fitting)
    return list(found)


@dataclass(frozen=True)
class AskedQuery:
    """One query of a question, with the name that tables show."""

    query: int
    """Its index, from 0."""
    name: str
    """SET/EXAMPLE, SET/EXAMPLE:TOKEN of a layer that sees tokens, or the index of a query from a file."""
    label: int | None = None
    """None if it is unknown."""

    def __str__(self) -> str:
        return self.name if self.label is None else f"{self.name} (label {self.label})"


def asked_queries(memory: Answers, queries: Queries, count: int, space: str) -> list[AskedQuery]:
    """The queries of an answer for `count` queries, from a layer of that slot space."""
    if not isinstance(queries, QuerySetExamples):
        return [AskedQuery(query, str(query)) for query in range(count)]
    examples = None
    if queries.examples is None and space != _OF_EXAMPLES:
        examples = next(own.examples for own in memory.info().query_sets if own.name == queries.query_set)
    labels = _labels(memory, queries.query_set) if space == _OF_EXAMPLES else {}
    return [AskedQuery(query, name, labels.get(name)) for query, name in enumerate(queries.names(count, examples))]


def _labels(memory: Answers, query_set: str) -> dict[str, int]:
    """The known labels, by SET/EXAMPLE."""
    try:
        stored = memory.query_set(query_set)
    except DualformError:  # labels are optional: the question itself is answered
        return {}
    of_examples = stored.labels is not None and stored.examples in (None, len(stored.labels))
    known = stored.labels.tolist() if stored.labels is not None and of_examples else []
    return {f"{query_set}/{example}": label for example, label in enumerate(known) if label >= 0}


@dataclass(frozen=True)
class Score:
    """The score to ask for: --abs, --score, and --target with its options."""

    name: str
    target: str | None
    at_step: int | None
    allow_inexact: bool

    @property
    def asked(self) -> dict[str, Any]:
        """Arguments for the methods of a memory."""
        return {"score": self.name, **self._target, "allow_inexact": self.allow_inexact}

    @property
    def _target(self) -> dict[str, Any]:
        return {"target": self.target, "at_step": self.at_step}

    def __str__(self) -> str:
        if self.target is None:
            return _SCORES.get(self.name, f"{self.name} scores")
        at = "" if self.at_step is None else f" as of step {self.at_step:,}"
        return f"contributions to output {self.target.replace('-', ' less output ')}{at}"

    def record(self, status: Status | None) -> dict[str, Any]:
        """Its part of the JSON record."""
        return {"score": self.name, **({} if status is None else {**self._target, "status": asdict(status)})}

    def space_of_queries(self, space: str) -> str:
        """The slot space of the queries, for an answer about slots of `space`: gradients belong to examples."""
        return _OF_EXAMPLES if self.name == GRADIENT else space


def _as_target(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"\d+(-\d+)?", value):
        raise BadInput(
            f"--target must be N or N-M, not {value!r}.",
            hint="Give the number of an output, or 3-8 for output 3 less output 8.",
            field="target",
        )
    return value


_target_option = click.option(
    "--target",
    metavar="N[-M]",
    callback=_as_target,
    help="Score by what was added to output N, or N less M.",
)


def takes_score(command: Callable[..., Report]) -> Callable[..., Report]:
    """Adds the options of a score to a command, which gets them as `score`."""

    @wraps(command)
    def asked(
        *arguments: Any,
        absolute: bool,
        score: str | None,
        target: str | None,
        at_step: int | None,
        allow_inexact: bool,
        **rest: Any,
    ) -> Report:
        given = {"--score contribution": score == CONTRIBUTION, "--at-step": at_step is not None}
        for option, said in {**given, "--allow-inexact": allow_inexact}.items():
            if said and target is None:
                raise BadInput(f"{option} needs --target.", hint="Give --target N, an output's number.", field="target")
        name = CONTRIBUTION if target is not None and score is None and not absolute else one_score(absolute, score)
        return command(*arguments, score=Score(name, target, at_step, allow_inexact), **rest)

    for option in (allow_inexact_option, at_step_option, _target_option, abs_option, score_option):
        asked = option(asked)
    return asked


def layer_title(layer: str | Sequence[str], *parts: str) -> str:
    """The title of an answer for one layer, or for a sum over several."""
    if layer == EVERY_LAYER:
        return titled("All layers", *parts)
    names = [layer] if isinstance(layer, str) else layer
    return titled(f"Layer{'s'[: len(names) > 1]} {' + '.join(names)}", *parts)


def scanned(scan: Scan, space: str, matching: int | None = None) -> str:
    """The number of slots and the seconds of an answer."""
    left = scan.slots_matching if matching is None else matching
    of = "" if left == scan.slots_scanned else f"{left:,} of "
    noun = "slot" if space == _OF_EXAMPLES else f"{space} slot"
    return titled(f"{of}{counted(scan.slots_scanned, noun)}", f"{scan.seconds:.2f} s")


def share(scan: Scan) -> dict[str, float]:
    """The share of the slots that a budget kept, for JSON; empty if all were kept."""
    return {"share": scan.share} if scan.sample else {}


def sample_notes(scan: Scan) -> list[Note]:
    """A note about the share of the slots that a budget kept."""
    return [Note(f"Computed from {scan.sample}.")] if scan.sample else []


def groups_record(answer: GroupSums | Contributions) -> list[dict[str, Any]]:
    """The groups and the number of their slots, for JSON."""
    return [
        {**dict(zip(answer.by, key, strict=True)), "count": count}
        for key, count in zip(answer.groups, answer.counts.tolist(), strict=True)
    ]


def names_record(asked: list[AskedQuery]) -> dict[str, Any]:
    """The names of the queries, for JSON."""
    return {"asked": [asdict(own) for own in asked]}


def status_notes(layer: str | Sequence[str], status: Status | None, unrecorded_change: float = 0.0) -> list[Note]:
    """A note about a record that is not exact or has an unrecorded change."""
    if status is None or (status.exact and not unrecorded_change > 0):
        return []
    reason = f": {status.reason.rstrip('.')}" if status.reason else ""
    change = f" Unrecorded change: {unrecorded_change:.2g} of the distance that training moved the weights."
    return [Note(f"{layer}: {status}{reason}.{change if unrecorded_change > 0 else ''}")]
