"""Which score predicts a retraining? Ways to attribute a loss, judged by retrainings: `dualform study attribution`.

    RUN/settings.json
    RUN/<recipe>/retrained-1.npz, -10, -50, -one    losses after trainings without 1, 10, 50 % or one of the samples
    RUN/<recipe>/clean/, wrong/                     a recorded training, and scores/<way>.npz
    RUN/report/

All of it is kept: a run that was cut off goes on if the command is given again.
Shapes: n samples, t tests, k retrainings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.errors import AlreadyExists
from dualform_studies.assignment import Assignment
from dualform_studies.attribution import peers, ways
from dualform_studies.attribution.measures import auc, lds
from dualform_studies.attribution.page import attribution_page
from dualform_studies.attribution.recipes import RECIPES, Examples, Recipe
from dualform_studies.attribution.training import Trained, losses_of, recorded, train
from dualform_studies.attribution.ways import Scores
from dualform_studies.pages.folder import Report, check_free, write_report
from dualform_studies.progress import or_silent

TESTS = 50
"""Tests whose losses are attributed: the first held-out examples."""
SETS = 40
"""Retrainings of each kind."""
SHARES = {"1": 0.01, "10": 0.1, "50": 0.5}
"""Of the samples that a retraining leaves out."""
WRONG = 0.1
"""The share of samples that are spoiled in the second training."""

_ONCE = ("dattri TRAK-50",)
"""Ways that are too slow for the second training, too."""

Losses: TypeAlias = NDArray[np.float64]
Sets: TypeAlias = NDArray[np.bool_]


def run_attribution(
    assignment: Assignment, recipes: Sequence[Recipe] = RECIPES, tests: int = TESTS, sets: int = SETS
) -> Report:
    """Judge every way by every recipe. A way that raises is in the report by its name, with its error.

    Raises AlreadyExists where `out` holds anything but a run with these settings, and what readers of data raise.
    """
    if assignment.quick:
        recipes, tests, sets = [own.quick() for own in recipes], min(tests, 20), min(sets, 10)
    if assignment.steps is not None:
        recipes = [replace(own, epochs=max(1, assignment.steps * own.batch // own.samples)) for own in recipes]
    settings = {"seed": assignment.first_seed, "tests": tests, "retrainings": sets}
    described = {own.name: own.described() for own in recipes}
    _begin(assignment.out, settings | {"recipes": described})
    report: Report = {
        "study": "attribution",
        "command": assignment.command("attribution"),
        **settings,
        "left_out": SHARES,
        "wrong": WRONG,
        "recipes": {},
        "seconds": {},
    }
    for recipe in recipes:
        judged = _Judged(recipe, assignment, tests, sets)
        report["recipes"][recipe.name] = found = judged.report()
        report["seconds"] = {"all": report["seconds"].get("all", 0.0) + sum(found["seconds"].values())}
        write_report(assignment.out, report)
    attribution_page(assignment.out, report).write(report)
    return report


def _begin(out: Path, settings: Report) -> None:
    file = out / "settings.json"
    if not file.exists():
        check_free(out)
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    elif json.loads(file.read_text(encoding="utf-8")) != settings:
        raise AlreadyExists(
            f"{out} has a run of this study with other settings.",
            hint="Pass the same options to go on with it, or another folder with --out.",
        )


class _Judged:
    """All ways by one recipe."""

    def __init__(self, recipe: Recipe, assignment: Assignment, tests: int, sets: int) -> None:
        self._recipe, self._seed, self._count = recipe, assignment.first_seed, sets
        self._folder, self._progress = assignment.out / recipe.name, assignment.progress
        self._trained, self._held_out = recipe.examples(assignment.data)
        self._tested = self._held_out.of(slice(tests))
        self._ways = {
            name: (package, way)
            for package, found in (
                ("none", ways.floors(recipe.text)),
                ("dualform", ways.ours(recipe)),
                ("others", peers.ways(recipe)),
            )
            for name, way in found.items()
        }
        self.raised: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def report(self) -> Report:
        whole = self._recorded("clean", self._trained)
        found: dict[str, Report] = {name: {"package": package} for name, (package, _) in self._ways.items()}
        retrained = {kind: (own, self._retrained(kind, own)) for kind, own in self._sets().items()}
        for name, scores in self._scores("clean", whole):
            found[name] |= {kind: lds(scores, *own, self._seed) for kind, own in retrained.items()}
        samples, wrong = self._recipe.spoiled(self._trained, WRONG, self._seed)
        for name, scores in self._scores("wrong", self._recorded("wrong", samples)):
            found[name]["wrong"] = auc(-scores.mean(axis=0), wrong, self._seed)
        for name in found:
            found[name]["seconds"] = self.seconds.get(f"clean, {name}")
        plain = self._retrained("none", np.zeros((1, self._recipe.samples), dtype=bool))
        return {
            "described": self._recipe.described(),
            "learned": self._learned(whole),
            "apart": float(np.abs(plain - losses_of(whole.network, self._tested)).max()),
            "ways": {name: own for name, own in found.items() if "1" in own},
            "raised": self.raised,
            "seconds": self.seconds,
        }

    def _learned(self, whole: Trained) -> str:
        if self._recipe.text:
            return f"a mean loss of {losses_of(whole.network, self._held_out).mean():.2f} on held-out windows"
        with torch.no_grad():
            right = whole.network(self._held_out.inputs).argmax(1) == self._held_out.targets
        return f"{right.double().mean():.1%} of {len(right)} test images recognised".replace("%", " %")

    def _recorded(self, kind: str, samples: Examples) -> Trained:
        or_silent(self._progress)(f"{self._recipe.name}: recording", 0, 1)
        found = recorded(
            self._recipe, samples, self._tested, self._seed, self._folder / kind, one_query=kind == "wrong"
        )
        self.seconds[f"{kind}, recording"] = found.seconds
        return found

    def _sets(self) -> dict[str, Sets]:
        """bool[k, n] of each kind: what each retraining leaves out."""
        samples, found = self._recipe.samples, dict[str, Sets]()
        for kind, share in SHARES.items():
            draw = np.random.default_rng((self._seed, round(1000 * share)))
            size = max(1, round(share * samples))
            found[kind] = np.zeros((self._count, samples), dtype=bool)
            for own in found[kind]:
                own[draw.choice(samples, size, replace=False)] = True
        alone = np.random.default_rng(self._seed).choice(samples, min(self._count, samples), replace=False)
        return found | {"one": np.eye(samples, dtype=bool)[alone]}

    def _retrained(self, kind: str, sets: Sets) -> Losses:
        """float64[k, t], from the file as far as it goes."""
        file, say = self._folder / f"retrained-{kind}.npz", or_silent(self._progress)
        kept = _load(file) or {"losses": np.zeros((0, len(self._tested.targets))), "seconds": 0.0}
        losses: Losses = kept["losses"]
        seconds = float(kept["seconds"])
        for done in range(len(losses), len(sets)):
            say(f"{self._recipe.name}: training without {kind}", done, len(sets))
            start = perf_counter()
            network = train(self._recipe, self._trained, self._seed, sets[done])
            losses = np.concatenate([losses, losses_of(network, self._tested)[None]])
            seconds += perf_counter() - start
            _save(file, losses=losses, seconds=seconds)
        self.seconds[f"retrained, {kind}"] = seconds
        return losses

    def _scores(self, kind: str, trained: Trained) -> Iterator[tuple[str, Scores]]:
        """float64[t, n] of each way, or float64[1, n]; from files as far as they are there."""
        for done, (name, (_, way)) in enumerate(self._ways.items()):
            if kind == "wrong" and name in _ONCE:
                continue
            or_silent(self._progress)(f"{self._recipe.name}: {name}", done, len(self._ways))
            file = self._folder / kind / "scores" / f"{name.replace(' ', '-')}.npz"
            if not file.exists():
                start = perf_counter()
                try:
                    scores = way(trained)
                    if not np.isfinite(scores).all():
                        raise ValueError("not all scores are finite")
                except Exception as error:
                    self.raised[name] = f"{type(error).__name__}: {error}"
                    continue
                _save(file, scores=scores, seconds=perf_counter() - start)
            kept = _load(file)
            self.seconds[f"{kind}, {name}"] = float(kept["seconds"])
            yield name, kept["scores"]


def _load(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    with np.load(file) as kept:
        return dict(kept)


def _save(file: Path, **arrays: Any) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    with part.open("wb") as out:
        np.savez(out, **arrays)
    part.replace(file)
