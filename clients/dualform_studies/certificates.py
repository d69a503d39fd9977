"""How far the weights that a memory rebuilds are from those that were trained, as a report tells it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dualform.answers import Certificate
from dualform_studies.pages.folder import Report


def certificate_report(certificate: Certificate) -> Report:
    return {
        "relative_error": certificate.relative_error,
        "exact": certificate.exact,
        "reason": certificate.reason,
    }


def relative_errors(
    truth: dict[str, Tensor], rebuilt: dict[str, Tensor], initial: dict[str, Tensor], layers: Sequence[str]
) -> dict[str, float]:
    """By layer: ||W - rebuilt|| / ||W - W_0||, weight and bias together, in float64."""

    def norm(layer: str, left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
        parts = [name for name in truth if name.startswith(f"{layer}.")]
        return float(torch.cat([(left[name].double() - right[name].double()).ravel() for name in parts]).norm())

    return {layer: norm(layer, truth, rebuilt) / norm(layer, truth, initial) for layer in layers}
