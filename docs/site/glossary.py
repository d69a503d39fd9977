"""The page of words: `python -m docs.site.glossary` writes docs/glossary.md from the explorer's table."""

from __future__ import annotations

from pathlib import Path

from dualform_explorer.glossary import GLOSSARY

PAGE = Path(__file__).parents[1] / "glossary.md"
_HEAD = """\
# Glossary

These words mean the same in the Python API, the command line, SQL, the explorer and these pages. In the explorer,
hover over an underlined word to read its meaning. [Concepts](concepts.md) explains how they fit together.

| word | meaning |
| --- | --- |
"""


def page() -> str:
    """The page's text."""
    rows = (
        f"| {f'[{word}]({own.link})' if own.link else word} | {own.meaning.replace('|', chr(92) + '|')} |\n"
        for word, own in GLOSSARY.items()
    )
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
