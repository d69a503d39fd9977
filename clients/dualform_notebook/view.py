"""What the explorer shows of a question: plain values, of which every number is as a memory answered it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dualform.answers import GroupSums, Hits, LayerInfo, MemoryInfo, Probe
from dualform.errors import BadInput, NotFound
from dualform.methods import Answers
from dualform.questions import ProbeRows, as_queries
from dualform_explorer.chip import Chip
from dualform_explorer.examples import examples_of
from dualform_explorer.looks import NOTHING, Look, looks_of_examples, looks_of_slots
from dualform_explorer.mask import where_of
from dualform_notebook.masks import words_of

SHOWN_GROUPS = 24
"""Those of the largest sums."""
SCORES = ("signed", "abs", "cosine")


@dataclass(frozen=True)
class State:
    """What a reader asked for. What is empty is chosen: the first example, the last layer, a column of labels."""

    query: str = ""
    """PROBE/ROW."""
    layer: str = ""
    by: str = ""
    """Column, or several with commas between."""
    score: str = "signed"
    masks: tuple[Chip, ...] = ()
    where: str = ""
    """SQL of the reader's own."""
    k: int = 12


def view_of(memory: Answers, state: State) -> dict[str, Any]:
    """All that is shown, as JSON has it. Raises what a memory raises, and BadInput for a state that names no query."""
    info = memory.info()
    probe, row = _query(info, state.query)
    layer = _layer(info, state.layer, probe)
    query = ProbeRows(probe, (row,))
    columns = info.columns[layer.space]
    by = tuple(name.strip() for name in state.by.split(",")) if state.by else _grouping(columns)
    where = where_of(state.masks, state.where.strip())
    sums = memory.group_sum(layer.name, query, by, where, state.score, k=SHOWN_GROUPS)
    hits = memory.topk(layer.name, query, state.k, where, score=state.score)
    example, lacking = _example(memory, info, memory.probe(probe), row, layer)
    slots, too = _slots(memory, info, hits)
    return {
        "query": example,
        "layer": layer.name,
        "by": ",".join(by),
        "score": state.score,
        "where": where or "",
        "chips": list(map(words_of, state.masks)),
        "layers": [own.name for own in info.layers if own.distinct_keys],
        "probes": [{"name": own.name, "rows": own.rows} for own in info.probes],
        "columns": list(columns),
        "scores": list(SCORES),
        "grade": str(layer.grade),
        "groups": _groups(sums),
        "total": sums.total,
        "slots": slots,
        "lacking": lacking or too,
        "matching": hits.scan.slots_matching,
        "scanned": hits.scan.slots_scanned,
        "space": hits.space,
        "sample": hits.scan.sample,
    }


def _query(info: MemoryInfo, said: str) -> tuple[str, int]:
    """Probe and row."""
    if not info.probes:
        raise NotFound(
            "this memory has no probe to ask by.",
            hint="Record one: recorder.probe(name, inputs, label).",
            field="query",
        )
    if not said:
        return info.probes[0].name, 0
    queries = as_queries(said)
    if not isinstance(queries, ProbeRows) or queries.rows is None or len(queries.rows) != 1:
        raise BadInput(f"the query is {said!r}.", hint="Name one row of a probe, as test/17.", field="query")
    return queries.probe, queries.rows[0]


def _layer(info: MemoryInfo, said: str, probe: str) -> LayerInfo:
    """The layer of that name; else the last one that the probe was taken at."""
    found = {own.name: own for own in info.layers} | {view: own for own in info.layers for view in own.views}
    if said:
        if said not in found:
            raise NotFound(f"there is no layer {said!r}.", hint=f"Layers: {', '.join(found)}.", field="layer")
        return replace(found[said], name=said)  # a part of a layer is asked as one
    held = next((own.layers for own in info.probes if own.name == probe), ())
    return found[next((name for name in reversed(held) if name in found), info.layers[-1].name)]


def _grouping(columns: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in ("dataset", "label") if name in columns) or ("step",)


def _example(memory: Answers, info: MemoryInfo, probe: Probe, row: int, layer: LayerInfo) -> tuple[dict[str, Any], str]:
    """The query: its name, and of the example that it is of its label, what the network made of it, and its look; and
    why it has none that it should have.
    """
    rows = _rows(info, probe.name, layer)
    examples = examples_of(memory, info, probe.name)
    counted = probe.outputs is not None or next(bool(own.gallery) for own in info.probes if own.name == probe.name)
    known = examples.count if counted or probe.labels is not None else 0
    example, position = _place(row, rows, known, layer)
    tokens = 1 if rows is None or not known else rows // known
    if tokens == 1 and not counted:
        position = None  # labels may be of examples of one token, or of each token of longer ones
    label = None if example is None else examples.label_at(example, position, tokens)
    looks = looks_of_examples(memory, info, probe.name, [] if example is None else [example], position)
    shown = {
        "probe": probe.name,
        "row": row,
        "rows": rows,
        "position": position,
        "label": label,
        "largest": None if example is None or probe.outputs is None else int(probe.outputs[example].argmax()),
        "look": _shown(looks[0] if looks else NOTHING),
    }
    return shown, looks.missing


def _place(row: int, rows: int | None, examples: int, layer: LayerInfo) -> tuple[int | None, int | None]:
    """Which example a row is of, and its place in it; None where nothing tells. Of a layer with tokens or places, the
    rows of an example stand after one another.
    """
    if layer.space == "sample":
        return (row, None) if row < examples else (None, None)
    if rows is None or not examples or rows % examples or row >= rows:
        return None, None
    return divmod(row, rows // examples)


def _rows(info: MemoryInfo, probe: str, layer: LayerInfo) -> int | None:
    """Of a probe in a layer; None where only another space's are known."""
    own = next(one for one in info.probes if one.name == probe)
    first = next((one for one in info.layers if one.name in own.layers[:1]), None)
    return own.rows if first is None or first.space == layer.space else None


def _groups(sums: GroupSums) -> list[dict[str, Any]]:
    """Largest first."""
    return [
        {"values": dict(zip(sums.by, map(_plain, key), strict=True)), "sum": own, "count": count}
        for key, own, count in sums.ranked()
    ]


def _slots(memory: Answers, info: MemoryInfo, hits: Hits) -> tuple[list[dict[str, Any]], str]:
    """Best first: rank, slot, score, the columns that say something of any, and what each looks like; and why some have
    no look that they should have.
    """
    (found,) = hits
    if not found:
        return [], ""
    rows = memory.slots(hits.ids, hits.space).records()
    empty = {name for name in rows[0] if all(row[name] is None for row in rows)}
    looks = looks_of_slots(memory, info, rows)
    shown = [
        {
            "rank": hit.rank,
            "slot": hit.slot,
            "score": hit.score,
            "columns": {name: _plain(value) for name, value in row.items() if name not in {"slot", *empty}},
            "look": _shown(look),
        }
        for hit, row, look in zip(found, rows, looks, strict=True)
    ]
    return shown, looks.missing


def _shown(look: Look) -> dict[str, Any] | None:
    """None where nothing is known."""
    match look.kind:
        case "image":
            return {"image": look.image}
        case "text":
            assert look.passage is not None
            return dict(zip(("before", "token", "behind"), look.passage, strict=True))
        case "table":
            assert look.row is not None
            return {"row": {name: _plain(value) for name, value in look.row.items()}}
    return None


def _plain(value: Any) -> Any:
    """As JSON has it: what is no number, text or flag is said as a text."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int):
        return value
    return value if isinstance(value, float) and np.isfinite(value) else str(value)
