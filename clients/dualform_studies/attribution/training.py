"""One training: run plainly, without some of its samples, or recorded; and what ways to attribute may ask of it.

Shapes: n samples, b samples of a batch, t tests.
"""

from __future__ import annotations

import inspect
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
    recorder_of: Callable[[nn.Module, torch.optim.Optimizer], Recorder] | None = None,
    after_epoch: Callable[[int, nn.Module], None] | None = None,
    at_end: Callable[[Recorder], None] | None = None,
) -> nn.Module:
    """The trained network, in eval mode.

    Samples that are left out, bool[n], weigh 0 in the loss. The mean keeps its divisor, and initial weights, order and
    dropout are as with all samples (trajectory-specific removal, as of Engstrom et al., 2025).
    """
    network = recipe.build(seed)
    optimizer = recipe.optimizer(network.parameters())
    weights = torch.ones(recipe.samples)
    if left_out is not None:
        weights[torch.from_numpy(left_out)] = 0
    recorder = recorder_of(network, optimizer) if recorder_of else None
    done = 0
    with torch.random.fork_rng(devices=[]), recorder or nullcontext():
        torch.manual_seed(seed)  # nothing but dropout draws from here on
        for batch in recipe.batches(seed):
            inputs, targets = examples.of(torch.from_numpy(batch))
            said = {"dataset": recipe.dataset, "sample": batch} | ({} if recipe.text else {"label": targets})
            with recorder.step(**said) if recorder else nullcontext():
                optimizer.zero_grad()
                losses = loss(network(inputs), targets)
                torch.autograd.backward((losses * weights[batch]).sum() / len(batch))
                optimizer.step()
            done += len(batch)
            if after_epoch and done % recipe.samples == 0:
                after_epoch(done // recipe.samples, network)
        if recorder and at_end:
            at_end(recorder)
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
        moments = {round(epoch) for epoch in np.linspace(0, recipe.epochs, _CHECKPOINTS + 1)[1:]}

        def keep(epoch: int, network: nn.Module) -> None:
            if epoch in moments:
                states.append({name: own.detach().clone() for name, own in network.state_dict().items()})

        more = {"keep_random": True} if recipe.random and "keep_random" in inspect.signature(Recorder).parameters else {}
        train(
            recipe,
            trained,
            seed,
            recorder_of=lambda network, optimizer: Recorder(network, optimizer, memory, quiet=True, **more),
            after_epoch=keep,
            at_end=lambda recorder: recorder.query_set(QUERY_SET, tested.inputs, label=tested.targets, loss=loss),
        )
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
