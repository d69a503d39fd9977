"""What samples look like: an image, a passage with a token marked, a row of a table, or nothing but their metadata."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualform.answers import MemoryInfo
from dualform.methods import Answers
from dualform_explorer.reading import probe_of

_PNG = b"\x89PNG\r\n\x1a\n"


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


def look_of(appearance: Any, position: int | None = None) -> Look:
    """`position`: of the token that is marked in a text."""
    if appearance.image is not None and appearance.image.startswith(_PNG):
        return Look(image="data:image/png;base64," + b64encode(appearance.image).decode("ascii"))
    if appearance.text is not None:
        marked = None if position is None else appearance.marked(position)
        return Look(passage=(appearance.text, "", "") if marked is None else marked)
    return NOTHING if appearance.row is None else Look(row=appearance.row)


def looks_of_slots(memory: Answers, info: MemoryInfo, slots: Sequence[Mapping[str, Any]]) -> list[Look]:
    """Of slots given by their columns, in order; nothing where there is no gallery of their dataset."""
    found = [NOTHING] * len(slots)
    for dataset in {slot.get("dataset") for slot in slots}:
        if (dataset or "") not in info.galleries:
            continue
        places = [
            place
            for place, slot in enumerate(slots)
            if slot.get("dataset") == dataset and slot.get("sample") is not None
        ]
        samples = list(dict.fromkeys(slots[place]["sample"] for place in places))
        if not samples:
            continue
        by_sample = {own.sample: own for own in memory.appearances(np.array(samples, dtype=np.int64), dataset)}
        for place in places:
            found[place] = look_of(by_sample[slots[place]["sample"]], slots[place].get("position"))
    return found


def looks_of_examples(
    memory: Answers, info: MemoryInfo, probe: str, rows: Sequence[int], token: int | None = None
) -> list[Look]:
    """Of a probe's examples; nothing where it has no gallery."""
    stored = probe_of(info, probe)
    if stored is None or not stored.gallery or not len(rows):
        return [NOTHING] * len(rows)
    return [look_of(own, token) for own in memory.appearances(np.asarray(rows, dtype=np.int64), probe=probe)]
