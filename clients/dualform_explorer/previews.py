"""Previews of samples as a page shows them, and texts as tokens that a reader can pick."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from dualform.answers import Preview
from dualform.answers.contents import PNG
from dualform.errors import BadInput, DualformError
from dualform.methods import Answers
from dualform_explorer.examples import Box, Places
from dualform_explorer.state import query_set_of
from dualform_explorer.view import Snapshot

_AROUND = 160
"""The number of characters shown on either side of a token, and twice as many if no token is marked."""


@dataclass(frozen=True)
class ShownPreview:
    image: str = ""
    """A picture as a data URL; empty if there is none."""
    passage: tuple[str, str, str] | None = None
    """The text before the marked token, the token, and the text after it."""
    row: Mapping[str, Any] | None = None
    box: Box | None = None
    """The place of the picture that is asked about."""

    @property
    def kind(self) -> str:
        if self.image:
            return "image"
        if self.passage is not None:
            return "text"
        return "none" if self.row is None else "table"


NOTHING = ShownPreview()


class ShownPreviews(list[ShownPreview]):
    """Previews of samples, in the order in which they were asked for."""

    def __init__(self, previews: Iterable[ShownPreview], missing: str = "") -> None:
        super().__init__(previews)
        self.missing = missing
        """Why some previews are missing; empty if none is."""

    @property
    def kind(self) -> str:
        """The kind of the first preview: "image", "text" or "table"; "none" without any."""
        return next((own.kind for own in self if own.kind != "none"), "none")


def shown_preview(preview: Preview, position: int | None = None, places: Places | None = None) -> ShownPreview:
    """`position`: the token to mark in a text, which is cut around it; or the place to box in a picture, one of the
    `places` of a convolution.
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


def shown_of_slots(
    snapshot: Snapshot, slots: Sequence[Mapping[str, Any]], places: Places | None = None
) -> ShownPreviews:
    """Previews for slots, which are given by their columns. Slots of a dataset without previews get none. `places`: the
    places of the slots' layer, to box in pictures.
    """
    found, missing, why_unmarked = [NOTHING] * len(slots), "", snapshot.unmarked
    for dataset in dict.fromkeys(slot.get("dataset") for slot in slots):
        if (dataset or "") not in snapshot.info.previews:
            continue
        there = [
            number
            for number, slot in enumerate(slots)
            if slot.get("dataset") == dataset and slot.get("sample") is not None
        ]
        samples = list(dict.fromkeys(slots[number]["sample"] for number in there))
        previews, why = _previews(snapshot.memory, samples, dataset=dataset)
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


def shown_of_examples(snapshot: Snapshot, query_set: str, rows: Sequence[int]) -> ShownPreviews:
    """Previews of a query set's examples, each shown whole; an empty list if it has none."""
    previews, missing = previews_of_examples(snapshot, query_set, rows)
    found = list(map(shown_preview, previews))
    return ShownPreviews(found + [NOTHING] * (len(rows) - len(found)), missing)


def previews_of_examples(snapshot: Snapshot, query_set: str, rows: Sequence[int]) -> tuple[Sequence[Preview], str]:
    """The previews of examples, up to the first that cannot be shown, and why there are no more."""
    stored = query_set_of(snapshot.info, query_set)
    if stored is None or not stored.previews:
        return (), ""
    return _previews(snapshot.memory, rows, query_set=query_set)


def _previews(
    memory: Answers, samples: Sequence[int], dataset: str | None = None, query_set: str | None = None
) -> tuple[Sequence[Preview], str]:
    """As many previews as one answer can hold, which is enough for a page, and a remark about the rest. If previews are
    damaged, the remark says so, and the page shows the numbers of samples.
    """
    asked = list(samples)
    while asked:
        try:
            found = list(memory.previews(np.array(asked, dtype=np.int64), dataset, query_set=query_set))
        except DualformError as error:
            if isinstance(error, BadInput) and error.field == "samples" and len(asked) > 1:  # too large
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
"""The number of tokens shown on either side."""
_LEVELS = 6
"""The number of colour levels. The last level is a loss as large as that of a guess, or larger."""


@dataclass(frozen=True)
class Token:
    """A piece of a text."""

    text: str
    position: int | None
    """The position of the token; None for text between tokens, and for the marks of omitted text."""
    marked: bool = False
    loss: float | None = None
    """The loss of its label, in nats; None if unknown."""
    level: int | None = None
    """The level of its colour, 0 to 6."""


def tokens_of_passage(
    preview: Preview, position: int, losses: Sequence[float] = (), chance: float = 1.0
) -> tuple[Token, ...]:
    """The tokens around a position, with all text between them. Empty if their offsets are unknown, or if the token has
    no text, such as padding. `losses`: by position, NaN if unknown; `chance`: the loss of a guess.
    """
    text, offsets = preview.text, preview.offsets
    if text is None or offsets is None or preview.marked(position) is None:
        return ()
    row = position - preview.first
    begins, ends = offsets[row].tolist()
    around = slice(max(0, row - _LETTERS_AROUND), row + _LETTERS_AROUND + 1)
    positions = range(preview.first, preview.first + len(offsets))[around]
    places = sorted((*own, place) for place, own in zip(positions, offsets[around].tolist(), strict=True))
    # Skip tokens without characters, and those that overlap the marked token or the one before them.
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
