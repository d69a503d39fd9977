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
    """Wall time of the answer, in the process that gave it."""
    missing: tuple[str, ...] = ()
    """Shards that did not answer, of a memory on several machines: the answer is of the others' slots alone. Empty
    unless the question allows it."""
    share: float = 1.0
    """Of the slots that the training had in all of its steps, in the space that was asked or in all, the share that was
    recorded: less than 1.0 where they were sampled to hold a budget, and the answer is of the sample; 1.0 as of a step
    up to which all were kept. As of a later step it is still that of all steps, and of those before it mostly more
    were kept. Deletion samples does not change it."""

    @property
    def sample(self) -> str:
        """What share of the slots of all steps was kept, without a full stop; empty where it is all of them."""
        if self.share == 1:
            return ""
        return f"a sample of {percent(self.share)} of the slots of all steps, kept within a budget"


def percent(share: float) -> str:
    """As texts have it; what is less than all is not said to be all."""
    return "over 99.9 %" if 0.9995 <= share < 1 else f"{100 * share:.3g} %"
