"""The trainings of a language study: plain, recorded, run again, and resumed."""

from __future__ import annotations

import json
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
from dualform.errors import AlreadyExists, BadInput
from dualform_studies.assignment import Assignment, Progress, or_silent
from dualform_studies.recorded_memory import open_recorded
from dualform_studies.report import Report, report_folder
from dualform_studies.text.attention import Question
from dualform_studies.text.corpora import Corpus, Tokens, Vocabulary
from dualform_studies.text.prompts import CONTEXT
from dualform_studies.text.training import (
    LAYER,
    LanguageModel,
    Recipe,
    Watch,
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

    def run_plain(self) -> tuple[LanguageModel, float]:
        """The trained network, and the seconds it took."""
        network, optimizer = self._begin()
        start = perf_counter()
        train(network, optimizer, self.train, self.recipe, self.seed, label="training plainly", progress=self.progress)
        return network, perf_counter() - start

    def record(self, out: Path, *, keys: bool, watch: Watch) -> tuple[LanguageModel, float]:
        """The same, recorded into a folder and watched; without keys for a rerun."""
        network, optimizer = self._begin()
        names = {self.corpus.name: self.vocabulary.words}
        start = perf_counter()
        with Recorder(
            network, optimizer, out, [LAYER], values=False, label_names=names, keys=keys, quiet=True
        ) as recorder:
            self._train(network, optimizer, recorder, "training, recorded", watch)
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

    def recorded_network(self, out: Path) -> LanguageModel:
        """The network as a recorded training left it."""
        network = build_network(len(self.vocabulary), self.recipe, self.seed)
        network.load_state_dict(load_file(out / "weights" / "final.safetensors"))
        return network.to(self.device)

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
        watch: Watch | None = None,
    ) -> None:
        train(
            network,
            optimizer,
            self.train,
            self.recipe,
            self.seed,
            step=recorder.step,
            watch=watch,
            dataset=self.corpus.name,
            label=label,
            progress=self.progress,
        )


def read_report(run: Path) -> Report:
    report: Report = json.loads((report_folder(run) / "report.json").read_text(encoding="utf-8"))
    return report


def check_same(report: Report, assignment: Assignment, digest: str) -> None:
    """Raises AlreadyExists where the assignment asks for another training than the one that is there, and BadInput
    where that one stored no keys or was fed another text than the one with this digest.
    """
    wanted: dict[str, tuple[Any, Any]] = {
        "seed": (assignment.seed, report["seed"]),
        "preset": (assignment.preset, report["preset"]),
        "steps": (assignment.steps, report["recipe"]["steps"]),
    }
    for name, (asked, there) in wanted.items():
        if asked not in (None, there):
            raise AlreadyExists(
                f"{assignment.out} contains a run with {name} {there}, not {asked}.",
                hint=f"Pass another folder with --out, or leave out --{name} to ask this run.",
            )
    if report["rerun"] or assignment.rerun:
        raise BadInput(
            f"{assignment.out} already contains a run, and --rerun trains again.",
            hint="Pass another folder with --out, and all prompts at once."
            if report["rerun"]
            else "This run stored its keys: leave out --rerun.",
            field="rerun",
        )
    if digest != report["corpus"]["digest"]:
        raise BadInput(
            f"the run in {assignment.out} was trained on another text than that in the data folder.",
            hint="Pass the data folder that it was trained from with --data.",
            field="data",
        )
