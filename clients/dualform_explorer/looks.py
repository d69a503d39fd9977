"""What samples look like: an image, a passage with a token marked, a row of a table, or nothing but their metadata."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualform.answers import Appearance, MemoryInfo
from dualform.answers.appearances import PNG
from dualform.errors import BadInput, DualformError
from dualform.methods import Answers
from dualform_explorer.reading import probe_of

_AROUND = 160
"""Letters of a passage that are shown on either side of its token, and twice as many where none is marked."""


@dataclass(frozen=True)
class Look:
    image: str = ""
    """The address of a picture, with all of it inside; empty where there is none."""
    passage: tuple[str, str, str] | None = None
    """A text before the marked token, the token, and the text behind it."""
    row: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        if self.image:
            return "image"
        if self.passage is not None:
            return "text"
        return "none" if self.row is None else "table"


NOTHING = Look()


class Looks(list[Look]):
    """Of samples in the order in which they were asked for."""

    def __init__(self, looks: Iterable[Look], missing: str = "") -> None:
        super().__init__(looks)
        self.missing = missing
        """Why some are not shown that a gallery should have; empty where there is nothing to say."""


def look_of(appearance: Appearance, position: int | None = None) -> Look:
    """`position`: of the token that is marked in a text, of which what stands around it is shown."""
    if appearance.image is not None and appearance.image.startswith(PNG):
        return Look(image="data:image/png;base64," + b64encode(appearance.image).decode("ascii"))
    if appearance.text is not None:
        marked = None if position is None else appearance.marked(position)
        if marked is None:
            return Look(passage=(_beginning(appearance.text, 2 * _AROUND), "", ""))
        before, token, behind = marked
        return Look(passage=(_ending(before, _AROUND), token, _beginning(behind, _AROUND)))
    return NOTHING if appearance.row is None else Look(row=appearance.row)


def unmarked(info: MemoryInfo) -> str:
    """Why no token of a text is marked; empty where a position is the place of a token in its gallery's texts. Of an
    encoder and a decoder either has its own, and a gallery does not say whose it has.
    """
    spaces = sorted({layer.space for layer in info.layers} - {"sample"})
    if len(spaces) < 2:
        return ""
    return f"No token is marked: positions are of several kinds ({', '.join(spaces)}), and texts do not say which."


def looks_of_slots(memory: Answers, info: MemoryInfo, slots: Sequence[Mapping[str, Any]]) -> Looks:
    """Of slots given by their columns; nothing where there is no gallery of their dataset."""
    found, missing, why_unmarked = [NOTHING] * len(slots), "", unmarked(info)
    for dataset in dict.fromkeys(slot.get("dataset") for slot in slots):
        if (dataset or "") not in info.galleries:
            continue
        places = [
            place
            for place, slot in enumerate(slots)
            if slot.get("dataset") == dataset and slot.get("sample") is not None
        ]
        samples = list(dict.fromkeys(slots[place]["sample"] for place in places))
        appearances, why = _appearances(memory, samples, dataset=dataset)
        by_sample = {own.sample: own for own in appearances}
        for place in places:
            if (own := by_sample.get(slots[place]["sample"])) is not None:
                position = slots[place].get("position")
                found[place] = look_of(own, None if why_unmarked else position)
                if position is not None and own.offsets is not None:
                    missing = missing or why_unmarked
        missing = missing or why
    return Looks(found, missing)


def looks_of_examples(memory: Answers, info: MemoryInfo, probe: str, rows: Sequence[int]) -> Looks:
    """Of a probe's examples, as a whole; nothing where it has no gallery."""
    appearances, missing = appearances_of_examples(memory, info, probe, rows)
    found = list(map(look_of, appearances))
    return Looks(found + [NOTHING] * (len(rows) - len(found)), missing)


def appearances_of_examples(
    memory: Answers, info: MemoryInfo, probe: str, rows: Sequence[int]
) -> tuple[Sequence[Appearance], str]:
    """Those of a probe's examples that can be shown, first ones first, and why there are no more."""
    stored = probe_of(info, probe)
    if stored is None or not stored.gallery:
        return (), ""
    return _appearances(memory, rows, probe=probe)


def _appearances(
    memory: Answers, samples: Sequence[int], dataset: str | None = None, probe: str | None = None
) -> tuple[Sequence[Appearance], str]:
    """As many of the first samples as one answer holds: a page has no more of them than that. And what is to be said of
    the others. A gallery that is damaged leaves the numbers of its samples as good as they were.
    """
    asked = list(samples)
    while asked:
        try:
            found = list(memory.appearances(np.array(asked, dtype=np.int64), dataset, probe=probe))
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
