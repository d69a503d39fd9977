"""The Transformer of the study once more, by hand: NumPy in float64, one pair at a time; and its training, watched."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from dualform_studies.memorisation.transformer import PAIRS, AttentionOnly, Recipe, build_network


def weights_of(network: AttentionOnly) -> dict[str, np.ndarray]:
    return {name.removesuffix(".weight"): p.detach().double().numpy() for name, p in network.named_parameters()}


def strong_network(seed: int) -> AttentionOnly:
    """Stronger than a fresh one, so that its attention and classes vary."""
    network = build_network(seed)
    for parameter in network.parameters():
        parameter.data.mul_(3)
    return network


def on_circle(w: dict[str, np.ndarray], token: int) -> np.ndarray:
    word = w["word"][:, token]
    centred = word - word.mean()
    return centred / np.sqrt((centred**2).mean())


def forward(w: dict[str, np.ndarray], points: np.ndarray, heads=(1.0, 1.0, 1.0)) -> tuple[np.ndarray, np.ndarray]:
    """Attention patterns [3, 2] and logits [5] of two points on the circle, [2, 3]."""
    x = np.stack([points[place] + w["position"][:, place] for place in range(2)])
    after, patterns = x[1].copy(), []
    for head in range(3):
        rows = slice(3 * head, 3 * head + 3)
        query, keys, values = w["query"][rows] @ x[1], x @ w["key"][rows].T, x @ w["value"][rows].T
        likely = np.exp(keys @ query / np.sqrt(3))
        patterns.append(likely / likely.sum())
        after += heads[head] * w["output"][:, rows] @ (patterns[-1] @ values)
    return np.stack(patterns), w["unembedding"] @ after


class Watched:
    """A plain PyTorch training of the same recipe; what its value projection saw and was told, in NumPy."""

    def __init__(self, facts: torch.Tensor, recipe: Recipe, seed: int) -> None:
        self.network = network = build_network(seed)
        self.begun = weights_of(build_network(seed))["value"]
        optimizer = torch.optim.SGD(network.parameters(), lr=recipe.lr, momentum=recipe.momentum)
        seen: list[torch.Tensor] = []

        def watch(module, args, output):
            output.retain_grad()
            seen.extend((args[0].detach(), output))

        handle = network.value.register_forward_hook(watch)
        keys, errors = [], []
        for _ in range(recipe.steps):
            optimizer.zero_grad()
            cross_entropy(network(PAIRS), facts).backward()
            optimizer.step()
            keys.append(seen[0].double().numpy())
            errors.append(seen[1].grad.double().numpy())
            seen.clear()
        handle.remove()
        self.keys, errors = np.stack(keys), np.stack(errors)
        """[steps, pairs, 2, 3]."""
        left = np.arange(recipe.steps, 0, -1)
        factors = -recipe.lr * (1 - recipe.momentum**left) / (1 - recipe.momentum)
        self.values = factors[:, None, None, None] * errors
        """[steps, pairs, 2, 9]: e_t."""

    def spoken(self, pairs: np.ndarray) -> np.ndarray:
        """[9, 3]: what the slots of some pairs, bool[25], added to the value projection."""
        return np.einsum("tpjo,tpji->oi", self.values[:, pairs], self.keys[:, pairs])
