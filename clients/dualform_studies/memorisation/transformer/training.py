"""The recorded training: all 25 pairs in every step, by SGD with momentum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from dualform import PreviewSet, Recorder
from dualform.errors import BadInput
from dualform_studies.memorisation.transformer.ensemble import Optimize
from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
from dualform_studies.memorisation.transformer.network import AttentionOnly, build_network
from dualform_studies.progress import Progress

DATASET = "pairs"
QUERY_SET = "pairs"


@dataclass(frozen=True)
class Recipe:
    """SGD, whose steps a memory rebuilds exactly. With these numbers every one of 32 seeds memorised all 25 pairs."""

    lr: float = 0.02
    momentum: float = 0.9
    steps: int = 2000
    """Updates, each on every pair once: the uniform distribution over pairs without its noise."""
    later_steps: int = 1000
    """Of boosted training: updates of each head after the first, which takes `steps`."""
    own_steps: int = 3000
    """Updates by which heads are to learn sets of their own."""
    adam_lr: float = 0.01
    """Of the trainings by Adam that stand beside."""
    seeds: int = 24
    """Trainings of each kind that are compared, and whose heads are looked at."""
    most_heads: int = 8
    """Heads side by side: every number from 1 on is tried."""
    arrangements: int = 20
    """Arrangements of words that are tried for a network whose parameters are set by hand."""
    grid: int = 320
    """Points along each side of a torus."""
    simplex: int = 45
    """Intervals along each side of the simplex of head weights; a multiple of 3, so that its centre is among them."""
    swept: int = 25
    """Pairs whose last steps are left out."""

    @property
    def sgd(self) -> Optimize:
        """The optimizer of the recorded training."""
        return partial(torch.optim.SGD, lr=self.lr, momentum=self.momentum)

    @property
    def adam(self) -> Optimize:
        return partial(torch.optim.Adam, lr=self.adam_lr)

    def with_steps(self, steps: int | None) -> Recipe:
        """So many updates, and others in proportion; unchanged for None. BadInput for fewer than 1."""
        if steps is None:
            return self
        if steps < 1:
            raise BadInput(f"steps must be at least 1, not {steps}.", hint="For example --steps 1000.", field="steps")
        return replace(self, steps=steps, later_steps=max(1, steps // 2), own_steps=max(1, 3 * steps // 2))


def train_recorded(
    facts: Facts, recipe: Recipe, seed: int, record_to: Path, progress: Progress | None = None
) -> AttentionOnly:
    """Train a fresh network and record it into the folder `record_to`.

    Slots have the columns `first` and `second`, a pair's tokens in letters, `sample`, the pair's number, and `label`,
    its next token; those of the layers that see both tokens of a pair also `token`, the letter that the slot is of. The
    query set `pairs` holds what each layer is asked by the trained network. Samples of both know their pair as a text.
    Raises AlreadyExists where the folder holds something, RecordingError where the training diverges.
    """
    network = build_network(seed)
    optimizer = recipe.sgd(list(network.parameters()))
    letters = [[TOKENS[token] for token in pair] for pair in facts.pairs.tolist()]
    first, second = (list(column) for column in zip(*letters, strict=True))
    with Recorder(network, optimizer, record_to, label_names={DATASET: list(TOKENS)}, quiet=True) as recorder:
        for done in range(1, recipe.steps + 1):
            with recorder.step(
                dataset=DATASET, label=facts.next_tokens, sample=torch.arange(len(facts)),
                first=first, second=second, token=letters,
            ):  # fmt: skip
                loss = cross_entropy(network(facts.pairs), facts.next_tokens)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
            if progress is not None:
                progress("training (recorded)", done, recipe.steps)
        preview_set = PreviewSet.texts(facts.names, offsets=[[(0, 1), (1, 2)]] * len(facts))
        recorder.previews(DATASET, preview_set)
        recorder.query_set(QUERY_SET, facts.pairs, label=facts.next_tokens, previews=preview_set)
    return network.eval()
