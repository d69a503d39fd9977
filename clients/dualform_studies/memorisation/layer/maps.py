"""What the attention layer adds up, term by term, at each point of the torus. Shapes: G points a side, H heads, d = 3.

With the attention pattern a_hj of head h over the two tokens, and V_h, O_h its value and output matrices:

    positions_h = sum_j a_hj q_j          words_h = sum_j a_hj p(t_j)         both before the values are taken
    heads_h     = O_h V_h (positions_h + words_h)
    layer       = x_2 + sum_h heads_h     logits = U layer

All maps are linear in the stream, so they add up; a pattern may be put in another's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform_studies.memorisation.torus.maps import ClassMap, exact_copy, grid_of
from dualform_studies.memorisation.transformer.network import HEAD_WIDTH, WIDTH, AttentionOnly

Pattern: TypeAlias = Literal["softmax", "hardmax", "constant"]
"""The network's own; all attention to the token that gets more; or the same everywhere, the mean over the torus."""


@dataclass(frozen=True, eq=False)
class LayerMaps:
    """Vectors of the stream at each point; indexed [..., angle of the second token, angle of the first, dimension]."""

    positions: NDArray[np.float64]
    """float64[H, G, G, d]."""
    words: NDArray[np.float64]
    """float64[H, G, G, d]."""
    heads: NDArray[np.float64]
    """float64[H, G, G, d]: after value and output."""
    own: NDArray[np.float64]
    """float64[G, G, d]: the last token's own stream, x_2."""
    unembedding: NDArray[np.float64]
    """float64[N, d]."""

    @property
    def heads_together(self) -> NDArray[np.float64]:
        """float64[G, G, d]: the sum of the heads."""
        return np.asarray(self.heads.sum(axis=0))

    @property
    def layer(self) -> NDArray[np.float64]:
        """float64[G, G, d]: the stream after the attention layer."""
        return self.own + self.heads_together

    def classes(self) -> ClassMap:
        """The layer's maps composed with the unembedding."""
        best = torch.from_numpy(self.layer @ self.unembedding.T).softmax(dim=-1).max(dim=-1)
        return ClassMap(best.indices.numpy(), best.values.numpy())


@torch.no_grad()
def layer_maps(network: AttentionOnly, points: int, pattern: Pattern = "softmax") -> LayerMaps:
    """The maps on a grid of so many points a side, in float64."""
    exact, circle = exact_copy(network), grid_of(points)
    stream = exact.stream(circle)
    weights = _replaced(exact.pattern(stream), pattern)
    words = torch.einsum("bhs,bsd->hbd", weights, circle)
    positions = torch.einsum("bhs,ds->hbd", weights, exact.position.weight)
    values = exact.value.weight.view(-1, HEAD_WIDTH, WIDTH)
    outputs = exact.output.weight.view(WIDTH, -1, HEAD_WIDTH)
    heads = torch.einsum("dhe,hec,hbc->hbd", outputs, values, words + positions)
    shape = (points, points, WIDTH)
    return LayerMaps(
        positions.view(-1, *shape).numpy(),
        words.view(-1, *shape).numpy(),
        heads.view(-1, *shape).numpy(),
        stream[:, -1].view(shape).numpy(),
        exact.unembedding.weight.numpy(),
    )


@torch.no_grad()
def raw_patterns(network: AttentionOnly, points: int) -> NDArray[np.float64]:
    """float64[H, G, G]: the difference of the last token's two attention logits, positive where the first leads."""
    exact = exact_copy(network)
    logits = exact.attention_logits(exact.stream(grid_of(points)))
    raw: NDArray[np.float64] = (logits[..., 0] - logits[..., 1]).T.reshape(-1, points, points).numpy()
    return raw


def _replaced(weights: Tensor, pattern: Pattern) -> Tensor:
    """[B, H, S]: the pattern that stands in the place of the network's."""
    match pattern:
        case "softmax":
            return weights
        case "hardmax":
            return torch.nn.functional.one_hot(weights.argmax(dim=-1), weights.shape[-1]).to(weights.dtype)
        case "constant":
            return weights.mean(dim=0, keepdim=True).expand_as(weights)
