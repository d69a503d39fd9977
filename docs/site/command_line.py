"""The reference of the command line in docs/cli.md: what --help says of each command on a terminal of 80 columns.

python -m docs.site.command_line
"""

from __future__ import annotations

from copy import copy
from pathlib import Path

from dualform_client.cli.help import Context
from dualform_client.cli.main import SECTIONS, dualform

PAGE = Path(__file__).parents[1] / "cli.md"
BEGIN = "<!-- python -m docs.site.command_line -->\n"
"""What follows it is written by this file."""
WIDTH = 78
"""That of a terminal of 80 columns, as click takes it."""


def reference() -> str:
    """A section for each group of commands, and one for the options of connections."""
    context = Context(dualform, info_name="dualform", terminal_width=WIDTH)
    parts, connection = [], ""
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        for name in names:
            found = copy(dualform.get_command(context, name))
            assert found is not None
            # What every command has stands above, once.
            found.add_help_option, found.params = False, [own for own in found.params if own.name != "as_json"]
            told = Context(found, context, name, terminal_width=WIDTH).get_help()
            before, _, own = told.partition("\nConnection and RAM:\n")
            if "--ram" in own:  # the options of every TARGET
                told, connection = before, own
            parts.append(f"### dualform {name}\n\n```text\n{told.rstrip()}\n```\n")
    return "\n".join([*parts, f"## Connection and RAM\n\n```text\n{connection.rstrip()}\n```\n"])


def page() -> str:
    """The page, with the reference as it is now."""
    head, begin, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{head}{begin}\n{reference()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
