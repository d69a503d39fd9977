"""A page as Markdown, in the form that code hosts show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from dualform_studies.pages.items import Cell, Figure, Heading, Item, MarkedPassage, Paragraph, Table
from dualform_studies.pages.words import are_numbers, in_words

_UNFOLDED = 40
"""Rows of the longest table that is shown as it is."""
_CODE = re.compile(r"(`[^`]+`)")


def page_markdown(title: str, items: Sequence[Item]) -> str:
    return "\n\n".join([f"# {title}", *map(_item, items)]) + "\n"


def table_markdown(table: Table, *, folded: bool = True) -> str:
    """The table with its caption above; a long one is folded, so that its rows are shown when its caption is clicked.

    With `folded` false it is shown whole however long it is.
    """
    rows = [list(table.columns), [_rule(table, at) for at in range(len(table.columns))]]
    rows += [[_cell(cell) for cell in row] for row in table.rows]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    if not folded or len(table.rows) <= _UNFOLDED:
        return f"{table.caption}\n\n{lines}"
    # What stands in HTML is not read as Markdown.
    caption = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(table.caption, quote=False))
    return f"<details><summary>{caption} ({len(table.rows)} rows)</summary>\n\n{lines}\n\n</details>"


def _item(item: Item) -> str:
    match item:
        case Heading(text):
            return f"## {text}"
        case Paragraph(text):
            return text
        case Figure(name, caption):
            return f"![{caption.replace('[', '(').replace(']', ')')}]({name}.png)\n\n*{caption}*"
        case Table():
            return table_markdown(item)


def _rule(table: Table, at: int) -> str:
    return "---:" if are_numbers(row[at] for row in table.rows) else "---"


def _cell(cell: Cell) -> str:
    if isinstance(cell, MarkedPassage):
        # Markdown knows no emphasis that begins or ends with a space; a token that is one is named instead.
        token = cell.token.strip()
        lead, tail = cell.token[: len(cell.token) - len(cell.token.lstrip())], cell.token[len(cell.token.rstrip()) :]
        bold = f"{lead}**{_plain(token)}**{tail}" if token else " **␣** "
        return f"{_plain(cell.before)}{bold}{_plain(cell.after)}"
    return _plain(in_words(cell), code=True)


def _plain(text: str, code: bool = False) -> str:
    """Text that a table's cell can hold: one line, without what Markdown would take for markup.

    With `code`, what stands in backticks stays code. There a backslash would be shown, but for the one before a bar,
    which the table takes away.
    """
    line = re.sub(r"\s*\n\s*", " ", text)
    parts = _CODE.split(line) if code else [line]
    return "".join(
        part.replace("|", r"\|") if at % 2 else re.sub(r"([\\|*_<>\[\]`])", r"\\\1", part)
        for at, part in enumerate(parts)
    )
