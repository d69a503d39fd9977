"""The file: every chosen prediction with every filter, drawn by the panels and templates of the pages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment
from markupsafe import Markup

from dualform.answers import MemoryInfo
from dualform.errors import BadInput, DualformError
from dualform.methods import Answers
from dualform_explorer.examples import examples_of
from dualform_explorer.export.choice import Choice
from dualform_explorer.export.standalone import standalone
from dualform_explorer.panel_threads import Failure
from dualform_explorer.panels import PANELS, panels_in
from dualform_explorer.panels.query import QueryPanel
from dualform_explorer.rendering import templates
from dualform_explorer.start import ExampleCard, example_cards
from dualform_explorer.state import SCORES, State

MOST_BYTES = 32 * 2**20
_STATIC = Path(__file__).parent.parent / "static"


@dataclass(frozen=True)
class ExportedPage:
    html: str
    failed: int
    """Panels that have no answer, and say so in their place."""


def exported_page(
    memory: Answers,
    info: MemoryInfo,
    name: str,
    choice: Choice,
    most_bytes: int = MOST_BYTES,
    tell: Callable[[int, int], None] | None = None,
) -> ExportedPage:
    """`name`: of the memory, as the file calls it. `tell`: how many views are drawn, of how many.

    Raises BadInput where it would be larger than `most_bytes`, as soon as that is known.
    """
    drawing = _Drawing(memory, info, name, choice)
    views: list[str] = []
    size = 0
    for number, view in enumerate(drawing.views(), start=1):
        views.append(view)
        size += len(view.encode())
        if size > most_bytes:
            raise BadInput(
                f"The file would be larger than {most_bytes / 2**20:g} MiB, as it is after {number} of {choice.views} "
                f"views ({len(choice.items)} predictions, each with {len(choice.masks)} filters).",
                hint="Choose fewer predictions with --item, or fewer filters with --without.",
                field="item",
            )
        if tell is not None:
            tell(number, choice.views)
    html = drawing.page(views)
    if len(html.encode()) > most_bytes:
        raise BadInput(
            f"The file would be larger than {most_bytes / 2**20:g} MiB.",
            hint="Choose fewer predictions with --item, or fewer filters with --without.",
            field="item",
        )
    return ExportedPage(html, drawing.failed)


class _Drawing:
    def __init__(self, memory: Answers, info: MemoryInfo, name: str, choice: Choice) -> None:
        self._memory, self._info, self._name, self._choice = memory, info, name, choice
        self._templates: Environment = templates()
        self._verify = _verifies(memory)
        self._names = {
            self._state(item, mask): _view_name(item, mask)
            for item in range(len(choice.items))
            for mask in range(len(choice.masks))
        }
        self.failed = 0

    def _state(self, item: int, mask: int) -> State:
        return replace(self._choice.state(item, mask), verify=self._verify)

    def views(self) -> Iterator[str]:
        found = self._templates.get_template("export/view.html")
        for item in range(len(self._choice.items)):
            for mask in range(len(self._choice.masks)):
                state = self._state(item, mask)
                context = self._context(state, item)
                view = self._names[state]
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
            # Nothing is loaded from anywhere, and nothing runs but what stands in the file as we wrote it.
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
        context = {**context, "name": key, "title": PANELS[key].title}
        template = self._templates.select_template([f"export/panels/{key}.html", f"panels/{key}.html"])
        try:
            panel = PANELS[key].make(self._memory, self._info, state)
        except DualformError as error:
            self.failed += 1
            failure = Failure(error.message, error.hint, error.code)
            return self._templates.get_template("failed.html").render({**context, "failure": failure})
        if isinstance(panel, QueryPanel):
            panel = self._among_chosen(panel, state)
        return template.render({**context, "panel": panel})

    def _among_chosen(self, panel: QueryPanel, state: State) -> QueryPanel:
        """The reader goes through the examples of the file."""
        rows = [own.row for own in self._choice.items if own.query_set == state.query_set]
        at = rows.index(state.row)
        return replace(
            panel,
            place=at + 1,
            among=len(rows),
            before=rows[at - 1] if at else None,
            after=rows[at + 1] if at + 1 < len(rows) else None,
            misclassified=0,  # the file has no choice between all and the misclassified ones
        )

    def _context(self, state: State, item: int) -> dict[str, Any]:
        filters = [(self._state(item, mask), chips) for mask, chips in enumerate(self._choice.masks)]
        return {
            "exported": True,
            "state": state,
            "info": self._info,
            "memory": self._name,
            "link": partial(self._link, state),
            "to": self._to,
            "scores": SCORES,
            "ks": (state.k,),
            "groupings": [state.by],
            "panels_in": panels_in,
            "filters": filters,
        }

    def _to(self, state: State) -> str:
        """The place of a state in the file; empty for one that it does not hold."""
        view = self._names.get(state)
        return "" if view is None else f"#{view}"

    def _link(self, state: State, **changes: Any) -> str:
        return self._to(replace(state, **changes))

    def _cards(self) -> dict[str, list[tuple[str, ExampleCard]]]:
        """By query set: of each prediction its place in the file, and what it looks like."""
        found: dict[str, list[tuple[str, ExampleCard]]] = {}
        for query_set in dict.fromkeys(own.query_set for own in self._choice.items):
            numbers = [number for number, own in enumerate(self._choice.items) if own.query_set == query_set]
            rows = np.array([self._choice.items[number].row for number in numbers], dtype=np.int64)
            cards, _ = example_cards(self._memory, self._info, examples_of(self._memory, self._info, query_set), rows)
            found[query_set] = [(_view_name(number, 0), card) for number, card in zip(numbers, cards, strict=True)]
        return found


def _view_name(item: int, mask: int) -> str:
    return f"p{item + 1}" if mask == 0 else f"p{item + 1}-m{mask}"


def _verifies(memory: Answers) -> bool:
    """Whether reconstruction errors can be had: a server asks for a right to them."""
    try:
        memory.verify()
    except DualformError:
        return False
    return True


def _digest(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
