"""The unembedding's cells on the sphere of directions, as a weighted Voronoi diagram.

Of a stream x of length 1 the logit of a token is u . x, and `|x - u|^2 - |u|^2 = 1 - 2 u . x`. So the token of the
greatest logit is the one whose row u is nearest when the square of its length is taken off the square of the distance.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dualform_studies.memorisation.transformer.facts import Facts
from dualform_studies.memorisation.transformer.network import AttentionOnly


def nearest(streams: NDArray[np.float64], rows: NDArray[np.float64], weighted: bool = True) -> NDArray[np.int64]:
    """int64[n]: the cell in which each of the streams float64[n, d] lies, after it is brought to length 1.

    The sites are the rows float64[N, d]: as they are and weighted by their length, or all brought to length 1.
    """
    points = streams / np.linalg.norm(streams, axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1)
    sites, weights = (rows, lengths**2) if weighted else (rows / lengths[:, None], np.zeros(len(rows)))
    distances = ((points[:, None] - sites) ** 2).sum(axis=2) - weights
    found: NDArray[np.int64] = distances.argmin(axis=1)
    return found


def images_right(network: AttentionOnly, facts: Facts) -> NDArray[np.bool_]:
    """bool[P]: whether the image of each pair after the attention layer lies in the cell of its next token."""
    with torch.no_grad():
        images = network.attended(network.embed(facts.pairs)).double().numpy()
    rows = network.unembedding.weight.detach().double().numpy()
    return np.asarray(nearest(images, rows) == facts.next_tokens.numpy())


def random_directions(count: int, width: int, seed: int = 0) -> NDArray[np.float64]:
    """float64[count, width]: uniform on the sphere."""
    drawn = np.random.default_rng(seed).normal(size=(count, width))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
