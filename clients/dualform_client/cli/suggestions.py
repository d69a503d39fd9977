"""Shell completion of layers, query sets, columns and studies, from the memory that is named on the line.

A completion that fails completes nothing: whoever presses Tab has asked no question yet. A folder is opened, and no
more than that; a server has half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

SERVER_SECONDS = 0.5
"""How long completion waits for a server."""
_SHOWN_ROWS = 20
"""Rows of a query set that completion offers."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@dataclass(frozen=True)
class _Names:
    """The names in a memory."""

    spaces: dict[str, str] = field(default_factory=dict)
    """Layer, or a view of one -> its slot space."""
    query_sets: dict[str, int] = field(default_factory=dict)
    """Query set -> rows."""
    columns: dict[str, Sequence[str]] = field(default_factory=dict)
    """Slot space -> columns."""


def _unfailing(complete: Complete) -> Complete:
    """Completes nothing instead of raising an error into the user's shell."""

    @wraps(complete)
    def tried(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            return complete(context, parameter, incomplete)
        except Exception:
            return []

    return tried


@_unfailing
def complete_folder(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders, by the shell itself; addresses cannot be completed."""
    return [CompletionItem(incomplete, type="dir")]


@_unfailing
def complete_layer(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _listed(_names(context).spaces, incomplete)


@_unfailing
def complete_by(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Columns of the layer's slots, or of all slots before --layer is given."""
    names = _names(context)
    space = names.spaces.get(str(context.params.get("layer")))
    spaces = names.columns.values() if space is None else [names.columns[space]]
    return _listed(dict.fromkeys(column for columns in spaces for column in columns), incomplete)


@_unfailing
def complete_query(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """QUERY_SET/ and, once only one query set matches, its rows; files if none matches."""
    name, slash, row = incomplete.rpartition("/")
    query_sets = {
        query_set: rows
        for query_set, rows in _names(context).query_sets.items()
        if (query_set == name if slash else query_set.startswith(incomplete))
    }
    if not query_sets:
        return [CompletionItem(incomplete, type="file")]
    if len(query_sets) > 1:
        return [CompletionItem(f"{query_set}/", help=f"{rows} rows") for query_set, rows in query_sets.items()]
    ((query_set, rows),) = query_sets.items()
    fitting = [number for number in range(rows) if not slash or str(number).startswith(row)]
    return [CompletionItem(f"{query_set}/{number}") for number in fitting[:_SHOWN_ROWS]]


@_unfailing
def complete_query_set(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(query_set) for query_set in _names(context).query_sets if query_set.startswith(incomplete)]


@_unfailing
def complete_study(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from dualform_studies.study_names import STUDY_NAMES

    return [CompletionItem(name, help=line) for name, line in STUDY_NAMES.items() if name.startswith(incomplete)]


def _listed(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Completes the last name of a list with commas, and offers no name twice."""
    before, comma, begun = incomplete.rpartition(",")
    said = before.split(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(begun) and name not in said]


def _names(context: click.Context) -> _Names:
    """The names in the memory that is on the line already. Raises any error of opening it."""
    # An option that waits for its value ends click's reading before it tells arguments by their names.
    given = context.params.get("place") or context.params.get("a") or context.params.get("run")
    target = str(given or context.args[0])
    if Path(target).exists():
        return _names_of_folder(target)
    return _names_of_server(target, context.params)


def _names_of_folder(folder: str) -> _Names:
    from dualform.store.snapshot import Snapshot

    snapshot = Snapshot.open(folder)
    spaces = {name: layer.space for layer in snapshot.layers.values() for name in (layer.name, *layer.view_names)}
    query_sets = {name: query_set.rows for name, query_set in snapshot.query_sets.items()}
    return _Names(spaces, query_sets, {space: tuple(snapshot.space(space).columns) for space in snapshot.spaces})


def _names_of_server(address: str, reach: dict[str, Any]) -> _Names:
    from dualform_client.cli.target import REACH, connected

    said = {name: reach.get(name) for name in REACH} | {"timeout": SERVER_SECONDS}
    with connected(address, **said) as memory:
        info = memory.info()
    spaces = {name: layer.space for layer in info.layers for name in (layer.name, *layer.views)}
    query_sets = {query_set.name: query_set.rows for query_set in info.query_sets}
    return _Names(spaces, query_sets, {space: tuple(columns) for space, columns in info.columns.items()})
