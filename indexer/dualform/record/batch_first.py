"""What modules around a layer tell of the axis that is the batch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from dualform.record.taps import ModuleTap


def batch_dim_of(modules: Mapping[str, nn.Module], name: str) -> int | None:
    """The axis of a layer's input that is the batch, by the innermost module around it that tells; else None.

    Modules that are layers tell it by their kind of tap.
    """
    while name:
        name = name.rpartition(".")[0]
        around = modules[name]
        if isinstance(around, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            around = around.self_attn
        kind = ModuleTap.kind_of(around)
        told = None if kind is None else kind.batch_dim_of(around)
        if isinstance(around, nn.Transformer | nn.RNN):
            told = 0 if around.batch_first else 1
        if told is not None:
            return told
    return None
