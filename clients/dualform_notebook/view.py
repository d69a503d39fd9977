"""The widget's content: the data of the page's panels as JSON."""

from __future__ import annotations

from typing import Any

from dualform.answers import Status
from dualform.answers.table import json_value
from dualform.errors import Inexact
from dualform.methods import Answers
from dualform_explorer.glossary import SCORE_WORDS, meaning
from dualform_explorer.groups import GroupRow, groupings_of
from dualform_explorer.memories import OneSnapshot
from dualform_explorer.panels.answer import answer_panel, placebo_panel
from dualform_explorer.panels.data import Slot, SlotsPanel, slots_panel, sums_panel
from dualform_explorer.panels.example import QueryPanel, query_panel
from dualform_explorer.previews import ShownPreview
from dualform_explorer.state import SCORES, layers_of
from dualform_explorer.view import View
from dualform_notebook.state import WidgetState, words_of

_MEANINGS = {
    word: meaning(word)
    for word in ("filter", "group", "label", "layer", "margin", "placebo", "sample", "slots", "step")
}
"""Glossary words of the widget's headings."""


def view_of(memory: Answers, asked: WidgetState) -> dict[str, Any]:
    """All that is shown. Raises what a memory raises, and BadInput for what cannot be read."""
    info = memory.info()
    memory = OneSnapshot(memory, info.snapshot)
    state = asked.page(memory, info)
    page = View(memory, info, state)
    query, sums, slots = query_panel(page), sums_panel(page), slots_panel(page)
    return {
        "query": _query(query),
        "answer": _answer(page),
        "layer": state.layer,
        "by": ",".join(state.by),
        "score": state.score,
        "target": state.target,
        "where": page.where_before or "",
        "chips": list(map(words_of, state.chips)),
        "layers": [own.name for own in layers_of(info, state.query_set)],
        "query_sets": [own.name for own in info.query_sets],
        "groupings": [",".join(own) for own in groupings_of(info, state)],
        "scores": [{"name": name, "shown": shown} for name, shown in SCORES.items()],
        "status": _status(page.layer.status if slots.status is None else slots.status, state.score),
        "groups": list(map(_group, sums.rows)),
        "largest": sums.largest,
        "dot": sums.signed,
        "total": sums.total,
        "slots": _slots(slots),
        "missing": query.missing or slots.missing,
        "matching": slots.matching,
        "scanned": slots.scanned,
        "space": slots.space,
        "sampling": info.sampling,
        "meanings": {**_MEANINGS, "score": meaning(SCORE_WORDS[state.score])},
    }


def placebo_of(memory: Answers, asked: WidgetState) -> dict[str, Any]:
    """Whether the change of the prediction under the filter is unusual, as the page's panel has it; empty where it is
    not asked. Raises as `view_of`.
    """
    info = memory.info()
    state = asked.page(memory, info)
    if state.layer != info.output_layer:
        return {}
    panel = placebo_panel(View(OneSnapshot(memory, info.snapshot), info, state))
    return {"verdict": panel.verdict, "words": panel.words} if panel else {}


def _answer(page: View) -> dict[str, Any] | None:
    """The page's first panel; None where no recorded layer gives the network's outputs."""
    try:
        panel = answer_panel(page)
    except Inexact as refused:
        return {"note": refused.message}
    if panel is None:
        return None
    return {
        "sentence": panel.sentence,
        "parts": [
            {
                "kind": part.kind,
                "said": list(map(_plain, part.said)),
                "name": part.name,
                "value": part.value,
                "begin": part.begin,
            }
            for part in panel.parts
        ],
        "ends": panel.ends,
        "note": panel.why_no_parts,
    }


def _query(query: QueryPanel) -> dict[str, Any]:
    return {
        "query_set": query.query_set,
        "row": query.row,
        "count": query.count,
        "token": query.token,
        "tokens": query.tokens,
        "label": query.label,
        "label_name": query.label_name,
        "read": query.read,
        "read_name": query.read_name,
        "wrong": query.wrong,
        "preview": _preview(query.preview),
    }


def _status(status: Status, score: str) -> str:
    """How exact the numbers are: contributions as exact as the layer's record, scores as the keys that are stored."""
    said = f"the layer's record: {status}"
    return said if score == "contribution" else f"scores are of stored keys alone, and exact; {said}"


def _group(row: GroupRow) -> dict[str, Any]:
    group = row.group
    return {
        "values": dict(zip(group.columns, map(_plain, group.values), strict=True)),
        "name": group.name,
        "sum": None if row.gone else group.sum,
        "count": None if row.gone else group.count,
        "unmasked": row.unmasked,
        "gone": row.gone,
    }


def _slots(panel: SlotsPanel) -> list[dict[str, Any]]:
    """Best first, with the columns that say something of any."""
    every = list(map(_columns, panel.slots))
    said = {name for columns in every for name, value in columns.items() if value is not None}
    return [
        {
            "rank": own.rank,
            "slot": own.slot,
            "score": own.score,
            "label_name": own.label_name,
            "columns": {name: value for name, value in columns.items() if name in said},
            "preview": _preview(own.preview),
        }
        for own, columns in zip(panel.slots, every, strict=True)
    ]


def _columns(slot: Slot) -> dict[str, Any]:
    common = {
        "step": slot.step,
        "position": slot.position,
        "dataset": slot.dataset,
        "label": slot.label,
        "sample": slot.sample,
    }
    return {name: _plain(value) for name, value in {**common, **slot.others}.items()}


def _preview(preview: ShownPreview) -> dict[str, Any] | None:
    """None where nothing is known."""
    match preview.kind:
        case "image":
            return {"image": preview.image}
        case "text":
            assert preview.passage is not None
            return dict(zip(("before", "token", "behind"), preview.passage, strict=True))
        case "table":
            assert preview.row is not None
            return {"row": {name: _plain(value) for name, value in preview.row.items()}}
    return None


def _plain(value: Any) -> Any:
    return json_value(value)  # a mask by a number that the browser rounds would be another
