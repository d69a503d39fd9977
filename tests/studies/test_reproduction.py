"""The page of results on the paper, and `make reproduction` with stand-ins for what it calls."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dualform.errors import BadInput, NotFound
from dualform_studies.assignment import Assignment
from dualform_studies.claims import FAILS, HOLDS, IN_PART, Beside, Claim
from dualform_studies.documents import MARK
from dualform_studies.figures import new_figure
from dualform_studies.images.datasets import FOLDER
from dualform_studies.report import Page
from dualform_studies.reproduction import main, write_reproduction
from dualform_studies.studies import STUDIES

HERE = Path(__file__).parents[2]
MAKEFILE = HERE / "Makefile"
LISTED = re.findall(r"^STUDIES := (.*)$", MAKEFILE.read_text(), re.MULTILINE)[0].split()


def write(runs: Path, name: str, *claims: tuple[Any, ...], **report: Any) -> None:
    """The report of a study, with claims by section, words and verdict."""
    told = [Claim(section, words, "seen", f"{name}'s", verdict, "").plain() for section, words, verdict in claims]
    Page(runs / name, name).write({"command": f"dualform study {name}", "claims": told, **report})


def test_the_page_has_what_each_study_was_told_and_found(tmp_path: Path):
    runs, docs = tmp_path / "runs", tmp_path / "docs"
    assignment = Assignment(runs / "joint", steps=5, seed=3, runs=2, prompts=("it's", "b"), dry_run=True)
    command = assignment.command("joint")
    assert command == (
        "dualform study joint --data DATA --out RUN --seed 3 --steps 5 --runs 2 --prompt 'it'\"'\"'s' --prompt b "
        "--dry-run"
    )
    beside = [Beside("accuracy", "96 %", "97 %").plain(), Beside("updates", "5", code="40").plain()]
    often = {"hubs": {"layer-0": {"often": [{"dataset": "mnist", "sample": 4, "label": 0, "weight": 0.06}]}}}
    of_one = [("5.2", "A hub.", HOLDS), ("5.2", "It leads.", HOLDS), ("5.3", "It leads.", IN_PART)]
    write(runs, "joint", *of_one, command=command, beside_paper=beside, seconds={"all": 61.5}, **often)
    write(runs, "compact", ("5.2", "A hub.", FAILS))
    write(runs, "limits", ("5.2", "It leads.", HOLDS))
    prompts = [{"name": name, "digests": {"top_k": "a", "sums": "b"}} for name in ("table-3", "table-4")]
    asked = {"prompts": prompts, "disk_bytes": 4_510_000_000, "seconds": {"training": 60.0}}
    write(runs, "aesop", **asked, **often)
    prompts[1]["digests"]["sums"] = "c"
    write(runs, "aesop-rerun", **asked)
    told = CliRunner().invoke(main, [str(runs), str(docs)])
    assert told.exit_code == 0, told.output
    text = (docs / "results" / "reproduction.md").read_text()
    threads = json.loads((runs / "joint" / "report" / "report.json").read_text())["machine"]["threads"]
    assert "updates" not in text.split("## Figures of the paper")[1].split("##")[0], "what the paper's text has not"
    in_order = [
        "# The paper, reproduced",
        "Of 5 claims, 3 hold, 1 hold in part and 1 do not hold.",
        "### Does not hold",
        "| A hub. (5.2) | seen | joint: joint's (holds); compact: compact's (does not hold) | joint, compact |",
        "### Holds in part",
        "| It leads. (5.3) | seen | joint's | joint |",
        "### Holds\n",
        "| It leads. (5.2) | joint: joint's; limits: limits's | joint, limits |",
        "mnist image 4, class 0: 6.0 % in joint (layer-0), 6.0 % in aesop (layer-0) | joint, aesop |",
        "| joint | accuracy | 96 % | 97 % | - |",
        "takes 4.510 GB, and 4.510 GB with keys",
        "| table-3 | equal to the last bit | equal to the last bit |",
        "| table-4 | equal to the last bit | DIFFERENT |",
        "| single | not run | - | - |",
        f"| joint | `{command}` | {threads} | 2 |",
        f"| aesop | `dualform study aesop` | {threads} | - |\n| aesop-paper | not run | - | - |\n",
    ]
    places = [text.index(part) for part in in_order]
    assert places == sorted(places)


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


def test_figures_and_the_summary_by_hand_stay_until_all_is_there(shown: Path):
    runs, docs = shown.parents[2], shown.parents[3] / "docs"
    page, folder = docs / "results" / "reproduction.md", docs / "results" / "reproduction"
    (folder / "continual").mkdir(parents=True)
    (folder / "continual" / "stale.png").touch()
    assert "](reproduction/single/hubs.png)" in write_reproduction(runs, docs).read_text()
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / "single" / "hubs.png"]
    assert (folder / "single" / "hubs.png").read_bytes() == shown.read_bytes()
    by_hand = page.read_text().replace("# The paper, reproduced", "# By hand")
    page.write_text(by_hand)
    assert write_reproduction(runs, docs).read_text() == by_hand
    shown.unlink()
    with pytest.raises(NotFound, match=r"hubs\.png is missing\. Run its study again\."):
        write_reproduction(runs, docs)
    assert page.read_text() == by_hand
    assert (folder / "single" / "hubs.png").is_file()
    page.write_text("# No line\n")
    with pytest.raises(BadInput, match="has no line <!-- Written by hand above this line"):
        write_reproduction(runs, docs)
    assert page.read_text() == "# No line\n"


def test_the_summary_of_the_page_counts_the_claims_below_it():
    above, _, below = (HERE / "docs" / "results" / "reproduction.md").read_text().partition(MARK)
    pattern = r"(\d+) of their observations .* \*\*(\d+) hold, (\d+) hold in part, (\d+) do not"
    (total, *counts) = map(int, re.findall(pattern, " ".join(above.split()))[0])
    tables = [
        below.split(f"### {verdict}\n")[1].split("\n#")[0] for verdict in ("Holds", "Holds in part", "Does not hold")
    ]
    assert counts == [len(re.findall(r"^\| ", table, re.MULTILINE)) - 2 for table in tables]
    assert total == sum(counts)


CLAIM = Claim("section 5.2", "Its class leads.", "one example", "81 % of 10,000", HOLDS, "80 % or more").plain()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda report: json.dumps(report)[:-9], "(char "),
        (lambda report: "[1]", "it is not a JSON object"),
        (lambda report: json.dumps(report | {"command": None} | {"machine": {}}), "it has no 'threads'"),
        (lambda report: json.dumps(report | {"claims": [{"claim": "A hub."}]}), "missing"),
        (lambda report: json.dumps(report | {"claims": [CLAIM | {"verdict": "maybe"}]}), "'maybe' is not a verdict"),
        (lambda report: json.dumps(report | {"beside_paper": [{"what": "accuracy"}]}), "missing"),
        (lambda report: json.dumps(report | {"hubs": {"a": {"often": [{"dataset": "b"}]}}}), "it has no 'sample'"),
        (lambda report: json.dumps(report | {"prompts": [{"name": "table-3"}]}), "it has no 'digests'"),
        (None, "has no report of a study."),
    ],
)
def test_without_whole_reports_the_command_says_why_and_nothing_is_lost(
    tmp_path: Path, change: Callable[[dict[str, Any]], str] | None, reason: str
):
    path = tmp_path / "runs" / "joint" / "report" / "report.json"
    write(tmp_path / "runs", "joint")
    path.write_text(change(json.loads(path.read_text()))) if change else path.unlink()
    results = tmp_path / "docs" / "results"
    results.mkdir(parents=True)
    (results / "reproduction.md").write_text("of an earlier day")
    told = CliRunner().invoke(main, [str(tmp_path / "runs"), str(tmp_path / "docs")])
    assert told.exit_code == 1
    assert isinstance(told.exception, SystemExit), "no traceback"
    where = f"{path} is not a complete report of a study: " if change else str(tmp_path / "runs")
    assert all(word in told.output for word in (where, reason)), told.output
    assert [(path.name, path.read_text()) for path in results.iterdir()] == [("reproduction.md", "of an earlier day")]


STUDY = """\
#!/bin/sh
# study NAME … --out FOLDER --json
echo "$OMP_NUM_THREADS $*" >> calls
test ! -e fails || ! grep --quiet --line-regexp "$2" fails || exit 1
while [ "$1" != --out ]; do shift; done
mkdir -p "$2/report" && touch "$2/report/report.json"
"""
with_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("pyproject.toml", "setup.py", "constraints.txt", "ready", "calls"):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    for name, script in (("dualform", STUDY), ("python", '#!/bin/sh\necho "$*" > document\n')):
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def make(checkout: Path, *target: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What make did, and which studies were called."""
    (checkout / "calls").write_text("")
    command = ["make", *(target or ["reproduction"]), "VENV=.", "BIN=./bin"]
    environment = os.environ | {"DUALFORM_DATA": str(checkout / "data")}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)
    return done, sorted(line.split()[2] for line in (checkout / "calls").read_text().splitlines())


@with_make
def test_every_study_runs_once_on_one_thread_and_the_document_comes_last(checkout: Path):
    assert {*LISTED, "cifar10"} == set(STUDIES)
    done, called = make(checkout)
    assert done.returncode == 0, done.stderr
    assert called == sorted([*LISTED, "aesop"]), "aesop a second time, as a rerun"
    assert {line.split()[0] for line in (checkout / "calls").read_text().splitlines()} == {"1"}
    assert (checkout / "document").read_text() == "-m dualform_studies.reproduction runs docs\n"
    assert make(checkout)[1] == [], "what has its report is not run again"
    (checkout / "data" / FOLDER).mkdir(parents=True)
    (checkout / "data" / FOLDER / "test_batch.bin.gz").touch()
    assert make(checkout)[1] == ["cifar10"], "where its files are"


@with_make
def test_a_study_that_fails_is_named_and_the_others_still_run(checkout: Path):
    (checkout / "fails").write_text("joint\n")
    done, called = make(checkout)
    assert done.returncode != 0
    assert re.findall("no report of the study .*", done.stderr) == ["no report of the study joint"]
    assert called == sorted([*LISTED, "aesop"])
    assert not (checkout / "document").exists()


@with_make
def test_a_folder_without_a_report_is_left_alone(checkout: Path):
    (checkout / "runs" / "single").mkdir(parents=True)
    (checkout / "runs" / "single" / "memory.json").write_text("mine")
    done, _ = make(checkout)
    assert done.returncode != 0
    assert "runs/single has no report: remove it, or give it another name" in done.stderr
    assert (checkout / "runs" / "single" / "memory.json").read_text() == "mine"


@with_make
def test_aesop_at_the_papers_size_is_a_command_of_its_own_on_two_threads(checkout: Path):
    done, _ = make(checkout, "reproduction-aesop", "UPDATES=54")
    assert done.returncode == 0, done.stderr
    assert (checkout / "calls").read_text() == (
        "2 study aesop --preset paper --rerun --steps 54 --out runs/aesop-paper.partial --json\n"
    )
    assert (checkout / "runs" / "aesop-paper" / "report" / "report.json").is_file()
    assert (checkout / "document").read_text() == "-m dualform_studies.reproduction runs docs\n"
