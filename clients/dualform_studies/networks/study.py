"""What the studies of networks have in common: a training that is recorded, asked, and told of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from dualform_studies.assignment import Assignment
from dualform_studies.pages.folder import Report, check_free, write_report
from dualform_studies.pages.page import Page

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")


def run_network(
    name: str,
    assignment: Assignment,
    recipe: R,
    train_and_ask: Callable[[R], Report],
    page: Callable[[Path, Report], Page],
) -> Report:
    """Run the study `name`; the memory is `out` itself, page and report.json lie in `out/report`.

    `train_and_ask`: what is told of the network that a recipe trains; `page`: draws figures and page of a report.
    Raises AlreadyExists where `out` holds something, and what these two raise.
    """
    start = perf_counter()
    check_free(assignment.out)
    if assignment.steps is not None:
        recipe = replace(recipe, steps=assignment.steps)
    report: Report = {
        "study": name,
        "command": assignment.command(name),
        "seed": assignment.first_seed,
        **train_and_ask(recipe),
    }
    report["seconds"]["all"] = perf_counter() - start
    write_report(assignment.out, report)  # a fault of the page is mended and the page made again, without a training
    page(assignment.out, report).write(report)
    return report
