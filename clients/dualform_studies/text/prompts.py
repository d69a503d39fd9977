"""Prompts: short texts whose last token asks what it was trained on (section 5.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualform.errors import BadInput
from dualform_studies.text.corpora import Corpus
from dualform_studies.text.passages import find
from dualform_studies.text.published import PublishedTable


@dataclass(frozen=True)
class Prompt:
    name: str
    text: str
    """What the network reads; the last token of it is the query."""
    after: str = ""
    """How the passage goes on. The network does not read it."""
    published: PublishedTable | None = None
    """The table of the paper that the query comes from."""
    found: bool = True
    """Whether a query of the paper stands in the text it was taken from; where not, its words are those printed."""


def paper_prompts(corpus: Corpus, tables: Sequence[PublishedTable]) -> list[Prompt]:
    """The paper's query passages up to their marked token, cut from the text itself where it has them."""
    return [_paper_prompt(corpus, table) for table in tables]


def _paper_prompt(corpus: Corpus, table: PublishedTable) -> Prompt:
    name, quoted = f"table-{table.number}", table.query.passage
    text = corpus.test if table.origin == "test" else corpus.train
    place = find(text, quoted)
    if place is None:
        return Prompt(name, quoted.before + quoted.token, quoted.after, table, found=False)
    start, _, end, last = place
    return Prompt(name, text[start:end], text[end:last], table)


def own_prompts(texts: Sequence[str], first: int = 1) -> list[Prompt]:
    """Prompts as a user words them, numbered from `first`. Raises BadInput for one without a token."""
    for text in texts:
        if not text.strip():
            raise BadInput("a prompt is empty.", hint='Give a text, as --prompt "the Fox and the".', field="prompt")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise BadInput(f"the prompt {text!r} is no UTF-8.", hint="Give it in UTF-8.", field="prompt")
    return [Prompt(f"prompt-{number}", text) for number, text in enumerate(texts, start=first)]
