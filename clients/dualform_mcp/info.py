"""The tool `info`: the contents of a memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dualform.answers import LayerInfo, QuerySetInfo
from dualform.methods import Answers
from dualform.patterns import matches
from dualform_mcp.bounds import MOST_NAMES, first
from dualform_mcp.status import told
from dualform_mcp.tool import Arguments, Tool


class InfoArguments(Arguments):
    layers: str | None = Field(
        None, description="Only layers whose names fit this pattern, for example h.*.attn.*; all where it is left out."
    )


def answer(memory: Answers, asked: InfoArguments) -> Mapping[str, Any]:
    found = memory.info()
    return {
        "steps": found.steps,
        "optimizer": found.optimizer,
        "slots": dict(found.slots),
        "recording": found.recording,
        "cut_off": found.cut_off,
        "sampling": found.sampling,
        "snapshot": found.snapshot,
        "query_sets": [_query_set(query_set) for query_set in found.query_sets[:MOST_NAMES]],
        "datasets": first(found.datasets),
        "columns": {space: first(columns) for space, columns in first(found.columns).items()},
        "skipped": first(found.skipped),
        "layers": [
            _layer(layer) for layer in found.layers if asked.layers is None or matches(layer.name, asked.layers)
        ],
        "in_all": {
            "layers": len(found.layers),
            "query_sets": len(found.query_sets),
            "datasets": len(found.datasets),
            "skipped": len(found.skipped),
        },
    }


def _layer(layer: LayerInfo) -> dict[str, Any]:
    return {
        "layer": layer.name,
        "space": layer.space,
        "d_in": layer.d_in,
        "d_out": layer.d_out,
        "slots": layer.slots,
        "values": layer.values,
        "status": told(layer.status),
        **({"views": layer.views[:MOST_NAMES]} if layer.views else {}),
    }


def _query_set(query_set: QuerySetInfo) -> dict[str, Any]:
    return {
        "query_set": query_set.name,
        "rows": query_set.rows,
        "examples": query_set.examples,
        "layers": len(query_set.layers),
    }


INFO = Tool(
    "info",
    "What this record of a network's training holds; ask it first. Layers with their width and their status (how exact "
    "the record was measured to be), query sets (stored examples to ask with), datasets, the slots' columns by slot "
    "space, and layers that were skipped, with the reason.",
    InfoArguments,
    answer,
    "layers",
)
