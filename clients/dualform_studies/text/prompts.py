"""Prompts: short texts whose last token asks what it was trained on (section 5.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualform.errors import BadInput
from dualform_studies.text.passages import find
from dualform_studies.text.published import PublishedTable
from dualform_studies.text.tokens import Tokens

CONTEXT = 100
"""Tokens that the network reads, from a state of zeros; the last of them is the query. So many in the paper's code."""


@dataclass(frozen=True)
class Prompt:
    name: str
    text: str
    """What the network reads; the last token of it is the query."""
    after: str = ""
    """How the passage goes on. The network does not read it."""
    published: PublishedTable | None = None
    """The table of the paper that the query comes from."""
    place: int | None = None
    """Which token of the text that a query of the paper was taken from the query is; None where that text does not have
    it, and its words are those printed."""


def paper_prompts(texts: Mapping[str, Tokens], tables: Sequence[PublishedTable]) -> list[Prompt]:
    """The paper's queries with what stands before them, cut from the texts "train" and "test" where these have them."""
    return [_paper_prompt(texts[table.origin], table) for table in tables]


def _paper_prompt(tokens: Tokens, table: PublishedTable) -> Prompt:
    name, quoted = f"table-{table.number}", table.query.passage
    found = find(tokens.text, quoted)
    if found is None:
        return Prompt(name, quoted.before + quoted.token, quoted.after, table)
    _, start, end, last = found
    place = tokens.first_from(start)
    first = int(tokens.starts[max(0, place + 1 - CONTEXT)])
    return Prompt(name, tokens.text[first:end], tokens.text[end:last], table, place)


def own_prompts(texts: Sequence[str], first: int = 1) -> list[Prompt]:
    """Prompts as a user words them, numbered from `first`. Raises BadInput for one without a token."""
    for text in texts:
        if not text.strip():
            raise BadInput("prompt must not be empty.", hint='For example --prompt "the Fox and the".', field="prompt")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise BadInput(f"the prompt {text!r} is not UTF-8.", hint="Pass text in UTF-8.", field="prompt")
    return [Prompt(f"prompt-{number}", text) for number, text in enumerate(texts, start=first)]
