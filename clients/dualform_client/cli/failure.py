"""How the command line prints errors: {"error": {"code", "message", "hint"}} with --json, else lines on stderr.

With --json, an error from a server also has the `request_id` of its call.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches

import click

from dualform.errors import BadInput, DualformError, NotFound
from dualform.faults import as_dualform_error
from dualform_client.cli.printing import print_note

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
        _print_failure("usage", _usage_message(error), _usage_hint(error), as_json)
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


def _usage_message(error: click.ClickException) -> str:
    return f"Unknown option {error.option_name!r}." if isinstance(error, click.NoSuchOption) else error.format_message()


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
