"""A text as the tokens that it was read in, each of which a reader can pick."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from dualform.answers import MemoryInfo, Preview
from dualform.answers.previews import PNG
from dualform.errors import BadInput, DualformError
from dualform.methods import Answers
from dualform_explorer.examples import of_no_sample, query_set_of
from dualform_explorer.places import Box, Places

_AROUND = 160
"""Letters of a passage that are shown on either side of its token, and twice as many where none is marked."""


@dataclass(frozen=True)
class ShownPreview:
    image: str = ""
    """The address of a picture, with all of it inside; empty where there is none."""
    passage: tuple[str, str, str] | None = None
    """A text before the marked token, the token, and the text behind it."""
    row: Mapping[str, Any] | None = None
    box: Box | None = None
    """Of a picture, the place that is asked about."""

    @property
    def kind(self) -> str:
        if self.image:
            return "image"
        if self.passage is not None:
            return "text"
        return "none" if self.row is None else "table"


NOTHING = ShownPreview()


class ShownPreviews(list[ShownPreview]):
    """Of samples in the order in which they were asked for."""

    def __init__(self, previews: Iterable[ShownPreview], missing: str = "") -> None:
        super().__init__(previews)
        self.missing = missing
        """Why some are not shown that a preview set should have; empty where there is nothing to say."""

    @property
    def kind(self) -> str:
        """That of the first that is shown: "image", "text" or "table"; "none" of none."""
        return next((own.kind for own in self if own.kind != "none"), "none")


def shown_preview(preview: Preview, position: int | None = None, places: Places | None = None) -> ShownPreview:
    """`position`: of the token that is marked in a text, of which what stands around it is shown, or of the place that
    is boxed in a picture, one of the `places` of a convolution.
    """
    if preview.image is not None and preview.image.startswith(PNG):
        box = None if places is None or position is None else places.box(position, preview.image)
        return ShownPreview(image="data:image/png;base64," + b64encode(preview.image).decode("ascii"), box=box)
    if preview.text is not None:
        marked = None if position is None else preview.marked(position)
        if marked is None:
            return ShownPreview(passage=(_beginning(preview.text.lstrip("\r\n"), 2 * _AROUND), "", ""))
        before, token, behind = marked
        return ShownPreview(passage=(_ending(before, _AROUND), token, _beginning(behind, _AROUND)))
    return NOTHING if preview.row is None else ShownPreview(row=preview.row)


def unmarked(memory: Answers, info: MemoryInfo) -> str:
    """Why no token of a text is marked; empty where a position is the place of a token in its preview set's texts. Of
    an encoder and a decoder either has its own, and a preview set does not say whose it has. Slots without a sample, as
    those of a table of positions, have no text.
    """
    spaces = sorted({layer.space for layer in info.layers if not of_no_sample(memory, info, layer)} - {"sample"})
    if len(spaces) < 2:
        return ""
    return f"No token is marked: positions are of several kinds ({', '.join(spaces)}), and texts do not say which."


def shown_of_slots(
    memory: Answers, info: MemoryInfo, slots: Sequence[Mapping[str, Any]], places: Places | None = None
) -> ShownPreviews:
    """Of slots given by their columns; nothing where there is no preview set of their dataset. `places`: of the layer
    of the slots, which are boxed in pictures.
    """
    found, missing, why_unmarked = [NOTHING] * len(slots), "", unmarked(memory, info)
    for dataset in dict.fromkeys(slot.get("dataset") for slot in slots):
        if (dataset or "") not in info.previews:
            continue
        there = [
            number
            for number, slot in enumerate(slots)
            if slot.get("dataset") == dataset and slot.get("sample") is not None
        ]
        samples = list(dict.fromkeys(slots[number]["sample"] for number in there))
        previews, why = _previews(memory, samples, dataset=dataset)
        by_sample = {own.sample: own for own in previews}
        for number in there:
            if (own := by_sample.get(slots[number]["sample"])) is not None:
                position = slots[number].get("position")
                marks = places is not None or not why_unmarked
                found[number] = shown_preview(own, position if marks else None, places)
                if position is not None and own.offsets is not None:
                    missing = missing or why_unmarked
        missing = missing or why
    return ShownPreviews(found, missing)


def shown_of_examples(memory: Answers, info: MemoryInfo, query_set: str, rows: Sequence[int]) -> ShownPreviews:
    """Of a query set's examples, as a whole; nothing where it has no preview set."""
    previews, missing = previews_of_examples(memory, info, query_set, rows)
    found = list(map(shown_preview, previews))
    return ShownPreviews(found + [NOTHING] * (len(rows) - len(found)), missing)


def previews_of_examples(
    memory: Answers, info: MemoryInfo, query_set: str, rows: Sequence[int]
) -> tuple[Sequence[Preview], str]:
    """Those of a query set's examples that can be shown, first ones first, and why there are no more."""
    stored = query_set_of(info, query_set)
    if stored is None or not stored.previews:
        return (), ""
    return _previews(memory, rows, query_set=query_set)


def _previews(
    memory: Answers, samples: Sequence[int], dataset: str | None = None, query_set: str | None = None
) -> tuple[Sequence[Preview], str]:
    """As many of the first samples as one answer holds: a page has no more of them than that. And what is to be said of
    the others. A preview set that is damaged leaves the numbers of its samples as good as they were.
    """
    asked = list(samples)
    while asked:
        try:
            found = list(memory.previews(np.array(asked, dtype=np.int64), dataset, query_set=query_set))
        except DualformError as error:
            if isinstance(error, BadInput) and error.field == "samples" and len(asked) > 1:  # more than one holds
                asked = asked[: len(asked) // 2]
                continue
            return (), error.message
        if len(asked) == len(samples):
            return found, ""
        return (
            found,
            f"Only the first {len(asked)} samples are shown: all {len(samples)} would be too large for a page.",
        )
    return (), ""


def _beginning(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[:letters].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def _ending(text: str, letters: int) -> str:
    return text if len(text) <= letters else "\N{HORIZONTAL ELLIPSIS}" + text[-letters:].lstrip()


_MORE = "\N{HORIZONTAL ELLIPSIS}"
_LETTERS_AROUND = 150
"""Tokens that are shown on either side."""
_LEVELS = 6
"""Of colour, of which the last one is that of a guess, or of what is worse."""


@dataclass(frozen=True)
class Token:
    """A piece of a text."""

    text: str
    position: int | None
    """Of the token; None for what stands between tokens, and for what is left out before and behind."""
    marked: bool = False
    loss: float | None = None
    """How surprising its label was, in nats; None where that is not known."""
    level: int | None = None
    """Of its colour, 0 to 6."""


def tokens_of_passage(
    preview: Preview, position: int, losses: Sequence[float] = (), chance: float = 1.0
) -> tuple[Token, ...]:
    """The tokens around a position, with all text between them; none where their places are not known, or the token
    has none, as padding has. `losses` by position, NaN where there is none; `chance`: that of a guess.
    """
    text, offsets = preview.text, preview.offsets
    if text is None or offsets is None or preview.marked(position) is None:
        return ()
    row = position - preview.first
    begins, ends = offsets[row].tolist()
    around = slice(max(0, row - _LETTERS_AROUND), row + _LETTERS_AROUND + 1)
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
        loss = losses[place] if place < len(losses) and not isnan(losses[place]) else None
        level = None if loss is None else min(_LEVELS, round(_LEVELS * max(loss, 0.0) / chance))
        tokens.append(Token(text[start:stop], place, place == position, loss, level))
        done = stop
    return (*tokens, Token(_MORE, None)) if done < len(text) else tuple(tokens)
