"""The reference of the command line in docs/cli.md: what --help says of each command on a terminal of 80 columns.

Options that several questions share are listed once, and so are those of connections.

python -m docs.site.command_line
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from pathlib import Path

import click

from dualform_client.cli.help import Command, ConnectionOption, Context, row
from dualform_client.cli.main import SECTIONS, dualform

PAGE = Path(__file__).parents[1] / "cli.md"
BEGIN = "<!-- python -m docs.site.command_line -->\n"
"""What follows it is written by this file."""
WIDTH = 78
"""That of a terminal of 80 columns, as click takes it."""
SHARED = 3
"""An option that so many commands of a section have alike is listed once, after them."""


def reference() -> str:
    """A section for each group of commands, and one for the options of connections."""
    context = Context(dualform, info_name="dualform", terminal_width=WIDTH)
    parts, connection = [], ""
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        commands = {name: _command(context, name) for name in names}
        counted = Counter(row(own, context) for found in commands.values() for own in _options(found))
        shared = [own for own, count in counted.items() if count >= SHARED]
        for name, found in commands.items():
            also = [own for own in _options(found) if row(own, context) in shared]
            # What every command has stands above, once.
            found.add_help_option = False
            found.params = [own for own in found.params if own.name != "as_json" and own not in also]
            told = Context(found, context, name, terminal_width=WIDTH).get_help()
            before, _, own = told.partition("\nConnection and RAM:\n")
            if "--ram" in own:  # the options of every TARGET
                told, connection = before, own
            parts.append(f"### dualform {name}\n\n```text\n{told.rstrip()}\n```\n")
            if also:
                parts.append(f"[Shared options](#shared-options): {', '.join(f'`{own.opts[0]}`' for own in also)}.\n")
        if shared:
            formatter = context.make_formatter()
            with formatter.indentation():
                formatter.write_dl(shared)
            parts.append(f"### Shared options\n\n```text\n{formatter.getvalue().rstrip()}\n```\n")
    return "\n".join([*parts, f"## Connection and RAM\n\n```text\n{connection.rstrip()}\n```\n"])


def _command(context: Context, name: str) -> Command:
    found = copy(dualform.get_command(context, name))
    assert isinstance(found, Command)
    return found


def _options(command: Command) -> list[click.Option]:
    """Those that it may be given, without --json and those of connections."""
    found = [own for own in command.params if isinstance(own, click.Option) and not isinstance(own, ConnectionOption)]
    return [own for own in found if not own.required and own.name != "as_json"]


def page() -> str:
    """The page, with the reference as it is now."""
    head, begin, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{head}{begin}\n{reference()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
