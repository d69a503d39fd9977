"""Ways to attribute a prediction to training data, put to the test by retraining: `dualform study attribution`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from dualform_studies.assignment import Assignment
from dualform_studies.attribution.brittleness import least_sure, turning_sizes
from dualform_studies.attribution.contest import Attributed, attribute, entries
from dualform_studies.attribution.detection import auc_with_interval
from dualform_studies.attribution.examples import Examples, first_examples, flipped
from dualform_studies.attribution.page import attribution_page
from dualform_studies.attribution.ranks import Doubles, mean_of
from dualform_studies.attribution.recorded import Recorded, losses, record
from dualform_studies.attribution.removal import lds, leave_one_out
from dualform_studies.attribution.schedule import epochs_of
from dualform_studies.attribution.sizes import QUICK, Sizes, with_epochs
from dualform_studies.attribution.trials import Trials, draw_subsets
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.download import load_dataset
from dualform_studies.pages.folder import Report, bytes_on_disk, check_free, write_report

_TWICE = ", abs"
"""Absolute attention ranks as the signed one does where no score is negative: it is not put to this test."""


def run_attribution(assignment: Assignment, sizes: Sizes | None = None) -> Report:
    """Record two trainings, `out/whole` and `out/flipped`, and judge every way at hand; the page lies in `out/report`.

    Packages that are absent are named in the page as not run. Raises AlreadyExists where `out` holds something, and
    what `load_dataset` raises.
    """
    start = perf_counter()
    check_free(assignment.out)
    sizes = sizes or (QUICK if assignment.quick else Sizes())
    if assignment.steps is not None:
        sizes = with_epochs(sizes, max(1, round(assignment.steps / -(-sizes.recipe.trained // sizes.recipe.batch))))
    dataset = load_dataset("mnist", assignment.data)
    judged = _Judged(assignment, dataset, sizes)
    report: Report = {
        "study": "attribution",
        "command": assignment.command("attribution"),
        "seed": assignment.first_seed,
        "recipe": sizes.recipe.in_words(),
        "sizes": asdict(sizes),
        **judged.by_retraining(assignment.out / "whole"),
    }
    write_report(assignment.out, report)  # a study that is cut off leaves what it has
    judged.by_wrong_labels(assignment.out / "flipped", report)
    report["raised"] = judged.raised
    report["disk_bytes"] = bytes_on_disk(assignment.out)
    report["seconds"]["all"] = perf_counter() - start
    write_report(assignment.out, report)  # a fault of the page is mended and the page made again, without a training
    attribution_page(assignment.out, report).write(report)
    return report


class _Judged:
    def __init__(self, assignment: Assignment, dataset: Dataset, sizes: Sizes) -> None:
        self._sizes, self._seed, self._progress = sizes, assignment.first_seed, assignment.progress
        self._trained = first_examples(dataset, dataset.train, sizes.recipe.trained)
        self._tested = first_examples(dataset, dataset.test, sizes.recipe.tested)
        self._entries, self._missing = entries(sizes.heavy)
        self.raised: dict[str, str] = {}
        """What ways of other packages ended with, by name."""

    def by_retraining(self, folder: Path) -> Report:
        """What each way foresees of trainings without some of the images."""
        sizes, recipe, clock = self._sizes, self._sizes.recipe, _Clock()
        order = epochs_of(len(self._trained), recipe.epochs, self._seed)
        recorded = record(self._trained, self._tested, recipe, self._seed, order, folder, self._progress)
        clock.tell("training, recorded")
        trials = Trials(self._trained, self._tested, recipe, self._seed, order, sizes.at_once, self._progress)
        kept = {share: draw_subsets(len(self._trained), share, sizes.subsets, self._seed) for share in sizes.shares}
        of_subsets = {share: trials.of_subsets(rows) for share, rows in kept.items()}
        clock.tell("training on subsets")
        removed = np.random.default_rng(self._seed).choice(len(self._trained), sizes.removed, replace=False)
        without, classes = trials.without([np.empty(0, dtype=np.int64), *removed[:, None]])
        clock.tell("leaving one out")
        found = list(attribute(recorded, self._entries, self.raised, self._progress))
        clock.tell("attributing")
        rows: dict[str, Report] = {}
        for own in found:
            tests = len(own.scores)
            by_share = {
                f"{share:g}": lds(own.scores, kept[share], of_subsets[share][:, :tests]) for share in sizes.shares
            }
            alone = leave_one_out(own.scores, removed, without[1:, :tests], without[0, :tests])
            rows[own.name] = {
                "package": own.package,
                "seconds": own.seconds,
                "tests": tests,
                "lds": {share: own_share.measured(self._seed).plain() for share, own_share in by_share.items()},
                "leave_one_out": alone.measured(self._seed).plain(),
            }
        self._turn(recorded, trials, found, rows)
        clock.tell("turning predictions")
        return {
            "ways": rows,
            "missing": self._missing,
            "accuracy": float((classes[0] == self._tested.labels.numpy()).mean()),
            "retrained_apart": float(np.abs(without[0] - _losses_of(recorded)).max()),
            "seconds": clock.seconds,
        }

    def _turn(self, recorded: Recorded, trials: Trials, found: Sequence[Attributed], rows: dict[str, Report]) -> None:
        sizes = self._sizes
        tests = least_sure(recorded, sizes.turned_among, sizes.turned)
        turned = turning_sizes(
            trials, {own.name: own.scores for own in found if _TWICE not in own.name}, tests, sizes.counts
        )
        beyond = 2 * sizes.counts[-1]
        for name, least in turned.items():
            filled = np.array([beyond if size is None else size for size in least], dtype=np.float64)
            rows[name]["brittleness"] = {
                "mean": mean_of(filled, self._seed).plain(),
                "turned": sum(size is not None for size in least),
                "of": len(least),
            }

    def by_wrong_labels(self, folder: Path, report: Report) -> None:
        """Whether each way finds the images with wrong labels, by what they do to themselves and to clean images."""
        sizes, clock = self._sizes, _Clock()
        recipe = replace(sizes.recipe, epochs=sizes.flipped_epochs)
        images, wrong = flipped(self._trained.of(slice(sizes.flipped)), sizes.wrong, self._seed)
        both = _joined(images, self._tested.of(slice(sizes.clean)))
        order = epochs_of(len(images), recipe.epochs, self._seed)
        recorded = record(images, both, recipe, self._seed, order, folder, self._progress)
        for own in attribute(recorded, self._entries, self.raised, self._progress):
            if own.name in report["ways"] and len(own.scores) == len(both):
                report["ways"][own.name]["wrong_labels"] = self._detected(own.scores, wrong)
        clock.tell("wrong labels")
        report["seconds"] |= clock.seconds

    def _detected(self, scores: Doubles, wrong: NDArray[np.bool_]) -> Report:
        own, clean = np.diagonal(scores), scores[len(wrong) :].mean(axis=0)
        return {
            "self": auc_with_interval(own, wrong, self._seed).plain(),
            "group": auc_with_interval(-clean, wrong, self._seed).plain(),
        }


class _Clock:
    """Seconds of each part of the study."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = perf_counter()

    def tell(self, part: str) -> None:
        now = perf_counter()
        self.seconds[part], self._since = now - self._since, now


def _joined(one: Examples, other: Examples) -> Examples:
    return Examples(torch.cat([one.inputs, other.inputs]), torch.cat([one.labels, other.labels]))


def _losses_of(recorded: Recorded) -> Doubles:
    """float64[tests]: of the recorded network itself."""
    with torch.no_grad():
        outputs = recorded.network(recorded.attributed.inputs).double()
        found: Doubles = losses(outputs, recorded.attributed.labels).numpy()
    return found
