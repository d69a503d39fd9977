"""What the keys of the paper's own trainings, and of a layer of GPT-3, take (its section 5.1, appendix D and code)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualform_studies.limits.cost import estimate
from dualform_studies.pages.folder import Report


@dataclass(frozen=True)
class Training:
    """A training that the paper names or ran."""

    name: str
    slots: int
    widths: Sequence[int]
    """Of the keys of each layer."""
    number_bytes: int
    """4 for float32, 2 for float16."""
    updates: int | None
    """None where the paper does not say."""
    text: str = ""
    """What the paper's text says that its keys take."""

    def in_words(self) -> str:
        widths = " + ".join(f"{width:,}" for width in self.widths)
        return f"{self.slots:,} slots, keys of {widths} numbers of {self.number_bytes} bytes"


GPT_3 = Training("one layer of GPT-3", 300 * 10**9, (12_000,), 4, None, text="14 PB")
"""300 billion tokens and a state of 12 thousand numbers (appendix D)."""

TRAININGS = (
    # T datapoints of the three layers whose inputs are an image of 28 x 28 and 800 hidden units twice (section 5.1).
    Training("single task, 5,000 updates", 5000 * 128, (784, 800, 800), 4, 5000),
    # The LSTM's key is [h; x]; its code also keeps the inputs of the linear layers around it, all in float16.
    Training("WikiText-2", 10_000 * 128 * 100, (400, 200), 2, 10_000),
    Training("Aesop", 5000 * 64 * 100, (64, 2048, 1024), 2, 5000),
    GPT_3,
)


def storage_report(training: Training) -> Report:
    """Bytes of the keys, and of what a rerun keeps in their place; without digests where updates are not known."""
    cost = estimate(training.slots, training.widths, 0, training.updates or 0, 0.0, training.number_bytes)
    return {
        "name": training.name,
        "what": training.in_words(),
        "key_bytes": cost.key_bytes,
        "rerun_bytes": cost.rerun_bytes,
        "text": training.text,
    }


def in_bytes(size: float) -> str:
    """A size in the greatest unit of thousands that it reaches, to three digits."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.3g} bytes"
