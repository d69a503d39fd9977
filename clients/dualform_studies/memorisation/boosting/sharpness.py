"""How curved the loss is along a training. Shapes: M networks, K numbers that learn.

Gradient descent with momentum m and learning rate r follows a quadratic only while its curvature is below
2 (1 + m) / r; beyond, it swings ever wider (Polyak, "Some methods of speeding up the convergence of iteration methods",
1964). The loss is no quadratic, but where its greatest curvature passes that bound, steps overshoot.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap
from torch.nn.functional import cross_entropy

from dualform_studies.memorisation.transformer.network import AttentionOnly


def bound(lr: float, momentum: float) -> float:
    """The greatest curvature that gradient descent with momentum follows."""
    return 2 * (1 + momentum) / lr


def sharpness(
    base: AttentionOnly,
    parameters: dict[str, Tensor],
    pairs: Tensor,
    next_tokens: Tensor,
    heads: Tensor,
    learns: dict[str, Tensor],
) -> Tensor:
    """float64[M]: the greatest eigenvalue of the mean loss's Hessian in the numbers that learn.

    `parameters` are stacked, [M, ...]; `next_tokens` int64[M, P]; `heads` [1, H]; `learns` as training takes it.
    """
    exact = {name: p.double() for name, p in parameters.items()}
    masks = {name: mask.bool().expand(exact[name].shape[1:]) for name, mask in learns.items()}

    def loss(learned: Tensor, own: dict[str, Tensor], true: Tensor) -> Tensor:
        placed, start = {}, 0
        for name, p in own.items():
            count = int(masks[name].sum())
            places = masks[name].nonzero(as_tuple=True)
            placed[name] = p.index_put(places, learned[start : start + count])
            start += count
        return cross_entropy(functional_call(base, placed, (pairs, heads.double())), true)

    learned = torch.cat([p[:, masks[name]] for name, p in exact.items()], dim=1)
    curvature = vmap(jacrev(grad(loss)))(learned, exact, next_tokens)
    greatest: Tensor = torch.linalg.eigvalsh(curvature)[:, -1]
    return greatest
