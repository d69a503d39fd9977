"""The page of the study "attribution", and its tables and figure, from its report alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.frame import INK, MARKS, new_figure
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent

MEASURES = {
    "1": "LDS, 1 % left out",
    "10": "LDS, 10 %",
    "50": "LDS, 50 %",
    "one": "leave one out",
    "wrong": "wrong labels",
}
_PACKAGES = {"none": "floor", "dualform": "dualform", "others": "other packages"}
CAPTION = "Rank correlation of scores with retrainings without 1 % of the samples, with 95 % intervals."


def attribution_page(out: Path, report: Report) -> Page:
    """The page, with its figure drawn."""
    page = Page(out, "Which score predicts a retraining?")
    page.paragraph(" ".join(settings(report)))
    page.figure(_draw(report_folder(out) / "ways.png", report), CAPTION)
    for name, recipe in report["recipes"].items():
        page.heading(name)
        for text in recipe_words(recipe):
            page.paragraph(text)
        page.show(table(name, recipe, every_interval=True))
    return page


def settings(report: Report) -> Iterator[str]:
    yield (
        f"Each recipe is trained once and recorded, with seed {report['seed']}. Each way scores all training samples "
        f"for {report['tests']} test examples, the first of the test data."
    )
    yield (
        f"LDS is the rank correlation of predicted with real losses over {report['retrainings']} retrainings, each "
        "without a random 1, 10 or 50 % of the samples; the mean over tests. Leave one out is the same for "
        f"{report['retrainings']} single samples. 1 is perfect, 0 is chance."
    )
    yield (
        "A sample that is left out has weight 0 in the loss. Everything else is as recorded: initial weights, order, "
        "dropout."
    )
    yield (
        f"Wrong labels: a second training in which {percent(report['wrong'], 'g')} of the samples have a wrong label "
        "or shuffled tokens. The measure is the AUC of the scores for the mean loss of the tests: 0.5 is chance, 1 "
        "finds all wrong samples first."
    )
    yield (
        "Intervals are 95 % of a bootstrap over tests and retrainings, or samples. They do not cover other seeds. "
        "Seconds are for the scores of all tests, including trainings that a way needs, without the recording."
    )


def recipe_words(recipe: Report) -> Iterator[str]:
    """What was trained, how long it took, and which ways ended with an error."""
    hours, described = sum(recipe["seconds"].values()) / 3600, recipe["described"]
    yield f"{described[0].upper()}{described[1:]}. Result: {recipe['learned']}. The recipe took {hours:.1f} hours."
    for name, error in recipe["raised"].items():
        yield f"No result for {name}: `{error}`"


def table(name: str, recipe: Report, *, every_interval: bool = False) -> Table:
    """Every way by every measure; the first measure always has its interval."""
    rows: list[list[Cell]] = []
    for way, found in recipe["ways"].items():
        row: list[Cell] = [way]
        for kind in MEASURES:
            row.append(_cell(found.get(kind), interval=every_interval or kind == "1"))
        rows.append([*row, f"{found['seconds']:,.1f}"])
    return Table(name, f"Ways to attribute, recipe {name}.", ("way", *MEASURES.values(), "seconds"), rows)


def _cell(measured: list[float] | None, *, interval: bool) -> Cell:
    if measured is None:
        return None
    value, low, high = (f"{number:z.2f}" for number in measured)
    return f"{value} [{low}, {high}]" if interval else value


def _draw(path: Path, report: Report) -> Path:
    """LDS at 1 %: a panel a recipe, a row a way."""
    recipes = report["recipes"]
    rows = {way: own["package"] for recipe in recipes.values() for way, own in recipe["ways"].items()}
    rows = dict(sorted(rows.items(), key=lambda row: list(_PACKAGES).index(row[1])))
    with new_figure(path, 1 + 0.24 * len(rows)) as figure:
        panels = figure.subplots(1, len(recipes), sharex=True, sharey=True, squeeze=False).ravel()
        for panel, (name, recipe) in zip(panels, recipes.items(), strict=True):
            panel.set_title(name, loc="left", pad=3)
            panel.axvline(0, color="0.6", linewidth=0.8)
            panel.grid(axis="y", color="0.92", linewidth=0.5)
            for (package, words), ink, mark in zip(_PACKAGES.items(), ("0.45", *INK), MARKS, strict=False):
                places = [at for at, way in enumerate(rows) if rows[way] == package and way in recipe["ways"]]
                found = [recipe["ways"][way]["1"] for way in rows if rows[way] == package and way in recipe["ways"]]
                panel.hlines(places, [own[1] for own in found], [own[2] for own in found], color=ink, linewidth=1)
                panel.plot([own[0] for own in found], places, mark, color=ink, markersize=4, label=words)
        panels[0].set_yticks(range(len(rows)), list(rows))
        panels[0].invert_yaxis()
        lines, words_of = panels[0].get_legend_handles_labels()
        figure.legend(lines, words_of, loc="outside upper center", ncols=len(words_of))
    return path
