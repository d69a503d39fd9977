"""The models that recorders of this process are open on."""

from __future__ import annotations

from weakref import WeakSet

from torch import nn

OPEN: WeakSet[nn.Module] = WeakSet()


def recorded_parameters() -> set[int]:
    """Identities of the parameters and buffers of models that are being recorded."""
    return {id(tensor) for model in OPEN for tensor in (*model.parameters(), *model.buffers())}
