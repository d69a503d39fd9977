"""The paper's classifier: linear layers `layer-0`, `layer-1`, … with relu between them (section 5.1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform_studies.images.data.datasets import Dataset, Images

_EVALUATED_AT_ONCE = 1000


def build_network(widths: Sequence[int], seed: int) -> nn.Sequential:
    """A network of len(widths) - 1 linear layers in PyTorch's default initialisation, drawn from the seed alone.

    `widths` holds the width of the input, of each hidden layer and of the output, e.g. (784, 800, 800, 10).
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for number, (d_in, d_out) in enumerate(pairwise(widths)):
            if number:
                layers[f"relu-{number - 1}"] = nn.ReLU()
            layers[f"layer-{number}"] = nn.Linear(d_in, d_out)
    return nn.Sequential(layers)


def layer_names(widths: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"layer-{number}" for number in range(len(widths) - 1))


def with_weights(widths: Sequence[int], weights: Mapping[str, Tensor]) -> nn.Sequential:
    """A fresh network holding these weights, such as those that a masked memory gives."""
    network = build_network(widths, seed=0)
    network.load_state_dict(dict(weights))
    return network


@torch.no_grad()
def predictions(network: nn.Module, dataset: Dataset, images: Images) -> NDArray[np.int64]:
    """int64[n]: the class of the greatest output for each image, in evaluation mode and a thousand images at a time."""
    was_training = network.training
    network.eval()
    classes = [network(batch).argmax(dim=1).numpy() for batch in _batches(dataset, images)]
    network.train(was_training)
    return np.concatenate(classes)


def accuracy(network: nn.Module, dataset: Dataset) -> float:
    """Fraction of the test images that the network classifies as labelled."""
    return float((predictions(network, dataset, dataset.test) == dataset.test.labels).mean())


def _batches(dataset: Dataset, images: Images) -> Iterator[Tensor]:
    for start in range(0, len(images), _EVALUATED_AT_ONCE):
        yield torch.from_numpy(dataset.inputs(images, slice(start, start + _EVALUATED_AT_ONCE)))
