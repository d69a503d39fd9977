"""What a shell completes: layers, probes, columns and studies, as the memory that is named on the line has them.

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
"""That a server has to answer in."""
_SHOWN_ROWS = 20
"""Rows of a probe that are offered."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@dataclass(frozen=True)
class _Names:
    """What a memory calls its parts."""

    spaces: dict[str, str] = field(default_factory=dict)
    """Layer, or a view of one -> its slot space."""
    probes: dict[str, int] = field(default_factory=dict)
    """Probe -> rows."""
    columns: dict[str, Sequence[str]] = field(default_factory=dict)
    """Slot space -> columns."""


def _unfailing(complete: Complete) -> Complete:
    """What cannot be completed is not; nothing is ever raised into somebody's shell."""

    @wraps(complete)
    def tried(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            return complete(context, parameter, incomplete)
        except Exception:
            return []

    return tried


@_unfailing
def complete_folder(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell's own folders, for an address is not known beforehand."""
    return [CompletionItem(incomplete, type="dir")]


@_unfailing
def complete_layer(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _listed(_names(context).spaces, incomplete)


@_unfailing
def complete_by(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Columns of the layer's slots; of all slots where the layer is not said yet."""
    names = _names(context)
    space = names.spaces.get(str(context.params.get("layer")))
    spaces = names.columns.values() if space is None else [names.columns[space]]
    return _listed(dict.fromkeys(column for columns in spaces for column in columns), incomplete)


@_unfailing
def complete_query(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """PROBE/ and, once one probe is left, its rows; the shell's own files where there is no such probe."""
    name, slash, row = incomplete.rpartition("/")
    probes = {
        probe: rows
        for probe, rows in _names(context).probes.items()
        if (probe == name if slash else probe.startswith(incomplete))
    }
    if not probes:
        return [CompletionItem(incomplete, type="file")]
    if len(probes) > 1:
        return [CompletionItem(f"{probe}/", help=f"{rows} rows") for probe, rows in probes.items()]
    ((probe, rows),) = probes.items()
    fitting = [number for number in range(rows) if not slash or str(number).startswith(row)]
    return [CompletionItem(f"{probe}/{number}") for number in fitting[:_SHOWN_ROWS]]


@_unfailing
def complete_probe(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(probe) for probe in _names(context).probes if probe.startswith(incomplete)]


@_unfailing
def complete_study(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from dualform_studies.study_names import STUDY_NAMES

    return [CompletionItem(name, help=line) for name, line in STUDY_NAMES.items() if name.startswith(incomplete)]


def _listed(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The names that the last part of a list between commas may become; none twice."""
    before, comma, begun = incomplete.rpartition(",")
    said = before.split(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(begun) and name not in said]


def _names(context: click.Context) -> _Names:
    """Those of the memory that the line names before what is completed. Raises whatever opening it raises."""
    # An option that waits for its value ends click's reading before it tells arguments by their names.
    given = context.params.get("target") or context.params.get("a") or context.params.get("run")
    target = str(given or context.args[0])
    if Path(target).exists():
        return _names_of_folder(target)
    return _names_of_server(target, context.params)


def _names_of_folder(folder: str) -> _Names:
    from dualform.store.snapshot import Snapshot

    snapshot = Snapshot.open(folder)
    spaces = {name: layer.space for layer in snapshot.layers.values() for name in (layer.name, *layer.view_names)}
    probes = {name: probe.rows for name, probe in snapshot.probes.items()}
    return _Names(spaces, probes, {space: tuple(snapshot.space(space).columns) for space in snapshot.spaces})


def _names_of_server(address: str, reach: dict[str, Any]) -> _Names:
    from dualform_client.cli.target import REACH, open_target

    said = {name: reach.get(name) for name in REACH} | {"timeout": SERVER_SECONDS}
    with open_target(address, None, **said) as memory:
        info = memory.info()
    spaces = {name: layer.space for layer in info.layers for name in (layer.name, *layer.views)}
    probes = {probe.name: probe.rows for probe in info.probes}
    return _Names(spaces, probes, {space: tuple(columns) for space, columns in info.columns.items()})
