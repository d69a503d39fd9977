"""What a reader takes along: one HTML file with chosen predictions, each under every chosen filter, without a server;
and of a panel its questions, as Python and as commands, and their answers as CSV.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from hashlib import sha256
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jinja2 import Environment
from markupsafe import Markup

from dualform.answers import MemoryInfo
from dualform.answers.table import Table
from dualform.errors import BadInput, DualformError, NotFound
from dualform.methods import Answers
from dualform.questions import Contribution, Distribution, GroupSum, Output, Placebo, QuerySetExamples, TopK
from dualform.questions.question import Question
from dualform_explorer.filter import Chip, read_chip
from dualform_explorer.memories import beside_of
from dualform_explorer.panels import PANELS, panels_in, template_of
from dualform_explorer.panels.example import QueryPanel
from dualform_explorer.rendering import Failure, templates
from dualform_explorer.start import MOST_DATASETS, ExampleCard, corrections_panel, example_cards, query_set_panel
from dualform_explorer.state import SCORES, SECTIONS, State, layer_of, layers_of, read_state
from dualform_explorer.view import Snapshot

_MOST = 12
"""The default number of predictions."""


@dataclass(frozen=True)
class Choice:
    items: tuple[State, ...]
    """The predictions, without a filter."""
    masks: tuple[tuple[Chip, ...], ...]
    """The filters to export; the first one is empty."""

    def state(self, item: int, mask: int) -> State:
        return replace(self.items[item], chips=self.masks[mask])

    @property
    def views(self) -> int:
        return len(self.items) * len(self.masks)


def choose(snapshot: Snapshot, items: Sequence[str], without: Sequence[str]) -> Choice:
    """`items`: QUERY_SET/EXAMPLE each; by default the examples of the start page. `without`: COLUMN:VALUE each; by
    default each dataset if there are several.

    Raises BadInput for unknown names.
    """
    info = snapshot.info
    if not info.query_sets:
        raise BadInput(
            "This memory has no query set, whose predictions would be exported.",
            hint="Store examples with recorder.query_set while you record.",
            field="item",
        )
    chosen = items or [f"{query_set}/{row}" for query_set, row in _worth_looking_at(snapshot)]
    states = list(dict.fromkeys(_state(snapshot, item) for item in chosen))
    return Choice(tuple(states), ((), *_masks(info, states, without)))


def _state(snapshot: Snapshot, item: str) -> State:
    reading = read_state([("item", item)], snapshot.info)
    state = reading.state
    if state is None:
        raise BadInput(" ".join(fault.message for fault in reading.faults), field="item")
    examples = snapshot.examples_of(state.query_set)
    if state.row >= examples.count:
        raise BadInput(
            f"The query set {state.query_set} has no example {state.row}: it has 0 to {examples.count - 1}.",
            field="item",
        )
    found = snapshot.output_layer(examples)
    return state if found is None else replace(state, layer=found.name)


def _worth_looking_at(snapshot: Snapshot) -> list[tuple[str, int]]:
    """For each query set: misclassified examples that a filter corrects, then other misclassified ones, or the first
    ones.
    """
    names = [own.name for own in snapshot.info.query_sets if layers_of(snapshot.info, own)]
    parts = [(name, corrections_panel(snapshot, name), query_set_panel(snapshot, name)) for name in names]
    corrected = [[(name, card.row) for own in one.corrections for card in own.cards] for name, one, _ in parts]
    others = [[(name, card.row) for card in one.cards] for name, _, one in parts]
    turns = chain(zip_longest(*corrected), zip_longest(*others))
    return list(dict.fromkeys(own for turn in turns for own in turn if own is not None))[:_MOST]


def _masks(info: MemoryInfo, states: Sequence[State], without: Sequence[str]) -> list[tuple[Chip, ...]]:
    if not without:
        datasets = info.datasets if 1 < len(info.datasets) <= MOST_DATASETS else ()
        return [(Chip.of(False, ("dataset",), (name,)),) for name in datasets]
    tables = [info.columns[layer.space] for state in states if (layer := layer_of(info, state.layer)) is not None]
    columns = {name: kind for name, kind in tables[0].items() if all(name in own for own in tables)}
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
        for own in chip.conditions:
            if own.column == "dataset" and isinstance(own.value, str) and own.value not in info.datasets:
                hint = f"There is {', '.join(info.datasets)}."
                raise BadInput(f"There is no dataset {own.value!r}.", hint=hint, field="without")
        masks.append((chip,))
    return list(dict.fromkeys(masks))  # one filter can be written in several ways


_FORM = re.compile(r"<form\b.*?</form>", re.DOTALL)
_FIGURE = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
"""A figure, in which a `<span>` would be invalid."""
_LINK = re.compile(r"<a\b([^>]*)>(.*?)</a>", re.DOTALL)
_HIT = re.compile(r'<rect [^>]*class="hit"[^>]*/>')
"""Areas of a figure that only scripts use."""
_KEPT = re.compile(r'class="(?:[^"]* )?(?:card|chip|token|samples|draws)[ "]')
"""Links that are kept as text, because their content says something."""
_LEADS = re.compile(r'\s(href|aria-current|tabindex)="[^"]*"')
_NAMED = re.compile(r'\b(id|for|aria-labelledby)="([^"]*)"')


def standalone(html: str, view: str) -> str:
    """A panel's HTML without forms and without links to pages outside the file. Every id gets a suffix from `view`.
    This relies on our templates: no form or link contains another one, and no attribute contains a bracket.
    """

    def shown(link: re.Match[str], instead: str = "span") -> str:
        attributes, words = link.groups()
        if ' href="#' in attributes:
            return link[0]
        return f"<{instead}{_LEADS.sub('', attributes)}>{words}</{instead}>" if _KEPT.search(attributes) else ""

    html = _HIT.sub("", _FORM.sub("", html))
    html = _FIGURE.sub(lambda figure: _LINK.sub(partial(shown, instead="g"), figure[0]), html)
    return _NAMED.sub(rf'\1="\2-{view}"', _LINK.sub(shown, html))


MOST_BYTES = 32 * 2**20
_STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True)
class ExportedPage:
    html: str
    failed: int
    """The number of panels that show an error."""


def exported_page(
    snapshot: Snapshot,
    name: str,
    choice: Choice,
    most_bytes: int = MOST_BYTES,
    tell: Callable[[int, int], None] | None = None,
) -> ExportedPage:
    """`name`: the memory's name in the file. `tell`: called with the number of views that are done, and of all views.

    Raises BadInput as soon as the file would be larger than `most_bytes`.
    """
    drawing = _Drawing(snapshot, name, choice)
    views: list[str] = []
    size = len(drawing.page(views).encode())
    for view in drawing.views():
        views.append(view)
        size += len(view.encode())
        if size > most_bytes:
            raise BadInput(
                f"The file would be larger than {most_bytes / 2**20:g} MiB, as it is after {len(views)} of "
                f"{choice.views} views ({len(choice.items)} predictions, each with {len(choice.masks)} filters).",
                hint="Choose fewer predictions with --item, or fewer filters with --without.",
                field="item",
            )
        if tell is not None:
            tell(len(views), choice.views)
    return ExportedPage(drawing.page(views), drawing.failed)


class _Drawing:
    def __init__(self, snapshot: Snapshot, name: str, choice: Choice) -> None:
        self._snapshot, self._info, self._name, self._choice = snapshot, snapshot.info, name, choice
        self._templates: Environment = templates()
        self._verify = False
        with suppress(DualformError):  # a server asks for a permission for reconstruction errors
            self._verify = bool(snapshot.memory.verify())
        self._places = list(product(range(len(choice.items)), range(len(choice.masks))))
        self._names = {self._state(*place): _view_name(*place) for place in self._places}
        self.failed = 0

    def _state(self, item: int, mask: int) -> State:
        return replace(self._choice.state(item, mask), verify=self._verify)

    def views(self) -> Iterator[str]:
        found = self._templates.get_template("export/view.html")
        for place in self._places:
            context, view = self._context(*place), _view_name(*place)
            panels = {key: Markup(standalone(self._panel(key, context), view)) for key in PANELS}
            yield found.render({**context, "view": view, "panels": panels})

    def page(self, views: list[str]) -> str:
        style = (_STATIC / "explorer.css").read_text() + (_STATIC / "export.css").read_text()
        script = (_STATIC / "theme.js").read_text() + (_STATIC / "export.js").read_text()
        return self._templates.get_template("export/page.html").render(
            name=self._name,
            info=self._info,
            style=Markup(style),
            script=Markup(script),
            # The file loads nothing, and runs only the script that we wrote into it.
            policy=f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
            "base-uri 'none'; form-action 'none'",
            icon="data:image/svg+xml;base64," + b64encode((_STATIC / "icon.svg").read_bytes()).decode(),
            cards=self._cards(),
            predictions=len(self._choice.items),
            filters=len(self._choice.masks),
            views=[Markup(view) for view in views],
        )

    def _panel(self, key: str, context: dict[str, Any]) -> str:
        state: State = context["state"]
        context = {**context, "name": key, "title": PANELS[key].heading(state)}
        try:
            panel = PANELS[key].make(self._snapshot.page(state))
        except DualformError as error:
            self.failed += 1
            failure = replace(Failure.of(error), field="")  # a file has no form in which to show it
            return self._templates.get_template("failed.html").render({**context, "failure": failure})
        if isinstance(panel, QueryPanel):
            panel = self._among_chosen(panel, state)
        shown = template_of(key, panel)
        return self._templates.select_template([f"export/{shown}", shown]).render({**context, "panel": panel})

    def _among_chosen(self, panel: QueryPanel, state: State) -> QueryPanel:
        """Let the reader step through the examples of the file."""
        rows = [own.row for own in self._choice.items if own.query_set == state.query_set]
        at = rows.index(state.row)
        return replace(
            panel,
            place=at + 1,
            among=len(rows),
            before=rows[at - 1] if at else None,
            after=rows[at + 1] if at + 1 < len(rows) else None,
            misclassified=0,  # a file cannot switch to misclassified examples
        )

    def _context(self, item: int, mask: int) -> dict[str, Any]:
        state = self._state(item, mask)
        filters = [(self._state(item, other), chips) for other, chips in enumerate(self._choice.masks)]
        return {
            "exported": True,
            "state": state,
            "info": self._info,
            "memory": self._name,
            "link": lambda **changes: self._to(replace(state, **changes)),
            "to": self._to,
            "scores": SCORES,
            "ks": (state.k,),
            "groupings": [state.by],
            "panels_in": panels_in,
            "sections": SECTIONS,
            "filters": filters,
        }

    def _to(self, state: State) -> str:
        """The anchor of a state in the file; empty if the file does not have it."""
        view = self._names.get(state)
        return "" if view is None else f"#{view}"

    def _cards(self) -> dict[str, list[tuple[str, ExampleCard]]]:
        """By query set, the anchor and the card of each prediction."""
        found: dict[str, list[tuple[str, ExampleCard]]] = {}
        for query_set in dict.fromkeys(own.query_set for own in self._choice.items):
            numbers = [number for number, own in enumerate(self._choice.items) if own.query_set == query_set]
            rows = np.array([self._choice.items[number].row for number in numbers], dtype=np.int64)
            cards, _ = example_cards(self._snapshot, self._snapshot.examples_of(query_set), rows)
            found[query_set] = [(_view_name(number, 0), card) for number, card in zip(numbers, cards, strict=True)]
        return found


def _view_name(item: int, mask: int) -> str:
    return f"p{item + 1}" if mask == 0 else f"p{item + 1}-m{mask}"


def _digest(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


A = TypeVar("A")
_METHODS = {
    TopK: "topk",
    GroupSum: "group_sum",
    Distribution: "distribution",
    Output: "output",
    Contribution: "contributions",
    Placebo: "placebo",
}
_OPTIONS = {"queries": "--query", "k": "-k", "n": "--placebo"}
"""Command-line options whose names differ from the arguments."""


class Told(Answers):
    """Passes questions on to a memory, and keeps those that a page can show."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.beside = beside_of(answers)
        self.questions: list[Any] = []
        """The questions about a single stored example, in order."""

    def ask(self, question: Question[A]) -> A:
        queries = getattr(question, "queries", None)
        single = isinstance(queries, QuerySetExamples) and queries.count == 1
        if single and type(question) in _METHODS and question not in self.questions:
            self.questions.append(question)
        return self._answers.ask(question)

    def close(self) -> None:
        self._answers.close()


def as_python(question: Question[Any]) -> str:
    """The method call that asks it."""
    said = ", ".join(f"{name}={value!r}" for name, value in _arguments(question))
    return f"memory.{_METHODS[type(question)]}({said})"


def as_command(question: Question[Any], target: str) -> str:
    """The command that asks the memory at `target`."""
    name = _METHODS[type(question)].replace("_", "-")
    parts = ["dualform", "output" if isinstance(question, Placebo) else name, target]
    for argument, value in _arguments(question):
        option = _OPTIONS.get(argument, f"--{argument.replace('_', '-')}")
        if isinstance(question, GroupSum) and argument == "k":
            option = "--top"
        if isinstance(value, bool):
            parts.append("--no-initial" if argument == "initial" else option)
        else:
            parts += [option, ",".join(value) if isinstance(value, list) else str(value)]
    return shlex.join(parts)


def as_csv(answer: object) -> str:
    """All rows of the answer's table. Raises NotFound if it has none."""
    if not isinstance(answer, Table):
        raise NotFound("This answer is no table.", field="panel")
    columns = answer.table()
    written = io.StringIO()
    csv.writer(written).writerows([columns.keys(), *(row.values() for row in columns)])
    return written.getvalue()


def _arguments(question: Question[Any]) -> list[tuple[str, Any]]:
    """The arguments that differ from the defaults."""
    found: list[tuple[str, Any]] = []
    for own in fields(question):  # type: ignore[arg-type]
        value = getattr(question, own.name)
        if value is None or (own.default is not MISSING and value == own.default):
            continue
        if own.name == "target":
            found.append(("target", str(value.output) if value.minus is None else f"{value.output}-{value.minus}"))
            found += [("at_step", value.at_step)] if value.at_step is not None else []
            found += [("allow_inexact", True)] if value.allow_inexact else []
            continue
        if isinstance(value, QuerySetExamples):
            value = _written(value)
        elif isinstance(value, tuple):
            value = value[0] if len(value) == 1 else list(value)
        found.append((own.name, value))
    return found


def _written(queries: QuerySetExamples) -> str:
    tokens = queries.tokens or ("",) * len(queries.examples or ())
    examples = ",".join(
        f"{example}:{token}".rstrip(":") for example, token in zip(queries.examples or (), tokens, strict=True)
    )
    return queries.query_set if queries.examples is None else f"{queries.query_set}/{examples}"
