"""Errors as the command line tells them: {"error": {"code", "message", "hint"}} with --json, else lines on stderr.

With --json, what a server said has its call's `request_id`, too.
"""

from __future__ import annotations

import json

import click

from dualform.errors import BadInput, NotFound
from dualform.faults import as_dualform_error
from dualform_client.cli.printing import print_note

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def report_failure(error: BaseException, as_json: bool) -> int:
    """Tells the error; returns the exit code."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        _print_failure("interrupted", "Interrupted.", "", as_json)
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        _print_failure("usage", error.format_message(), _usage_hint(error), as_json)
        return BAD_INPUT
    ours = as_dualform_error(error)
    _print_failure(ours.code, ours.message, ours.hint, as_json, ours.request_id)
    return BAD_INPUT if isinstance(ours, BadInput | NotFound) else FAILED


def _usage_hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"Try '{context.command_path} --help'." if context else ""


def _print_failure(code: str, message: str, hint: str, as_json: bool, request_id: str = "") -> None:
    if as_json:
        told = {"code": code, "message": message, "hint": hint}
        click.echo(json.dumps({"error": {**told, "request_id": request_id} if request_id else told}))
        return
    print_note(f"error: {message}")
    if hint:
        print_note(f"hint: {hint}")
