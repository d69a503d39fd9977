"""What answering a question took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scan:
    """The snapshot that an answer saw, and the work that it took."""

    snapshot: int = 0
    """Number of commits the answer saw."""
    slots_scanned: int = 0
    """Slots of the layer in that snapshot; of all spaces for weights."""
    slots_matching: int = 0
    """Slots that the mask left, whatever step the answer is as of."""
    backend: str = ""
    """What scored the keys: int8, numpy, torch, faiss, torch-cuda or faiss-gpu; empty for what needs no backend, as
    outputs and weights."""
    seconds: float = 0.0
    missing: tuple[str, ...] = ()
    """Shards that did not answer, of a memory on several machines: the answer is of the others' slots alone. Empty
    unless the question allows it."""
