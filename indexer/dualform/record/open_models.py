"""The models that recorders of this process are open on."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakSet

from torch import Tensor, nn

from dualform.errors import RecordingError

OPEN: WeakSet[nn.Module] = WeakSet()


def recorded_parameters() -> set[int]:
    """Identities of the parameters and buffers of models that are being recorded."""
    return {id(tensor) for model in OPEN for tensor in (*model.parameters(), *model.buffers())}


def refuse_recorded(tensors: Iterable[Tensor], what: str, instead: str = "pass a copy of the model") -> None:
    """Raises RecordingError if a recorder is open on a model that has such a tensor; `what` it would record."""
    recorded = recorded_parameters()
    if any(id(own) in recorded for own in tensors):
        raise RecordingError(
            f"A recorder is open on this model, and would record {what}.",
            hint=f"Leave `with recorder` first, or {instead}.",
        )
