"""What a study has recorded: opened so that two studies fit side by side on a machine of 16 GB."""

from __future__ import annotations

from pathlib import Path

from dualform.answers import LayerInfo
from dualform.methods import Answers
from dualform.query.engine import Engine, open_memory

HELD_BYTES = 3 << 30
"""Of keys and values held between questions: the keys of any one layer that the studies record."""


def open_recorded(path: Path, backend: str | None = None, held_bytes: int = HELD_BYTES) -> Engine:
    """As `open_memory`, of which `held_bytes` of keys and values stay in memory."""
    return open_memory(path, backend, held_bytes=held_bytes)


def layer_info(memory: Answers, layer: str) -> LayerInfo:
    """What a memory says of a layer that it has."""
    return next(one for one in memory.info().layers if one.name == layer)
