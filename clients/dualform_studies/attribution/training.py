"""One training: run plainly, without some of its samples, or recorded; and what ways to attribute may ask of it.

Shapes: n samples, b samples of a batch, t tests.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform import Recorder
from dualform_studies.attribution.recipes import Examples, Recipe, loss

QUERY_SET = "tested"
_CHECKPOINTS = 5

State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Trained:
    """A recorded training, and everything that a way to attribute may ask of it."""

    network: nn.Module
    """As training left it, in eval mode."""
    build: Callable[[], nn.Module]
    """Another network of this architecture."""
    trained: Examples
    tested: Examples
    """The t examples to attribute."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """float32[b], of outputs and targets."""
    checkpoints: Sequence[State]
    """At equal distances in epochs; the last one is the end."""
    lr: float
    batch: int
    retrained: Callable[[int], State]
    """The end of another training, of another seed."""
    recipe: Recipe
    seed: int
    memory: Path
    """The recorded training."""
    seconds: float
    """Of the training, until all is on disk."""
    one_query: bool = False
    """Whether only the mean loss of the tests is asked for, so that a way may return float64[1, n]."""


def train(
    recipe: Recipe,
    examples: Examples,
    seed: int,
    left_out: NDArray[np.bool_] | None = None,
    *,
    memory: Path | None = None,
    tested: Examples | None = None,
    states: list[State] | None = None,
) -> nn.Module:
    """The trained network, in eval mode.

    Samples that are left out, bool[n], weigh 0 in the loss. The mean keeps its divisor, and initial weights, order and
    dropout are as with all samples (trajectory-specific removal, as of Ilyas and Engstrom, 2025).

    - `memory`: a folder to record the training in, with `tested` as a query set.
    - `states`: takes the state dicts of the checkpoints.
    """
    network = recipe.build(seed)
    optimizer = recipe.optimizer(network.parameters())
    weights = torch.ones(recipe.samples)
    if left_out is not None:
        weights[torch.from_numpy(left_out)] = 0
    moments = [recipe.samples * round(epoch) for epoch in np.linspace(0, recipe.epochs, _CHECKPOINTS + 1)[1:]]
    recorder = memory and Recorder(network, optimizer, memory, quiet=True, keep_random=recipe.random)
    seen = 0
    with torch.random.fork_rng(devices=[]), recorder or nullcontext():
        torch.manual_seed(seed)  # only dropout draws after this
        for batch in recipe.batches(seed):
            inputs, targets = examples.of(torch.from_numpy(batch))
            label = None if recipe.text else targets
            with recorder.step(recipe.dataset, label, batch) if recorder else nullcontext():
                optimizer.zero_grad()
                losses = loss(network(inputs), targets)
                torch.autograd.backward((losses * weights[batch]).sum() / len(batch))
                optimizer.step()
            seen += len(batch)
            if states is not None and seen in moments:
                states.append({name: own.detach().clone() for name, own in network.state_dict().items()})
        if recorder and tested:
            recorder.query_set(QUERY_SET, tested.inputs, label=tested.targets, loss=loss)
    return network.eval()


@torch.no_grad()
def losses_of(network: nn.Module, tested: Examples) -> NDArray[np.float64]:
    """float64[t]."""
    return np.asarray(loss(network(tested.inputs), tested.targets).double().numpy())


def recorded(
    recipe: Recipe, trained: Examples, tested: Examples, seed: int, folder: Path, *, one_query: bool = False
) -> Trained:
    """The training recorded into `folder`; if it is there already, it is read."""
    memory, file = folder / "memory", folder / "checkpoints.pt"
    if not file.exists():
        shutil.rmtree(memory, ignore_errors=True)  # of a run that was cut off
        start, states = perf_counter(), list[State]()
        train(recipe, trained, seed, memory=memory, tested=tested, states=states)
        torch.save({"states": states, "seconds": perf_counter() - start}, part := file.with_suffix(".part"))
        part.replace(file)
    kept = torch.load(file)
    network = recipe.build()
    network.load_state_dict(kept["states"][-1])
    return Trained(
        network.eval(),
        recipe.build,
        trained,
        tested,
        loss,
        kept["states"],
        recipe.lr,
        recipe.batch,
        lambda other: train(recipe, trained, other).state_dict(),
        recipe,
        seed,
        memory,
        kept["seconds"],
        one_query,
    )
