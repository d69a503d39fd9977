"""What slots look like, where the memory has a gallery: pictures and passages, as a page can show them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from dualform.errors import DualformError


def of_slots(memory: Any, slots: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
    """What each slot looks like, by its columns dataset, sample and position; None where nothing is known of it.

    A gallery that cannot be read shows nothing: the slot's columns stand there all the same.
    """
    galleries = getattr(memory.info(), "galleries", {})
    found: list[dict[str, Any] | None] = [None] * len(slots)
    for dataset in galleries:
        own = [
            place
            for place, slot in enumerate(slots)
            if slot.get("sample") is not None and (slot.get("dataset") or "") == dataset
        ]
        if not own:
            continue
        try:
            looks = memory.appearances([slots[place]["sample"] for place in own], dataset)
        except DualformError:
            continue
        for place, one in zip(own, looks, strict=True):
            found[place] = _shown(one, slots[place].get("position"))
    return found


def of_example(memory: Any, probe: str, example: int) -> dict[str, Any] | None:
    """What an example of a probe looks like; None where its probe has no gallery."""
    kinds = {own.name: getattr(own, "gallery", "") for own in memory.info().probes}
    if not kinds.get(probe):
        return None
    try:
        (one,) = memory.appearances([example], probe=probe)
    except DualformError:
        return None
    return _shown(one, None)


def _shown(one: Any, position: int | None) -> dict[str, Any] | None:
    if one.image is not None:
        return {"image": f"data:image/png;base64,{b64encode(one.image).decode('ascii')}"}
    if one.text is not None:
        marked = None if position is None else one.marked(position)
        before, token, behind = (one.text, "", "") if marked is None else marked
        return {"before": before, "token": token, "behind": behind}
    if one.row is not None:
        return {"row": {name: str(value) for name, value in one.row.items()}}
    return None
