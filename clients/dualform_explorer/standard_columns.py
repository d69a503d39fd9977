"""The columns of slots that every space has."""

from __future__ import annotations

OF_PLACE = frozenset(("slot", "step", "row", "position", "call"))
"""Where a slot stands in the training."""
OF_SAMPLE = frozenset(("dataset", "label", "sample"))
"""What it is of."""
STANDARD = OF_PLACE | OF_SAMPLE
