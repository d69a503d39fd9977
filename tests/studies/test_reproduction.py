"""The page of results on the paper."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dualform.errors import BadInput, NotFound
from dualform_studies.assignment import Assignment
from dualform_studies.claims import FAILS, HOLDS, IN_PART, Beside, Claim, Verdict
from dualform_studies.documents import MARK
from dualform_studies.figures import new_figure
from dualform_studies.report import Page
from dualform_studies.reproduction import main, write_reproduction

CLAIM = Claim("section 5.2", "Its class leads.", "one example", "81 % of 10,000", HOLDS, "80 % or more")


def test_the_page_has_what_each_study_was_told_and_found(tmp_path: Path):
    run = tmp_path / "runs" / "joint"
    command = Assignment(run, steps=5, prompts=("a fox",)).command("joint")
    beside = [Beside("accuracy", "96 %", "97 %").plain(), Beside("updates", "5", code="40").plain()]
    Page(run, "Joint").write({"command": command, "beside_paper": beside, "seconds": {"all": 61.5}})
    docs = tmp_path / "docs"
    told = CliRunner().invoke(main, [str(tmp_path / "runs"), str(docs)])
    assert told.exit_code == 0, told.output
    text = (docs / "results" / "reproduction.md").read_text()
    assert text.startswith("# The paper, reproduced")
    threads = json.loads((run / "report" / "report.json").read_text())["machine"]["threads"]
    assert f"| joint | `{command}` | {threads} | 2 |" in text
    assert "| single | not run | - | - |" in text
    assert "| aesop | not run | - | - |\n| aesop-paper | not run | - | - |\n" in text
    assert "| joint | accuracy | 96 % | 97 % | - |" in text
    assert "updates" not in text, "what the paper's text does not give"


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The PNG of the figure of a study that the page shows."""
    run = tmp_path / "runs" / "single"
    page, path = Page(run, "Single task"), run / "report" / "hubs.png"
    with new_figure(path, 1.0) as figure:
        figure.subplots().plot([1, 2])
    page.figure(path, "Two points.")
    page.write({"command": "dualform study single"})
    return path


def write(shown: Path) -> str:
    return write_reproduction(shown.parents[2], shown.parents[3] / "docs").read_text()


def test_figures_are_copied_in_place_of_earlier_ones(shown: Path):
    folder = shown.parents[3] / "docs" / "results" / "reproduction"
    (folder / "continual").mkdir(parents=True)
    (folder / "continual" / "stale.png").touch()
    assert "](reproduction/single/hubs.png)" in write(shown)
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / "single" / "hubs.png"]
    assert (folder / "single" / "hubs.png").read_bytes() == shown.read_bytes()


def test_a_figure_that_is_gone_is_named_and_nothing_is_lost(shown: Path):
    write(shown)
    results = shown.parents[3] / "docs" / "results"
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    shown.unlink()
    with pytest.raises(NotFound, match=r"hubs\.png is missing\. Run its study again\."):
        write(shown)
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before


def test_the_summary_that_is_written_by_hand_stays(shown: Path):
    page = shown.parents[3] / "docs" / "results" / "reproduction.md"
    first = write(shown)
    page.write_text(first.replace("# The paper, reproduced", "# By hand"))
    assert write(shown) == page.read_text() == first.replace("# The paper, reproduced", "# By hand")
    page.write_text("# No line\n")
    with pytest.raises(BadInput, match="has no line <!-- Written by hand above this line"):
        write(shown)
    assert page.read_text() == "# No line\n"


def test_claims_stand_by_their_verdicts_those_that_do_not_hold_first(tmp_path: Path):
    def write(name: str, *verdicts: tuple[str, str, Verdict]) -> None:
        page = Page(tmp_path / "runs" / name, name)
        page.heading("Leading")
        claims = [Claim(section, claim, "seen", f"{name}'s", verdict, "") for section, claim, verdict in verdicts]
        page.write({"command": name, "claims": [claim.plain() for claim in claims]})

    write("joint", ("5.2", "A hub.", HOLDS), ("5.2", "It leads.", HOLDS), ("5.3", "It leads.", IN_PART))
    write("compact", ("5.2", "A hub.", FAILS))
    write("limits", ("5.2", "It leads.", HOLDS))
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    assert "Of 3 claims, 1 hold, 1 hold in part and 1 do not hold." in text
    parts = [
        "### Does not hold",
        "| A hub. (5.2) | seen | joint: joint's (holds); compact: compact's (does not hold) | joint, compact |",
        "### Holds in part",
        "| It leads. (5.3) | seen | joint's | joint |",
        "### Holds\n",
        "| It leads. (5.2) | joint: joint's; limits: limits's | joint, limits |",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_the_summary_of_the_page_counts_the_claims_below_it():
    above, _, below = (Path(__file__).parents[2] / "docs" / "results" / "reproduction.md").read_text().partition(MARK)
    (total, *counts) = map(
        int,
        re.findall(
            r"(\d+) of their observations .* \*\*(\d+) hold, (\d+) hold in part, (\d+) do not", " ".join(above.split())
        )[0],
    )
    tables = [
        below.split(f"### {verdict}\n")[1].split("\n#")[0] for verdict in ("Holds", "Holds in part", "Does not hold")
    ]
    assert counts == [len(re.findall(r"^\| ", table, re.MULTILINE)) - 2 for table in tables]
    assert total == sum(counts)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda report: json.dumps(report)[:-9], "(char "),
        (lambda report: "[1]", "it is not a JSON object"),
        (lambda report: json.dumps(report | {"command": None} | {"machine": {}}), "it has no 'threads'"),
        (lambda report: json.dumps(report | {"claims": [{"claim": "A hub."}]}), "missing"),
        (
            lambda report: json.dumps(report | {"claims": [CLAIM.plain() | {"verdict": "maybe"}]}),
            "'maybe' is not a verdict",
        ),
        (lambda report: json.dumps(report | {"beside_paper": [{"what": "accuracy"}]}), "missing"),
        (
            lambda report: json.dumps(report | {"hubs": {"layer-0": {"often": [{"dataset": "mnist"}]}}}),
            "it has no 'sample'",
        ),
        (lambda report: json.dumps(report | {"prompts": [{"name": "table-3"}]}), "it has no 'digests'"),
    ],
)
def test_a_report_that_is_not_whole_is_named_and_nothing_is_lost(
    tmp_path: Path, change: Callable[[dict[str, Any]], str], reason: str
):
    Page(tmp_path / "runs" / "joint", "Joint").write({"command": "dualform study joint"})
    path = tmp_path / "runs" / "joint" / "report" / "report.json"
    path.write_text(change(json.loads(path.read_text())))
    assert_refused(tmp_path, f"{path} is not a complete report of a study: ", reason, "Run its study again.")


def test_a_folder_without_any_report_overwrites_nothing(tmp_path: Path):
    (tmp_path / "runs" / "single").mkdir(parents=True)
    assert_refused(tmp_path, f"{tmp_path / 'runs'} has no report of a study.")


def assert_refused(folder: Path, *words: str) -> None:
    """The command ends in an error that says so, and the document stays as it was."""
    results = folder / "docs" / "results"
    results.mkdir(parents=True)
    (results / "reproduction.md").write_text("of an earlier day")
    told = CliRunner().invoke(main, [str(folder / "runs"), str(folder / "docs")])
    assert told.exit_code == 1
    assert isinstance(told.exception, SystemExit), "no traceback"
    assert all(word in told.output for word in words), told.output
    assert [path.name for path in results.iterdir()] == ["reproduction.md"]
    assert (results / "reproduction.md").read_text() == "of an earlier day"


def test_a_hub_in_different_settings_is_judged_once_over_the_studies(tmp_path: Path):
    image = {"dataset": "mnist", "sample": 4, "label": 0, "weight": 0.06}
    for name in ("joint", "aesop", "compact"):
        page = Page(tmp_path / "runs" / name, name)
        page.heading("Hubs")
        hubs = {} if name == "compact" else {"hubs": {"layer-0": {"often": [image]}}}
        page.write({"command": f"dualform study {name}", **hubs})
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    said = "mnist image 4, class 0: 6.0 % in joint (layer-0), 6.0 % in aesop (layer-0)"
    (row,) = (line for line in text.splitlines() if "different settings" in line)
    assert f"{said} | joint, aesop |" in row
    assert "2 hold, 0 hold in part" in text


def test_a_rerun_stands_beside_the_memory_that_stored_its_keys(tmp_path: Path):
    def write(name: str, sums: str) -> None:
        prompts = [{"name": "table-3", "digests": {"top_k": "a", "sums": "b"}}]
        prompts += [{"name": "table-4", "digests": {"top_k": "c", "sums": sums}}]
        seconds = {"training": 60.0, "asking": 1.6}
        report = {"command": f"dualform {name}", "prompts": prompts, "disk_bytes": 4_510_000_000, "seconds": seconds}
        Page(tmp_path / "runs" / name, "Aesop").write(report)

    write("aesop", "d")
    write("aesop-rerun", "e")
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    assert "| table-3 | equal to the last bit | equal to the last bit |" in text
    assert "| table-4 | equal to the last bit | DIFFERENT |" in text
    assert "takes 4.510 GB, and 4.510 GB with keys" in text


def test_a_command_says_what_an_assignment_does(tmp_path: Path):
    assignment = Assignment(tmp_path, seed=3, runs=2, prompts=("it's", "b"), dry_run=True)
    assert assignment.command("aesop") == (
        "dualform study aesop --data DATA --out RUN --seed 3 --runs 2 --prompt 'it'\"'\"'s' --prompt b --dry-run"
    )
