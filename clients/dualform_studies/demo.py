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

from dualform.errors import AlreadyExists
from dualform.methods import Answers
from dualform.query.engine import Engine, open_memory
from dualform_client import Client
from dualform_service.server import Server
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.images.datasets import digits, permuted
from dualform_studies.images.masking import Verdict, judge_moments, moments, without
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


def run_demo(out: Path, progress: Progress | None = None, recipe: Recipe = DEMO_RECIPE, seed: int = 0) -> Report:
    """Run the demo; the memory is `out` itself, the figures and report.json lie in `out/report`.

    A demo that `out` holds already is replaced. Raises AlreadyExists where it holds anything else.
    """
    _make_room(out)
    start = perf_counter()
    pair, trained = record_demo(out, progress, recipe, seed)
    say = or_silent(progress)
    with open_memory(out) as memory:
        say(_REBUILDING, 0, 1)
        judged = judge_moments(memory, trained, pair, recipe)
        say(_REBUILDING, 1, 1)
        say(_ASKING, 0, 1)
        report = _ask_over_grpc(memory, judged, layer_names(recipe.widths(pair[0])), report_folder(out))
        report["cancellation"] = dict(memory.cancellation(where=without(pair[1])))
        say(_ASKING, 1, 1)
    report |= {
        "study": "demo",
        "command": "dualform demo",
        "seed": seed,
        "mask": without(pair[1]),
        "accuracy": judged.accuracy(),
        "disk_bytes": bytes_on_disk(out),
        "seconds": {"training": trained.seconds, "all": perf_counter() - start},
    }
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


def record_demo(
    out: Path, progress: Progress | None = None, recipe: Recipe = DEMO_RECIPE, seed: int = 0
) -> tuple[Pair, Trained]:
    """Train on both datasets, one after the other, and record that to `out`."""
    pair = digits(), permuted(digits())
    with _one_thread():
        return pair, train_in_succession(pair, recipe, seed, record_to=out, progress=progress)


def _make_room(out: Path) -> None:
    """Remove an earlier demo, so that the command can be given twice; never anything else."""
    try:
        check_free(out)
    except AlreadyExists:
        if study_of(out) != "demo":
            raise
        shutil.rmtree(out)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Train on one thread: with layers this small, threads of a busy machine mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _ask_over_grpc(memory: Engine, judged: Verdict, layers: tuple[str, ...], folder: Path) -> Report:
    """Serve the memory on a free port of this machine, and ask everything as a remote client would."""
    server = Server(memory, "127.0.0.1:0")
    address = f"127.0.0.1:{server.start()}"
    try:
        with Client(address, timeout=_ANSWERS_WITHIN) as client:
            return _ask(client, judged, layers, folder) | {"address": address}
    finally:
        server.stop(grace=1.0)


def _ask(client: Answers, judged: Verdict, layers: tuple[str, ...], folder: Path) -> Report:
    first = judged.pair[0]
    # A digit that the second dataset spoils, if there is one.
    row = int(judged.interfered().argmax())
    query = Query(first, row, int(judged.classes["final"][first.name][row]))
    return {
        "slots": sum(client.info().slots.values()),
        "verify": verify_report(client),
        "prediction": draw_example(client, query, layers, judged.pair, folder, "prediction", PaperFigures()),
    }
