"""A page as one HTML file; its figures lie beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from dualform_studies.pages.items import Cell, Figure, Heading, Item, MarkedPassage, Paragraph, Table
from dualform_studies.pages.words import anchor, are_numbers, in_words

_STYLE = """
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 58rem; color: #222; background: #fff;
       font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; }
h2 { margin-top: 2.6rem; padding-bottom: .2rem; border-bottom: 1px solid #ddd; font-size: 1.25rem; }
code { padding: .1em .3em; border-radius: 3px; background: #f3f3f3; font-size: .92em; }
figure { margin: 1.6rem 0; }
figure img { display: block; width: 100%; height: auto; }
figcaption { color: #555; font-size: .9rem; }
.table div { padding-top: .4rem; overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #eee; }
th { border-bottom: 1px solid #999; }
.number { text-align: right; white-space: nowrap; }
mark { padding: 0 .1em; background: #ffe08a; font-weight: 600; }
nav { font-size: .9rem; }
nav a { margin-right: 1rem; }
"""


def page_html(title: str, items: Sequence[Item]) -> str:
    """The whole document. Headings get anchors, and a line of links at the top."""
    body = "\n".join([f"<h1>{escape(title)}</h1>", *_links(items), *(_item(item) for item in items)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _links(items: Sequence[Item]) -> Iterator[str]:
    headings = [item.text for item in items if isinstance(item, Heading)]
    if headings:
        yield "<nav>" + "".join(f'<a href="#{anchor(text)}">{escape(text)}</a>' for text in headings) + "</nav>"


def _item(item: Item) -> str:
    match item:
        case Heading(text):
            return f'<h2 id="{anchor(text)}">{escape(text)}</h2>'
        case Paragraph(text):
            return f"<p>{_text(text)}</p>"
        case Figure(name, caption):
            return (
                f'<figure><a href="{name}.svg"><img src="{name}.png" alt="{escape(caption)}"></a>\n'
                f"<figcaption>{_text(caption)}</figcaption></figure>"
            )
        case Table():
            return _table(item)


def _table(table: Table) -> str:
    numeric = [are_numbers(row[at] for row in table.rows) for at in range(len(table.columns))]
    kinds = [' class="number"' if number else "" for number in numeric]
    head = "".join(f"<th{kind}>{escape(column)}</th>" for kind, column in zip(kinds, table.columns, strict=True))
    rows = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{_cell(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<figure class="table"><figcaption>{_text(table.caption)}</figcaption>\n'
        f"<div><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div></figure>"
    )


def _cell(cell: Cell) -> str:
    if isinstance(cell, MarkedPassage):
        return f"{escape(cell.before)}<mark>{escape(cell.token)}</mark>{escape(cell.after)}"
    return _text(in_words(cell))


def _text(text: str) -> str:
    """Escaped, and `code` as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
