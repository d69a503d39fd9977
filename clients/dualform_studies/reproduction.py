"""Puts the pages of all studies into one document, with their figures beside it.

python -m dualform_studies.reproduction RUNS docs          RUNS/single/report, RUNS/joint/report, …
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from dualform.errors import DualformError
from dualform_studies.dual_form_figures import CAPTIONS, draw_dual_form
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART, beside_table
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.gathered import GatheredFigures
from dualform_studies.pages.items import Link, Table
from dualform_studies.pages.markdown import contents, moved, part_anchor, table_markdown
from dualform_studies.studies import STUDIES

PAPER_SIZE = {"aesop": "aesop-paper"}
"""Folders of studies that were run at the paper's size, too, by `make reproduction-aesop`; each follows the other."""
REPLAYED = "aesop-replay"
"""The folder of the study aesop with --replay, to stand beside the one that stored its keys."""

_HEAD = """\
# The paper, reproduced

Every experiment of "The Dual Form of Neural Networks Revisited" (Irie, Csordás, Schmidhuber, ICML 2022), and of a
study of small attention-only Transformers, run again with dualform. `make reproduction` runs every study and writes
this file; nothing in it is written by hand. Each part names its command, machine and versions.
"""


def write_reproduction(runs: Path, docs: Path) -> Path:
    """Write `docs/reproduction.md` from the reports that lie in `runs/NAME/report`, in the order of the studies.

    A study without a report there is named as not run. Raises what `GatheredFigures.take` raises; then nothing changes.
    """
    names = [name for study in STUDIES for name in (study, PAPER_SIZE.get(study)) if name]
    reports = {name: _report_of(runs, name) for name in names}
    pages = {name: report_folder(runs / name) / "index.md" for name in names}
    texts = {name: page.read_text(encoding="utf-8") for name, page in pages.items() if page.is_file()}
    figures = GatheredFigures("reproduction")
    with TemporaryDirectory() as scratch:
        parts = [_HEAD, _dual_form(figures, Path(scratch)), _claims(reports), _figures_beside(reports)]
        parts += [_commands(reports), _contents(texts)]
        parts += [moved(text, name, partial(_take, figures, name, pages[name].parent)) for name, text in texts.items()]
        stored, replayed = reports["aesop"], _report_of(runs, REPLAYED)
        if stored and replayed:
            parts.append(_replay(stored, replayed))
        figures.copy(docs)
    document = docs / "reproduction.md"
    document.write_text("\n\n".join(part.strip() for part in parts if part) + "\n", encoding="utf-8")
    return document


def _take(figures: GatheredFigures, part: str, folder: Path, name: str) -> str:
    return figures.take(part, folder / name)


def _dual_form(figures: GatheredFigures, scratch: Path) -> str:
    """What all of it is about, drawn (Figures 1 and 2 of the paper)."""
    shown = []
    for path in draw_dual_form(scratch):
        caption = CAPTIONS[path.stem]
        shown.append(f"![{caption}]({figures.take('dual-form', path)})\n\n*{caption}*")
    return "\n\n".join(shown)


def _claims(reports: Mapping[str, Report | None]) -> str:
    """Every claim of the paper that a study tests, with its verdict and a link to what was measured."""
    claims = [(name, claim) for name, report in reports.items() if report for claim in report.get("claims", ())]
    if not claims:
        return ""
    rows = [
        (
            f"{claim['claim']} ({claim['section']})",
            claim["paper"],
            claim["ours"],
            claim["verdict"],
            Link(name, f"#{part_anchor(name, claim['heading'])}"),
        )
        for name, claim in claims
    ]
    columns = ("claim", "paper", "ours", "verdict", "measured in")
    count = Counter(claim["verdict"] for _, claim in claims)
    caption = (
        "What the paper observes, what came of it here, and whether it holds by a criterion that was fixed before. Of "
        f"{len(claims)} claims, {count[HOLDS]} hold, {count[IN_PART]} hold in part and {count[FAILS]} do not hold."
    )
    return f"## Claims\n\n{table_markdown(Table('claims', caption, columns, rows), folded=False)}"


def _figures_beside(reports: Mapping[str, Report | None]) -> str:
    """Figures of ours beside those that the paper names."""
    rows = [(name, row) for name, report in reports.items() if report for row in report.get("beside_paper", ())]
    return f"## Figures beside the paper's\n\n{table_markdown(beside_table(rows), folded=False)}" if rows else ""


def _commands(reports: Mapping[str, Report | None]) -> str:
    """What each study was told, and what it took."""
    rows = [
        (name, f"`{report['command']}`", _minutes(report)) if report else (name, "not run", None)
        for name, report in reports.items()
    ]
    caption = (
        "The studies; DATA and RUN are folders of the reader's own. The minutes are those of one thread, with another "
        "study beside it on the same machine."
    )
    return f"## Commands\n\n{table_markdown(Table('commands', caption, ('study', 'command', 'minutes'), rows))}"


def _minutes(report: Report) -> int | None:
    seconds = report.get("seconds", {}).get("all")
    return None if seconds is None else ceil(seconds / 60)


def _contents(pages: Mapping[str, str]) -> str:
    lines = [line for name, page in pages.items() for line in contents(page, name)]
    return "\n".join(["## Contents", "", *lines]) if lines else ""


def _replay(stored: Report, replayed: Report) -> str:
    """Whether a training run again answers as a memory with keys does, and what either way stores."""
    rows = [
        [one["name"], *(_sameness(one["digests"][part] == other["digests"][part]) for part in ("top_k", "sums"))]
        for one, other in zip(stored["prompts"], replayed["prompts"], strict=True)
    ]
    answers = Table(
        "replay",
        f"`{replayed['command']}` beside `{stored['command']}`: the ids and scores of the best datapoints, and the "
        "signed sums of each prompt's last token by training position.",
        ("prompt", "best datapoints", "sums"),
        rows,
    )
    cost = Table(
        "replay-cost",
        "What either way stores.",
        ("way", "disk (GB)"),
        [
            [way, f"{report['disk_bytes'] / 1e9:.3f}"]
            for way, report in (("keys stored", stored), ("trained again", replayed))
        ],
    )
    return "\n\n".join(["## Replay (appendix D)", table_markdown(answers), table_markdown(cost)])


def _sameness(same: bool) -> str:
    return "equal to the last bit" if same else "DIFFERENT"


def _report_of(runs: Path, name: str) -> Report | None:
    path = report_folder(runs / name) / "report.json"
    report: Report | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return report


@click.command()
@click.argument("runs", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("docs", type=click.Path(path_type=Path, file_okay=False))
def main(runs: Path, docs: Path) -> None:
    """Write DOCS/reproduction.md and DOCS/reproduction/ from the studies run into RUNS/NAME."""
    try:
        click.echo(write_reproduction(runs, docs))
    except DualformError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
