"""A network with weights that a memory gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def other_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Within the block the network has these weights; afterwards its parameters and buffers are what they were."""
    own = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    try:
        network.load_state_dict(dict(weights))
        yield
    finally:
        network.load_state_dict(own)
