"""What the command line says beside answers: --help, errors, and shell completion.

An error is {"error": {"code", "message", "hint"}} with --json, else lines on stderr; one from a server also has the
`request_id` of its call. Completion of layers, query sets and columns reads the memory that is named on the line. If it
fails it completes nothing: whoever presses Tab has asked no question yet. A folder is opened, and no more than that; a
server has half a second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from dualform.errors import BadInput, DualformError, NotFound
from dualform.faults import as_dualform_error
from dualform_client.cli.printing import Report, emit, json_option, print_note

_HYPHEN = "\N{NON-BREAKING HYPHEN}"
"""Replaces hyphens while lines are wrapped, because click would break an option's name at one."""
HEADINGS = ("Required", "Options", "Connection and RAM")


class _Formatter(click.HelpFormatter):
    """Wraps lines only between words."""

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(term, text.replace("-", _HYPHEN)) for term, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


class Context(click.Context):
    formatter_class = _Formatter


class ConnectionOption(click.Option):
    """An option that --help lists in its last section."""


class Command(click.Command):
    """Takes --json and prints the report of its function, as JSON or as text. Lists required options first, then
    others, then connection options, and rewords errors for the shell.
    """

    context_class = Context

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params.append(json_option)

    def sections(self, context: click.Context) -> list[list[tuple[str, str]]]:
        """The options and their texts, for each of HEADINGS."""
        options = [option for option in self.get_params(context) if isinstance(option, click.Option)]
        found: list[list[tuple[str, str]]] = [[], [], []]
        for option in options:
            found[2 if isinstance(option, ConnectionOption) else not option.required].append(row(option, context))
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, rows in zip(HEADINGS, self.sections(ctx), strict=True):
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            answer = super().invoke(ctx)
            return emit(answer) if isinstance(answer, Report) else answer
        except DualformError as error:
            reword(error, ctx)
            raise


command = partial(click.command, cls=Command)


def row(option: click.Option, context: click.Context) -> tuple[str, str]:
    """The option's names, and its text and default."""
    record = option.get_help_record(context)
    assert record is not None, "no option is hidden"
    shown = option.show_default if isinstance(option.show_default, str) else str(option.default)
    return record[0], f"{option.help} [default: {shown}]" if option.show_default else option.help or ""


class UnknownCommand(click.UsageError):
    def __init__(self, name: str, known: Iterable[str], context: click.Context) -> None:
        super().__init__(f"Unknown command {name!r}.", context)
        self.possibilities = get_close_matches(name, known, 1, 0.7)


FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
_OF_A_MEMORY = re.compile(r",? or [^.,;]*\bmemory\.\w+\([^)]*\)(?:\.\w+)*")
"""The part of a hint that only a Python program can follow."""
_LIST = re.compile(r"(?P<what>[A-Z][a-z ]+): (?P<names>[^ ]+(, [^ ]+)*)\.")
"""A hint that lists the names that exist."""
_LISTED = 8


def report_failure(error: BaseException, as_json: bool) -> int:
    """Prints the error and returns the exit code."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        _print_failure("interrupted", "Interrupted.", "", as_json)
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        message = error.format_message()
        if isinstance(error, click.NoSuchOption):
            message = f"Unknown option {error.option_name!r}."
        _print_failure("usage", message, _usage_hint(error), as_json)
        return BAD_INPUT
    ours = as_dualform_error(error)
    _print_failure(ours.code, ours.message, ours.hint, as_json, ours.request_id)
    return BAD_INPUT if isinstance(ours, BadInput | NotFound) else FAILED


def reword(error: DualformError, context: click.Context) -> None:
    """Changes an error to whole sentences that name the command's options instead of Python arguments."""
    options = {option.name or "": option.opts[0] for option in context.command.params if option.opts[0].startswith("-")}
    error.message, error.hint = (_with_options(text, options) for text in (error.message, error.hint))
    if (listed := _LIST.fullmatch(error.hint)) and (unknown := re.search("'([^']*)'", error.message)):
        error.hint = _nearest_first(unknown[1], listed["what"], listed["names"].split(", "))
    first = re.match(r"[a-z]+(?= )", error.message)
    given = {word for value in context.params.values() for word in re.split(r"[\s/:,]+", str(value))}
    if first and first.group() not in given:  # a folder or a function keeps its name
        error.message = error.message[0].upper() + error.message[1:]


def _nearest_first(unknown: str, what: str, names: list[str]) -> str:
    """A hint that starts with the nearest name and lists at most eight."""
    near = get_close_matches(unknown, names, 1)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{f'Did you mean {near[0]}? ' if near else ''}{what}: {', '.join(names[:_LISTED])}{more}."


_VERBS = "is|holds|names|leaves|picks|cannot|has|takes|must|matches|can|keeps|needs|contains"
"""After which an argument's name is that of an option."""


def _with_options(text: str, options: dict[str, str]) -> str:
    text = _OF_A_MEMORY.sub("", text)
    for name, option in options.items():
        text = re.sub(
            rf"(^|(?<=\band )){name}(?= ({_VERBS})\b)",
            option,
            text,
        )
        text = re.sub(rf"\b{name}=\"([^\"]*)\"", rf"{option} \1", text)
        text = re.sub(rf"\b{name}=True\b", option, text)
        text = re.sub(rf"\b{name}=(?=\S)", f"{option} ", text)
        text = re.sub(rf"\b{name}=", option, text)
    text = re.sub(r"\bsql\((\".*?\")\)", r"dualform sql TARGET \1", text)
    return text.replace("group_sum", "dualform group-sum")


def _usage_hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    near = getattr(error, "possibilities", None)
    said = f"Did you mean {near[0]}? " if near else ""
    return f"{said}Try '{context.command_path} --help'." if context else said.rstrip()


def _print_failure(code: str, message: str, hint: str, as_json: bool, request_id: str = "") -> None:
    if as_json:
        told = {"code": code, "message": message, "hint": hint}
        click.echo(json.dumps({"error": {**told, "request_id": request_id} if request_id else told}))
        return
    print_note(f"error: {message}")
    if hint:
        print_note(f"hint: {hint}")


SERVER_SECONDS = 0.5
"""How long completion waits for a server."""
_SHOWN_ROWS = 20
"""Rows of a query set that completion offers."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class _Names(NamedTuple):
    """The names in a memory."""

    spaces: dict[str, str]
    """Layer, or a view of one -> its slot space."""
    query_sets: dict[str, int]
    """Query set -> rows."""
    columns: dict[str, Sequence[str]]
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
    found: Any
    if Path(target).exists():
        from dualform.store.reading.snapshot import Snapshot

        found = Snapshot.open(target)
        layers = [(own.space, own.name, *own.view_names) for own in found.layers.values()]
        query_sets, columns = found.query_sets.values(), {space: found.columns(space) for space in found.spaces}
    else:
        from dualform_client.cli.options import REACH, connected

        with connected(
            target, **{name: context.params.get(name) for name in REACH} | {"timeout": SERVER_SECONDS}
        ) as own:
            found = own.info()
        layers = [(own.space, own.name, *own.views) for own in found.layers]
        query_sets, columns = found.query_sets, found.columns
    spaces = {name: space for space, *names in layers for name in names}
    return _Names(spaces, {own.name: own.rows for own in query_sets}, {own: tuple(columns[own]) for own in columns})
