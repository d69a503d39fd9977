"""A page as Markdown, in the form that code hosts show."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dualform_studies.pages.items import Cell, Figure, Heading, Item, Link, MarkedPassage, Paragraph, Table
from dualform_studies.pages.words import anchor, in_words


def page_markdown(title: str, items: Sequence[Item]) -> str:
    return "\n\n".join([f"# {title}", *map(_item, items)]) + "\n"


def moved(page: str, figures: str, name: str) -> str:
    """A page as a part of a longer document: headings one level down, its figures in the folder `figures`.

    A heading is linked to as `part_anchor` says, for other parts may have the same.
    """

    def lowered(heading: re.Match[str]) -> str:
        return f'<a id="{part_anchor(name, heading.group(2))}"></a>\n\n#{heading.group(1)} {heading.group(2)}'

    page = re.sub(r"^(#+) (.+)$", lowered, page, flags=re.MULTILINE)
    return re.sub(r"\]\(([^()/]+\.png)\)", rf"]({figures}/\1)", page)


def part_anchor(name: str, heading: str) -> str:
    """What a link to a heading of the part `name` says after its #."""
    return f"{name}-{anchor(heading)}"


def table_markdown(table: Table) -> str:
    """The table with its caption above."""
    rows = [list(table.columns), [_rule(table, at) for at in range(len(table.columns))]]
    rows += [[_cell(cell) for cell in row] for row in table.rows]
    return f"{table.caption}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


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
    return "---:" if any(isinstance(row[at], int | float) for row in table.rows) else "---"


def _cell(cell: Cell) -> str:
    if isinstance(cell, MarkedPassage):
        # Markdown knows no emphasis that begins or ends with a space; a token that is one is named instead.
        token = cell.token.strip()
        lead, tail = cell.token[: len(cell.token) - len(cell.token.lstrip())], cell.token[len(cell.token.rstrip()) :]
        bold = f"{lead}**{_plain(token)}**{tail}" if token else " **␣** "
        return f"{_plain(cell.before)}{bold}{_plain(cell.after)}"
    if isinstance(cell, Link):
        return f"[{_plain(cell.words)}]({cell.target})"
    return _plain(in_words(cell), code=True)


def _plain(text: str, code: bool = False) -> str:
    """Text that a table's cell can hold: one line, without what Markdown would take for markup."""
    line = re.sub(r"\s*\n\s*", " ", text)
    return re.sub(r"([\\|]|[*_<>\[\]])" if code else r"([\\|*_<>\[\]`])", r"\\\1", line)
