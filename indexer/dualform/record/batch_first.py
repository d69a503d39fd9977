"""What modules of torch tell of the axis that is the batch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def batch_dim_of(modules: Mapping[str, nn.Module], name: str) -> int | None:
    """The axis of a layer's input that is the batch, by the innermost module around it that tells; else None."""
    while name:
        name = name.rpartition(".")[0]
        around = modules[name]
        if isinstance(around, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            around = around.self_attn
        if isinstance(around, nn.MultiheadAttention | nn.RNNBase | nn.Transformer):
            return 0 if around.batch_first else 1
    return None
