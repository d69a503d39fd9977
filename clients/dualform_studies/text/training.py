"""The training of section 5.5 as its published code has it: Adam, clipping, and a state that is carried along until a
pass ends or chance has it begin anew. (In the code the thread that fetches batches makes a pass begin anew, perhaps a
batch or two early; here the state begins anew with the pass.)

Recorded or not, and however often it is run: on one machine, the seed alone decides every bit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualform_studies.progress import Progress
from dualform_studies.text.network import LanguageModel, State, build_network
from dualform_studies.text.recipe import Recipe
from dualform_studies.text.streams import chunks
from dualform_studies.text.tokens import Tokens

StepContext: TypeAlias = Callable[..., AbstractContextManager[object]]
"""`step` of a recorder or of a rerun."""
Watch: TypeAlias = Callable[[LanguageModel, int], None]
"""Told the network, and how many updates it has had."""


def begin(
    vocabulary: int, recipe: Recipe, seed: int, device: torch.device | str = "cpu"
) -> tuple[LanguageModel, torch.optim.Adam]:
    """A network in its initial weights, and its optimizer."""
    network = build_network(vocabulary, recipe, seed).to(device)
    return network, torch.optim.Adam(network.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)


def train(
    network: LanguageModel,
    optimizer: torch.optim.Optimizer,
    tokens: Tokens,
    recipe: Recipe,
    seed: int,
    *,
    step: StepContext | None = None,
    watch: Watch | None = None,
    dataset: str = "",
    label: str = "training",
    progress: Progress | None = None,
) -> list[float]:
    """Take `recipe.steps` updates; the loss of each is returned, in nats a token.

    With `step`, each is recorded: a slot is one token read, its position the place of that token in the text, its label
    the token that follows, its sample the stream that read it. `watch` is told of each update and may let the network
    read; it leaves its mode and torch's generator as they were. Whether the state is carried over is drawn by a
    generator of its own; dropout draws from torch's, which is set for the training and put back after it.
    """
    parameters = list(network.parameters())
    device = parameters[0].device
    resets = np.random.default_rng((seed, 1))
    state: State | None = None
    losses: list[Tensor] = []
    network.train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for done, chunk in enumerate(chunks(tokens.ids, recipe), start=1):
            # One chance for all streams: those of a batch begin anew together.
            if resets.random() < recipe.reset or chunk.opens:
                state = None
            inputs, targets = (torch.from_numpy(part).to(device) for part in (chunk.inputs, chunk.targets))
            columns = {"position": chunk.positions, "label": chunk.targets, "sample": np.arange(recipe.batch)}
            with nullcontext() if step is None else step(dataset=dataset, **columns):
                scores, after = network(inputs, state)
                loss = cross_entropy(scores.flatten(0, 1), targets.flatten())
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(parameters, recipe.clip)
                optimizer.step()
            state = (after[0].detach(), after[1].detach())
            losses.append(loss.detach())
            if watch is not None:
                watch(network, done)
            if progress is not None:
                progress(label, done, recipe.steps)
    return torch.stack(losses).tolist()
