"""A page as Markdown, in the form that code hosts show."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape

from dualform_studies.pages.items import Cell, Figure, Heading, Item, Link, MarkedPassage, Paragraph, Table
from dualform_studies.pages.words import anchor, are_numbers, in_words

_UNFOLDED = 40
"""Rows of the longest table that is shown as it is."""
_CODE = re.compile(r"(`[^`]+`)")
_FIGURE = re.compile(r"\]\(([^()/]+\.png)\)")


def page_markdown(title: str, items: Sequence[Item]) -> str:
    return "\n\n".join([f"# {title}", *map(_item, items)]) + "\n"


def moved(page: str, name: str, figure: Callable[[str], str]) -> str:
    """A page as the part `name` of a longer document: headings one level down, and its figures elsewhere.

    A heading is linked to as `part_anchor` says, for other parts may have the same. `figure` says where the document
    finds the file that the page names.
    """

    def lowered(heading: re.Match[str]) -> str:
        return f'<a id="{part_anchor(name, heading.group(2))}"></a>\n\n#{heading.group(1)} {heading.group(2)}'

    page = re.sub(r"^(#+) (.+)$", lowered, page, flags=re.MULTILINE)
    return _FIGURE.sub(lambda file: f"]({figure(file.group(1))})", page)


def contents(page: str, name: str) -> Iterator[str]:
    """A line with a link to a page that is the part `name`, and a line with links to what stands in it."""
    title, *headings = (
        f"[{_plain(heading, code=True)}](#{part_anchor(name, heading)})"
        for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    )
    yield f"- {title}"
    if headings:
        yield f"  - {' · '.join(headings)}"


def part_anchor(name: str, heading: str) -> str:
    """What a link to a heading of the part `name` says after its #."""
    return f"{name}-{anchor(heading)}"


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
    if isinstance(cell, Link):
        return f"[{_plain(cell.words)}]({cell.target})"
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
