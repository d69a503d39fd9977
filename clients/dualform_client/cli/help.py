"""The layout of --help, and the error for an unknown command."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import partial
from typing import Any

import click

from dualform.errors import DualformError
from dualform_client.cli.failure import reword

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
    """Lists required options first, then others, then connection options, and rewords errors for the shell."""

    context_class = Context

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
            return super().invoke(ctx)
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
