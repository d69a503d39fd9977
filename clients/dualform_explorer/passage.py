"""A text as the tokens that it was read in, each of which a reader can pick."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.answers import Preview

_MORE = "\N{HORIZONTAL ELLIPSIS}"
_AROUND = 150
"""Tokens that are shown on either side."""


@dataclass(frozen=True)
class Token:
    """A piece of a text."""

    text: str
    position: int | None
    """Of the token; None for what stands between tokens, and for what is left out before and behind."""
    marked: bool = False


def tokens_of_passage(preview: Preview, position: int) -> tuple[Token, ...]:
    """The tokens around a position, with all text between them; none where their places are not known, or the token
    has none, as padding has.
    """
    text, offsets = preview.text, preview.offsets
    if text is None or offsets is None or preview.marked(position) is None:
        return ()
    row = position - preview.first
    begins, ends = offsets[row].tolist()
    around = slice(max(0, row - _AROUND), row + _AROUND + 1)
    positions = range(preview.first, preview.first + len(offsets))[around]
    places = sorted((*own, place) for place, own in zip(positions, offsets[around].tolist(), strict=True))
    # Those without letters are left out, and those that share some with the marked one or with the one before.
    places = [(a, b, at) for a, b, at in places if a < b and (at == position or b <= begins or a >= ends)]
    done = places[0][0]
    tokens = [Token(_MORE, None)] if done else []
    for start, stop, place in places:
        if start < done:
            continue
        if start > done:
            tokens.append(Token(text[done:start], None))
        tokens.append(Token(text[start:stop], place, place == position))
        done = stop
    return (*tokens, Token(_MORE, None)) if done < len(text) else tuple(tokens)
