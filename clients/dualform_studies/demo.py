"""The demo: the whole path on data that scikit-learn brings along: record, serve over gRPC, ask, mask, draw.

A small network learns handwritten digits, then the same digits with their pixels permuted, and forgets the first. The
memory tells where a prediction comes from, and gives the first network back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import torch

from dualform.methods import Answers
from dualform.query.engine import Engine, open_memory
from dualform_client import Client
from dualform_service.server import Server
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.images.datasets import digits, permuted
from dualform_studies.images.masking import judge_moments, moments, without
from dualform_studies.images.prediction import PaperFigures, Query, draw_example, show_example
from dualform_studies.images.training import Pair, Recipe, Trained, layer_names, train_in_succession
from dualform_studies.recorded_memory import verify_report
from dualform_studies.report import Page, Report, bytes_on_disk, check_free, percent, report_folder, study_of

DEMO_RECIPE = Recipe(hidden=(64, 64), lr=2e-2, batch=64, steps=300)
"""About fourteen epochs on each dataset: enough to learn each, and to forget the first while learning the second."""

_ANSWERS_WITHIN = 60.0
"""Seconds: generous, as a busy machine may take long to start threads."""
_REBUILDING = "rebuilding the weights of each moment, and testing them"
_ASKING = "serving the memory, asking it over gRPC, and drawing"


def run_demo(out: Path, progress: Progress | None = None, recipe: Recipe = DEMO_RECIPE) -> Report:
    """Run the demo; the memory is `out` itself, the figures and report.json lie in `out/report`.

    A demo that `out` holds already is replaced. Raises AlreadyExists if it holds anything else.
    """
    if study_of(out) == "demo":
        shutil.rmtree(out)
    check_free(out)
    start, say = perf_counter(), or_silent(progress)
    pair, trained = record_demo(out, progress, recipe)
    first, second = pair
    with open_memory(out) as memory:
        say(_REBUILDING, 0, 1)
        judged = judge_moments(memory, trained, pair, recipe)
        say(_REBUILDING, 1, 1)
        # A digit that the second dataset spoils, if there is one.
        row = int(judged.interfered().argmax())
        query = Query(first, row, int(judged.classes["final"][first.name][row]))
        say(_ASKING, 0, 1)
        with _served(memory) as (address, client):
            layers, folder = layer_names(recipe.widths(first)), report_folder(out)
            report: Report = {
                "study": "demo",
                "command": "dualform demo",
                "seed": 0,
                "address": address,
                "slots": sum(client.info().slots.values()),
                "verify": verify_report(client),
                "prediction": draw_example(client, query, layers, pair, folder, "prediction", PaperFigures()),
                "mask": without(second),
                "cancellation": dict(memory.cancellation(where=without(second))),
                "accuracy": judged.accuracy(),
            }
        say(_ASKING, 1, 1)
    report["disk_bytes"] = bytes_on_disk(out)
    report["seconds"] = {"training": trained.seconds, "all": perf_counter() - start}
    page = Page(out, "A demonstration on handwritten digits")
    page.table(
        "accuracy",
        "Test accuracy.",
        ["network", *report["accuracy"]],
        [
            [words, *(percent(by_moment[moment]) for by_moment in report["accuracy"].values())]
            for moment, words in moments(pair).items()
        ],
    )
    show_example(page, report["prediction"], PaperFigures())
    page.write(report)
    return report


def record_demo(out: Path, progress: Progress | None = None, recipe: Recipe = DEMO_RECIPE) -> tuple[Pair, Trained]:
    """Train on both datasets, one after the other, and record that to `out`.

    It trains on one thread: with layers this small, threads of a busy machine mostly wait for each other.
    """
    pair, threads = (digits(), permuted(digits())), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return pair, train_in_succession(pair, recipe, 0, record_to=out, progress=progress)
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _served(memory: Engine) -> Iterator[tuple[str, Answers]]:
    """The memory as a remote client has it, on a free port of this machine."""
    server = Server(memory, "127.0.0.1:0")
    address = f"127.0.0.1:{server.start()}"
    try:
        with Client(address, timeout=_ANSWERS_WITHIN) as client:
            yield address, client
    finally:
        server.stop(grace=1.0)
