"""Many small networks trained at once: their weights are stacked, and each step is one program of batched products.

They compute what as many trainings one by one would, to rounding: the same initial weights, batches and dropout.
Shapes: m networks, b images of a batch, n images, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from dualform_studies.attribution.examples import Examples
from dualform_studies.attribution.recipe import Recipe, seed_of_step
from dualform_studies.attribution.schedule import Step

Doubles = NDArray[np.float64]


class StackedNetworks:
    """m perceptrons of the same widths: linear layers with relu and dropout between them."""

    def __init__(self, networks: Sequence[nn.Sequential]) -> None:
        layers = [[layer for layer in network if isinstance(layer, nn.Linear)] for network in networks]
        self.weights: list[Tensor] = []
        """Of each layer, float32[m, d_in, d_out]."""
        self.biases: list[Tensor] = []
        """Of each layer, float32[m, 1, d_out]."""
        for same in zip(*layers, strict=True):
            self.weights.append(torch.stack([one.weight.detach().T for one in same]).requires_grad_())
            self.biases.append(torch.stack([one.bias.detach()[None] for one in same]).requires_grad_())

    def __len__(self) -> int:
        return len(self.weights[0])

    def outputs(self, inputs: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """float32[m, b, C], of inputs float32[b, d] of all networks or float32[m, b, d]; `masks` scale hidden units."""
        own = inputs if inputs.dim() == 3 else inputs.expand(len(self), *inputs.shape)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            own = torch.baddbmm(bias, own, weight)
            if number + 1 < len(self.weights):
                own = torch.relu(own)
                own = own * masks[number] if masks else own
        return own

    def train(self, examples: Examples, steps: Sequence[Step], recipe: Recipe, seed: int) -> None:
        """Train all of them, each on its own rows and weights of every step."""
        optimizer = recipe.optimizer([*self.weights, *self.biases])
        for number, step in enumerate(steps):
            rows = torch.from_numpy(np.ascontiguousarray(step.rows))
            masks = _masks(recipe, seed_of_step(seed, number), rows.shape[-1])
            outputs = self.outputs(examples.inputs[rows], masks)
            labels = examples.labels[rows].expand(len(self), -1)
            losses = cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
            optimizer.zero_grad()
            torch.autograd.backward((losses * torch.from_numpy(step.weights)).sum())
            optimizer.step()

    @torch.no_grad()
    def losses(self, examples: Examples) -> Doubles:
        """float64[m, n]: the loss of each example, without dropout."""
        return np.stack([_losses(own, examples.labels) for own in self.outputs(examples.inputs)])

    @torch.no_grad()
    def classes(self, examples: Examples) -> NDArray[np.int64]:
        """int64[m, n]: the class that each network gives each example."""
        return self.outputs(examples.inputs).argmax(2).numpy()

    def states(self, network: nn.Sequential) -> Iterator[Mapping[str, Tensor]]:
        """The state dict of each, as of a network of their widths."""
        names = [name for name, layer in network.named_children() if isinstance(layer, nn.Linear)]
        for one in range(len(self)):
            state = {}
            for name, weight, bias in zip(names, self.weights, self.biases, strict=True):
                state[f"{name}.weight"] = weight[one].detach().T.contiguous()
                state[f"{name}.bias"] = bias[one, 0].detach().clone()
            yield state


def train_in_parts(
    examples: Examples,
    recipe: Recipe,
    seed: int,
    tested: Examples,
    parts: Iterable[tuple[int, Callable[[], Sequence[Step]]]],
) -> Iterator[tuple[Doubles, NDArray[np.int64]]]:
    """Losses float64[m, n] and classes int64[m, n] of the tested examples, by parts of so many trainings, each of which
    has its own steps and all of which begin with the network of the seed.
    """
    network = recipe.build(examples.inputs.shape[1], examples.classes, seed)
    for count, steps in parts:
        stack = StackedNetworks([network] * count)
        stack.train(examples, steps(), recipe, seed)
        yield stack.losses(tested), stack.classes(tested)


def _masks(recipe: Recipe, seed: int, rows: int) -> list[Tensor]:
    """float32[b, width] for each hidden layer: what nn.Dropout draws from the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [dropout(torch.ones(rows, width), recipe.dropout) for width in recipe.hidden]


def _losses(outputs: Tensor, labels: Tensor) -> Doubles:
    return cross_entropy(outputs.double(), labels, reduction="none").numpy()
