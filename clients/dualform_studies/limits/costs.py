"""What recording and asking cost, measured here on small memories of one training, at several lengths.

A question is asked cold, of a memory opened for it alone, and warm, once what does not depend on the query is known.
Warm times are the least of several, so that other work on the machine shows as little as may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from dualform import Recorder, Rerun
from dualform.answers import GroupSums, Hits, Ledger
from dualform.query.engine import Engine, open_memory
from dualform.questions import GroupSum, TopK, Vectors
from dualform_studies.images.data.datasets import Dataset, digits
from dualform_studies.images.training.network import build_network, layer_names
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.stream import Batch, batch_rows, batches
from dualform_studies.images.training.updates import train
from dualform_studies.limits.sizes import sizes_of
from dualform_studies.pages.folder import Report

QUERY_SET = "test-digits"
MASK = "label != 3"
"""What the masked questions leave out: one class, trained among the others."""

_REPEATS = 5
_BEST = 10
_RERAN = 20
"""Test images that stored keys and a rerun are both asked about."""


@dataclass(frozen=True)
class Trial:
    """One training on scikit-learn's digits, which can be run again bit for bit."""

    recipe: Recipe
    seed: int

    @property
    def layers(self) -> tuple[str, ...]:
        return layer_names(self.recipe.widths(digits()))

    def train(self) -> float:
        """Take it without recording; seconds."""
        network = build_network(self.recipe.widths(digits()), self.seed)
        optimizer = self.recipe.optimizer(network)
        stream, start = self._stream(digits()), perf_counter()
        train(network, optimizer, stream, self.recipe.clip)
        return perf_counter() - start

    def record(self, folder: Path, *, keys: bool = True) -> float:
        """Record it, and the test images as a query set; seconds of the training, until all is on disk."""
        network = build_network(self.recipe.widths(digits()), self.seed)
        optimizer = self.recipe.optimizer(network)
        dataset = digits()
        with Recorder(network, optimizer, folder, keys=keys, values=keys, quiet=True) as recorder:
            start = perf_counter()
            train(network, optimizer, self._stream(dataset), self.recipe.clip, recorder=recorder)
            recorder.flush()
            seconds = perf_counter() - start
            if keys:
                recorder.query_set(QUERY_SET, torch.from_numpy(dataset.inputs(dataset.test)), label=dataset.test.labels)
        return seconds

    def rerun(self, folder: Path, questions: list[TopK | GroupSum]) -> list[Hits | GroupSums | Ledger]:
        """The answers of the training run again; `folder` holds it without keys."""
        network = build_network(self.recipe.widths(digits()), self.seed)
        optimizer = self.recipe.optimizer(network)
        rerun = Rerun(network, optimizer, folder, questions)
        with rerun:
            train(network, optimizer, self._stream(digits()), self.recipe.clip, recorder=rerun)
        return rerun.answers()

    def _stream(self, dataset: Dataset) -> Iterator[Batch]:
        return batches(dataset, batch_rows(dataset.split.trained, self.recipe, self.seed, part=0))


def measure(trial: Trial, folder: Path) -> Report:
    """Bytes, seconds of the training and of each question, and how much a masked class cancels; the memory stays in
    `folder`.
    """
    plain, recorded, sizes = trial.train(), trial.record(folder), sizes_of(folder)
    cold = {name: _cold(folder, trial.layers, ask) for name, ask in QUESTIONS.items()}
    with open_memory(folder) as memory:
        slots = sum(memory.info().slots.values())
        warm = {name: _least(memory, trial.layers, ask) for name, ask in QUESTIONS.items()}
        cancelled = memory.cancellation(where=MASK)
    return {
        "steps": trial.recipe.steps,
        "slots": slots,
        "plain_seconds": plain,
        "recorded_seconds": recorded,
        "bytes": sizes,
        "cold_seconds": cold,
        "warm_seconds": warm,
        "cancellation": dict(cancelled),
    }


def _best(memory: Engine, layer: str) -> object:
    return memory.topk(layer, f"{QUERY_SET}/0", k=_BEST, score="abs")


def _signed(memory: Engine, layer: str) -> object:
    return memory.group_sum(layer, f"{QUERY_SET}/0", by="label")


def _absolute(memory: Engine, layer: str) -> object:
    return memory.group_sum(layer, f"{QUERY_SET}/0", by="label", score="abs")


def _masked(memory: Engine, layer: str) -> object:
    return memory.output(layer, f"{QUERY_SET}/0", where=MASK)


BEST_SLOTS, SIGNED_SUMS = "ten best slots", "signed weights summed over each label"

ATTENTION: dict[str, Callable[[Engine, str], object]] = {
    BEST_SLOTS: _best,
    "absolute weights summed over each label": _absolute,
    SIGNED_SUMS: _signed,
}
"""What is asked of attention weights, of one test image at every layer."""

QUESTIONS: dict[str, Callable[[Engine, str], object]] = {**ATTENTION, "output without one label": _masked}
"""All that is asked, of one test image at every layer."""


def _cold(folder: Path, layers: Sequence[str], ask: Callable[[Engine, str], object]) -> float:
    """Seconds of opening a memory and of one turn through its layers."""
    start = perf_counter()
    with open_memory(folder) as memory:
        for layer in layers:
            ask(memory, layer)
        return perf_counter() - start


def _least(memory: Engine, layers: Sequence[str], ask: Callable[[Engine, str], object]) -> float:
    """The least seconds of several turns through the layers, the first of which is not counted."""
    return min([_turn(memory, layers, ask) for _ in range(1 + _REPEATS)][1:])


def _turn(memory: Engine, layers: Sequence[str], ask: Callable[[Engine, str], object]) -> float:
    start = perf_counter()
    for layer in layers:
        ask(memory, layer)
    return perf_counter() - start


def scoring_seconds(folders: Sequence[Path], layers: Sequence[str]) -> list[float]:
    """For each memory, the least seconds in which its slots are scored for all test images, warm.

    The question is one that passes over all slots, and the images are so many that what any question takes is little
    beside the pass. The memories take turns, so that other work on the machine meets all of them alike.
    """
    with ExitStack() as stack:
        memories = [stack.enter_context(open_memory(folder)) for folder in folders]
        turns = [[_turn(memory, layers, _best_of_all) for memory in memories] for _ in range(1 + _REPEATS)]
    return [min(taken) for taken in zip(*turns[1:], strict=True)]


def _best_of_all(memory: Engine, layer: str) -> object:
    return memory.topk(layer, QUERY_SET, k=_BEST, score="abs")


def compare_rerun(trial: Trial, stored: Path, folder: Path) -> Report:
    """The same training recorded without keys into `folder`, run again, and asked what the stored one is asked."""
    trial.record(folder, keys=False)
    with open_memory(stored) as memory:
        questions: list[TopK | GroupSum] = []
        expected: list[Hits | GroupSums] = []
        for layer in trial.layers:
            queries = memory.query_set(QUERY_SET, layer).queries
            assert queries is not None, "the layer was named"
            asked = Vectors(queries[:_RERAN])
            best, sums = TopK(layer, asked, _BEST), GroupSum(layer, asked, ("label",))
            questions += [best, sums]
            expected += [memory.ask(best), memory.ask(sums)]
    found = trial.rerun(folder, questions)
    same = [_numbers(one) == _numbers(other) for one, other in zip(expected, found, strict=True)]
    return {
        "questions": len(questions),
        "same": sum(same),
        "bytes": sizes_of(folder),
    }


def _numbers(answer: Hits | GroupSums | Ledger) -> tuple[bytes, ...]:
    """An answer's slots and scores, or its sums, to the last bit."""
    if isinstance(answer, Hits):
        return answer.ids.tobytes(), answer.flat_scores.tobytes()
    return (answer.sums.tobytes(),)
