"""Which score predicts a retraining? Ways to attribute a loss, judged by retrainings: `make attribution`.

    RUN/settings.json, report.json
    RUN/<recipe>/retrained-1.npz, -10, -50, -one    losses after trainings without 1, 10, 50 % or one of the samples
    RUN/<recipe>/clean/, wrong/                     a recorded training, and scores/<way>.npz

All of it is kept: a run that was cut off goes on if the command is given again. docs/results/attribution.md is written
from the report.

Shapes: n samples, t tests, k retrainings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import click
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.attribution_ways import (
    RECIPES,
    Examples,
    Recipe,
    Scores,
    Trained,
    floors,
    losses_of,
    others,
    ours,
    recorded,
    train,
)
from benchmarks.document import table
from dualform.answers.influence import mean_ranks
from dualform.errors import AlreadyExists
from dualform_studies.documents import Shown, write_page
from dualform_studies.figures import INK, MARKS, new_figure
from dualform_studies.report import peak_bytes

Sets: TypeAlias = NDArray[np.bool_]
Report: TypeAlias = dict[str, Any]

SHARES = {"1": 0.01, "10": 0.1, "50": 0.5}
"""Of the samples that a retraining leaves out."""
WRONG = 0.1
"""The share of samples that are spoiled in the second training."""
_ONCE = ("dattri TRAK-50",)
"""Ways that are too slow for the second training, too."""
_DRAWS = 1000

# ---- Measures


class Measured(NamedTuple):
    """A value, and the 95 % interval of a bootstrap."""

    value: float
    low: float
    high: float


def lds(scores: Scores, sets: NDArray[np.bool_], losses: Scores, seed: int) -> Measured:
    """The linear datamodeling score (Park et al., 2023): Spearman's correlation, over retrainings, of the summed scores
    of the samples that each left out with the loss of a test after it; the mean over tests.

    The bootstrap draws tests and retrainings; ranks are those among all retrainings. A row without variation
    correlates with nothing: 0. `scores`: float64[t, n]; `sets`: bool[k, n]; `losses`: float64[k, t].
    """
    predicted, actual = _standard(scores @ sets.T.astype(np.float64)), _standard(losses.T)
    tests, count = predicted.shape
    draw = np.random.default_rng(seed)
    columns = draw.multinomial(count, np.full(count, 1 / count), _DRAWS).T / count
    rows = draw.multinomial(tests, np.full(tests, 1 / tests), _DRAWS) / tests
    means = predicted @ columns, actual @ columns
    spreads = [own**2 @ columns - mean**2 for own, mean in zip((predicted, actual), means, strict=True)]
    covariance = (predicted * actual) @ columns - means[0] * means[1]
    spread = np.sqrt(np.maximum(spreads[0] * spreads[1], 0))
    drawn = np.divide(covariance, spread, out=np.zeros_like(covariance), where=spread > 1e-9)
    low, high = np.percentile((rows * drawn.T).sum(axis=1), [2.5, 97.5])
    return Measured(float((predicted * actual).mean()), float(low), float(high))


def _standard(values: Scores) -> Scores:
    """The ranks of each row, of mean 0 and deviation 1; 0 where all are the same."""
    ranks = np.stack([mean_ranks(row) for row in values])
    ranks -= ranks.mean(axis=1, keepdims=True)
    spread = ranks.std(axis=1, keepdims=True)
    found: Scores = np.divide(ranks, spread, out=np.zeros_like(ranks), where=spread > 0)
    return found


def auc(suspicion: Scores, wrong: NDArray[np.bool_], seed: int) -> Measured:
    """The share of pairs of a wrong and a right sample in which the wrong one is more suspicious; ties count half."""

    def share(rows: NDArray[np.int64]) -> float:
        ranks, bad = mean_ranks(suspicion[rows]), wrong[rows]
        count = int(bad.sum())
        return float((ranks[bad].sum() - count * (count + 1) / 2) / (count * (len(rows) - count)))

    draw = np.random.default_rng(seed)
    groups = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    drawn = [share(np.concatenate([draw.choice(own, len(own)) for own in groups])) for _ in range(_DRAWS)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Measured(share(np.arange(len(wrong))), float(low), float(high))


# ---- The run


def run(
    out: Path,
    data: Path | None,
    seed: int,
    recipes: Sequence[Recipe],
    tests: int = 50,
    sets: int = 40,
    say: Callable[[str], object] = click.echo,
) -> Report:
    """Judge every way by every recipe. A way that raises is in the report by its name, with its error.

    Args:
        tests: whose losses are attributed, the first held-out examples.
        sets: retrainings of each kind.

    Raises AlreadyExists where `out` holds anything but a run with these settings, and what readers of data raise.
    """
    settings = {"seed": seed, "tests": tests, "retrainings": sets}
    described = settings | {"recipes": {own.name: own.described() for own in recipes}}
    file = out / "settings.json"
    if not file.exists() and not (out.is_dir() and any(out.iterdir())):
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    elif not file.exists() or json.loads(file.read_text(encoding="utf-8")) != described:
        raise AlreadyExists(
            f"{out} has files of something else, or a run of this study with other settings.",
            hint="Pass the same options to go on with it, or another folder with --out.",
        )
    report: Report = {**settings, "wrong": WRONG, "threads": torch.get_num_threads(), "recipes": {}}
    for recipe in recipes:
        report["recipes"][recipe.name] = _Judged(recipe, out / recipe.name, data, seed, tests, sets, say).report()
        report["peak_bytes"] = peak_bytes()
        (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


class _Judged:
    """All ways by one recipe."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        data: Path | None,
        seed: int,
        tests: int,
        sets: int,
        say: Callable[[str], object],
    ) -> None:
        self._recipe, self._folder, self._seed, self._count, self._say = recipe, folder, seed, sets, say
        self._trained, self._held_out = recipe.examples(data)
        self._tested = self._held_out.of(slice(tests))
        packages = {
            "none": floors(recipe.text),
            "dualform": ours(recipe),
            "others": others(recipe),
        }
        self._ways = {name: (package, way) for package, found in packages.items() for name, way in found.items()}
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
        self._say(f"{self._recipe.name}: recording")
        one_query = kind == "wrong"
        found = recorded(self._recipe, samples, self._tested, self._seed, self._folder / kind, one_query=one_query)
        self.seconds[f"{kind}, recording"] = found.seconds
        return found

    def _sets(self) -> dict[str, Sets]:
        """bool[k, n] of each kind: the samples that each retraining leaves out."""
        samples, found = self._recipe.samples, dict[str, Sets]()
        for kind, share in SHARES.items():
            draw = np.random.default_rng((self._seed, round(1000 * share)))
            found[kind] = np.zeros((self._count, samples), dtype=bool)
            for own in found[kind]:
                own[draw.choice(samples, max(1, round(share * samples)), replace=False)] = True
        alone = np.random.default_rng(self._seed).choice(samples, min(self._count, samples), replace=False)
        return found | {"one": np.eye(samples, dtype=bool)[alone]}

    def _retrained(self, kind: str, sets: Sets) -> Scores:
        """Losses float64[k, t], from the file as far as it goes."""
        file = self._folder / f"retrained-{kind}.npz"
        kept = _load(file) or {"losses": np.zeros((0, len(self._tested.targets))), "seconds": 0.0}
        losses, seconds = kept["losses"], float(kept["seconds"])
        for done in range(len(losses), len(sets)):
            self._say(f"{self._recipe.name}: training without {kind}, {done} of {len(sets)} done")
            start = perf_counter()
            network = train(self._recipe, self._trained, self._seed, sets[done])
            losses = np.concatenate([losses, losses_of(network, self._tested)[None]])
            seconds += perf_counter() - start
            _save(file, losses=losses, seconds=seconds)
        self.seconds[f"retrained, {kind}"] = seconds
        return np.asarray(losses)

    def _scores(self, kind: str, trained: Trained) -> Iterator[tuple[str, Scores]]:
        """float64[t, n] of each way, or float64[1, n]; from files as far as they are there."""
        for name, (_, way) in self._ways.items():
            if kind == "wrong" and name in _ONCE:
                continue
            self._say(f"{self._recipe.name}: {name}")
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


# ---- The page

MEASURES = {
    "1": "LDS, 1 % left out",
    "10": "LDS, 10 %",
    "50": "LDS, 50 %",
    "one": "leave one out",
    "wrong": "wrong labels",
}
_PACKAGES = {"none": "floor", "dualform": "dualform", "others": "other packages"}
_CAPTION = "Rank correlation of scores with retrainings without 1 % of the samples, with 95 % intervals."
_SETTINGS = """Each recipe is trained once and recorded, with seed {seed}. Each way scores all training samples \
for {tests} test examples, the first of the test data.

LDS is the rank correlation of predicted with real losses over {retrainings} retrainings, each without a random 1, 10 \
or 50 % of the samples; the mean over tests. Leave one out is the same for {retrainings} single samples. 1 is perfect, \
0 is chance.

A sample that is left out has weight 0 in the loss. Everything else is as recorded: initial weights, order, dropout.

Wrong labels: a second training in which {wrong:.0%} of the samples have a wrong label or shuffled tokens. The measure \
is the AUC of the scores for the mean loss of the tests: 0.5 is chance, 1 finds all wrong samples first.

Intervals are 95 % of a bootstrap over tests and retrainings, or samples. They do not cover other seeds. Seconds are \
for the scores of all tests, including trainings that a way needs, without the recording."""


def write(out: Path, docs: Path) -> Path:
    """Write docs/results/attribution.md, with its figure, from the report in `out`."""
    report: Report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    parts: list[str | Shown] = [
        "`make attribution` runs the study and writes all that follows.",
        "## Settings",
        _SETTINGS.format(**report).replace("10%", "10 %"),
        "## Results",
        Shown("attribution", _draw(out / "ways.png", report), _CAPTION),
    ]
    for name, recipe in report["recipes"].items():
        parts += [
            f"### {name}",
            *_recipe_words(recipe),
            table(("way", *MEASURES.values(), "seconds"), list(_rows(recipe))),
        ]
    hours = sum(sum(recipe["seconds"].values()) for recipe in report["recipes"].values()) / 3600
    parts.append(
        f"The run took {hours:.1f} hours on {report['threads']} thread(s). The process of its last call held "
        f"{report['peak_bytes'] / 1e9:.1f} GB at most."
    )
    return write_page(docs / "results" / "attribution.md", "Which score predicts a retraining?", parts)


def _recipe_words(recipe: Report) -> Iterator[str]:
    """The training, its hours, and the ways that ended with an error."""
    hours, described = sum(recipe["seconds"].values()) / 3600, recipe["described"]
    yield f"{described[0].upper()}{described[1:]}. Result: {recipe['learned']}. The recipe took {hours:.1f} hours."
    for name, error in recipe["raised"].items():
        yield f"No result for {name}: `{error}`"


def _rows(recipe: Report) -> Iterator[list[str]]:
    """Every way by every measure; the first measure with its interval."""
    for way, found in recipe["ways"].items():
        values = [f"{found[kind][0]:z.2f}" if kind in found else "-" for kind in MEASURES]
        values[0] += f" [{found['1'][1]:z.2f}, {found['1'][2]:z.2f}]"
        yield [way, *values, f"{found['seconds']:,.1f}"]


def _draw(path: Path, report: Report) -> Path:
    """LDS at 1 %: a panel a recipe, a row a way."""
    recipes = report["recipes"]
    packages = {way: own["package"] for recipe in recipes.values() for way, own in recipe["ways"].items()}
    rows = sorted(packages, key=lambda way: list(_PACKAGES).index(packages[way]))
    with new_figure(path, 1 + 0.24 * len(rows)) as figure:
        panels = figure.subplots(1, len(recipes), sharex=True, sharey=True, squeeze=False).ravel()
        for panel, (name, recipe) in zip(panels, recipes.items(), strict=True):
            panel.set_title(name, loc="left", pad=3)
            panel.axvline(0, color="0.6", linewidth=0.8)
            panel.grid(axis="y", color="0.92", linewidth=0.5)
            for (package, words), ink, mark in zip(_PACKAGES.items(), ("0.45", *INK), MARKS, strict=False):
                places = [at for at, way in enumerate(rows) if packages[way] == package and way in recipe["ways"]]
                found = [recipe["ways"][rows[at]]["1"] for at in places]
                panel.hlines(places, [own[1] for own in found], [own[2] for own in found], color=ink, linewidth=1)
                panel.plot([own[0] for own in found], places, mark, color=ink, markersize=4, label=words)
        panels[0].set_yticks(range(len(rows)), rows)
        panels[0].invert_yaxis()
        lines, words_of = panels[0].get_legend_handles_labels()
        figure.legend(lines, words_of, loc="outside upper center", ncols=len(words_of))
    return path


@click.command(help="Judge ways to attribute a loss by retrainings; write DOCS/results/attribution.md.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), envvar="DUALFORM_DATA", help="Datasets.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the run.")
@click.option("--docs", type=click.Path(file_okay=False, path_type=Path), default=Path("docs"), help="[docs]")
@click.option("--seed", default=1, help="Of every draw. [1]")
@click.option("--quick", is_flag=True, help="Minutes: less of everything.")
def main(data: Path | None, out: Path, docs: Path, seed: int, quick: bool) -> None:
    if quick:
        run(out, data, seed, [own.quick() for own in RECIPES], 20, 10)
    else:
        run(out, data, seed, RECIPES)
    click.echo(write(out, docs))


if __name__ == "__main__":
    main()
