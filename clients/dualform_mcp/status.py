"""How exact an answer is: what needs rebuilt weights has their measured status, all else is exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dualform.answers import Status

RECORDED = "what was recorded of slots, as the training gave it"
_ROUNDED = "but that those of a model in float64 are rounded to float32"
_KEYS = f"of the stored keys alone, in float64; keys are the layer's inputs bit for bit, {_ROUNDED}"
_REASONS = {
    "abs": f"scores are {_KEYS}; sums of absolute scores are right to 1e-6 of them",
    "gradient": "dot products of gradients, from stored keys and stored error signals as the backward pass gave them, "
    + _ROUNDED,
}


def told(status: Status | None, reason: str = RECORDED) -> Mapping[str, Any]:
    """The exactness of an answer. `reason`: why an answer without a status is exact."""
    found = Status("exact", reason=reason) if status is None else status
    return {**asdict(found), "exact": found.exact}


def reason_of(score: str) -> str:
    """Why scores that need no weights are exact."""
    return _REASONS.get(score, f"scores are {_KEYS}")
