"""The trainings of a language study: recorded, and run again for the answers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from dualform import Recorder, Rerun
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.recorded_memory import open_recorded
from dualform_studies.text.attention import Question
from dualform_studies.text.corpora import Corpus, Tokens, Vocabulary
from dualform_studies.text.prompts import CONTEXT
from dualform_studies.text.training import (
    LAYER,
    LanguageModel,
    Recipe,
    begin,
    build_network,
    chunks_of_a_pass,
    passages,
    streams,
    train,
)

QUERY_SET, PASSAGES = "test", 16
"""Passages of the test text, of CONTEXT tokens each, that are stored as queries."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained on what, and with which seed."""

    corpus: Corpus
    vocabulary: Vocabulary
    train: Tokens
    test: Tokens
    recipe: Recipe
    seed: int
    progress: Progress | None = None

    @property
    def of_a_pass(self) -> int:
        """Updates. Raises BadInput where the training text is too short for one."""
        return chunks_of_a_pass(len(self.train), self.recipe)

    @property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    def seconds_of(self, steps: int) -> float:
        """How long so many updates take, unrecorded."""
        network, optimizer = self._begin()
        start = perf_counter()
        train(network, optimizer, self.train, self.recipe.with_steps(steps), self.seed)
        return perf_counter() - start

    def record(self, out: Path, *, keys: bool) -> tuple[LanguageModel, float]:
        """The trained network, recorded into a folder, and the seconds it took; without keys for a rerun."""
        network, optimizer = self._begin()
        names = {self.corpus.name: self.vocabulary.words}
        start = perf_counter()
        with Recorder(
            network, optimizer, out, [LAYER], values=False, label_names=names, keys=keys, quiet=True
        ) as recorder:
            self._train(network, optimizer, recorder, "training, recorded")
            seconds = perf_counter() - start
            if keys:
                self._show(recorder)
        return network, seconds

    def _show(self, recorder: Recorder) -> None:
        """Store what the streams read, and passages of the test text as a query set."""
        recorder.previews(self.corpus.name, streams(self.train, self.recipe))
        length = min(CONTEXT, len(self.test) - 1)
        begins = np.arange(min(PASSAGES, (len(self.test) - 1) // length)) * length
        places = begins[:, None] + np.arange(length)
        inputs, labels = (torch.from_numpy(self.test.ids[own]).to(self.device) for own in (places, places + 1))
        recorder.query_set(QUERY_SET, inputs, label=labels, previews=passages(self.test, begins.tolist(), length))

    def rerun(self, out: Path, questions: Sequence[Question]) -> tuple[list[Any], float]:
        """Answers from the training run again, and the seconds it took."""
        network, optimizer = self._begin()
        start = perf_counter()
        rerun = Rerun(network, optimizer, out, questions)
        with rerun:
            self._train(network, optimizer, rerun, "training again, for the answers")
        return rerun.answers(), perf_counter() - start

    def ask_stored(self, out: Path, questions: Sequence[Question]) -> tuple[list[Any], float]:
        """Answers from stored keys, and the seconds it took."""
        start = perf_counter()
        say = or_silent(self.progress)
        answers: list[Any] = []
        with open_recorded(out, ram=None) as memory:
            for done, question in enumerate(questions):
                say("asking the memory", done, len(questions))
                answers.append(memory.ask(question))
            say("asking the memory", len(questions), len(questions))
        return answers, perf_counter() - start

    def initial_network(self) -> LanguageModel:
        return build_network(len(self.vocabulary), self.recipe, self.seed).to(self.device)

    def recorded_network(self, out: Path) -> LanguageModel:
        """The network as a recorded training left it."""
        network = self.initial_network()
        network.load_state_dict(load_file(out / "weights" / "final.safetensors"))
        return network

    def _begin(self) -> tuple[LanguageModel, torch.optim.Adam]:
        if self.device == "cuda":
            # Otherwise sums may be added in another order each time, and a second training would be another one.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        return begin(len(self.vocabulary), self.recipe, self.seed, self.device)

    def _train(
        self,
        network: LanguageModel,
        optimizer: torch.optim.Optimizer,
        recorder: Recorder,
        label: str,
    ) -> None:
        train(
            network,
            optimizer,
            self.train,
            self.recipe,
            self.seed,
            step=recorder.step,
            dataset=self.corpus.name,
            label=label,
            progress=self.progress,
        )
