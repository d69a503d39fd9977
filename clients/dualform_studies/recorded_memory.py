"""What a study has recorded: opened so that two studies fit side by side on a machine of 16 GB."""

from __future__ import annotations

from pathlib import Path

from dualform.answers import LayerInfo
from dualform.methods import Answers
from dualform.query.engine import Engine, open_memory

RAM = "4 GB"
"""That answering may take: with it stay the keys of any one layer that the studies of images record, and its codes."""
HELD_BYTES = 3 << 30
"""Of keys and values held between questions, where answers by token position are as large as what is kept."""


def open_recorded(path: Path, backend: str | None = None, ram: str | None = RAM) -> Engine:
    """As `open_memory`, with so much RAM for all it does; None bounds the keys and values that are held alone."""
    return open_memory(path, backend, ram=ram, held_bytes=HELD_BYTES)


def layer_info(memory: Answers, layer: str) -> LayerInfo:
    """What a memory says of a layer that it has."""
    return next(one for one in memory.info().layers if one.name == layer)
