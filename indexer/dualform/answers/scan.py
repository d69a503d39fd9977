"""What answering a question took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scan:
    """The snapshot that a result is of, and the work that it took."""

    snapshot: int = 0
    """The number of commits in the snapshot."""
    slots_scanned: int = 0
    """The slots of the layer in the snapshot; for weights, of all spaces."""
    slots_matching: int = 0
    """The slots that `where` keeps, regardless of `at_step`."""
    backend: str = ""
    """The backend that scored the keys: int8, numpy, torch, faiss, torch-cuda or faiss-gpu; empty for outputs and
    weights."""
    seconds: float = 0.0
    """Wall time of the work, in the process that did it."""
    missing: tuple[str, ...] = ()
    """Machines of a distributed memory that did not answer, with allow_partial. The result lacks their slots."""
    share: float = 1.0
    """The share of all slots of the training that was recorded. It is below 1.0 if a budget made the recorder sample;
    the result then covers only the sample. It is 1.0 as of a step before sampling began. As of later steps it is the
    share over the whole training; earlier steps mostly kept more. Deleting samples does not change it."""

    @property
    def sample(self) -> str:
        """The share of slots that was kept, as text; empty if all were kept."""
        if self.share == 1:
            return ""
        return f"a sample of {percent(self.share)} of the slots of all steps, kept within a budget"


def percent(share: float) -> str:
    """A share as text. Less than 100 % is never rounded to 100 %."""
    return "over 99.9 %" if 0.9995 <= share < 1 else f"{100 * share:.3g} %"
