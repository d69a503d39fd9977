"""Studies by name, the costs that the paper names, the demo, the page of results on the paper, and `make reproduction`
with stand-ins for what it calls.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import dualform
from dualform.errors import AlreadyExists, BadInput, NotFound
from dualform.query.engine import Engine
from dualform.store.files.ram_budget import memory_bytes
from dualform_studies import limits
from dualform_studies.assignment import Assignment
from dualform_studies.claims import FAILS, HOLDS, IN_PART, Beside, Claim
from dualform_studies.demo import DEMO_RECIPE, run_demo
from dualform_studies.documents import MARK
from dualform_studies.figures import new_figure
from dualform_studies.images.datasets import FOLDER, digits, permuted
from dualform_studies.images.training import Recipe
from dualform_studies.limits import QUESTIONS, limits_claims, run_limits
from dualform_studies.report import Page, Report
from dualform_studies.reproduction import main, write_reproduction
from dualform_studies.studies import STUDIES, Study, run_study
from tests.studies.conftest import sketching


def test_what_no_study_can_be_told_is_refused(tmp_path: Path):
    with pytest.raises(NotFound, match=r"there is no study 'contnual'\. Studies: .*continual"):
        run_study("contnual", Assignment(tmp_path / "run"))
    for given, message in (
        ({"steps": 0}, r"steps must be at least 1, not 0\."),
        ({"runs": 0}, r"runs must be at least 1, not 0\."),
        ({"seed": -1}, r"seed must be at least 0, not -1\."),
        ({"rerun": True}, r"the study continual does not take --rerun\."),
    ):
        with pytest.raises(BadInput, match=message):
            run_study("continual", Assignment(tmp_path / "run", **given))


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_study_refuses_a_folder_in_use_before_it_trains(name: str, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(AlreadyExists, match="already contains something"):
        run_study(name, Assignment(tmp_path))
    assert (tmp_path / "thesis.txt").read_text() == "do not lose"


def test_a_whole_run_says_how_much_memory_its_process_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(assignment: Assignment) -> Report:
        report = {"study": "limits", "command": "dualform study limits"}
        Page(assignment.out, "Limits").write(report)
        return report

    monkeypatch.setitem(STUDIES, "limits", Study(write))
    held = np.ones(30_000_000, np.uint8)
    report = run_study("limits", Assignment(tmp_path / "runs" / "limits"))
    if not Path("/proc/self/status").exists():
        assert "peak_bytes" not in report
        return
    assert held.nbytes < report["peak_bytes"] < memory_bytes()
    on_disk = tmp_path / "runs" / "limits" / "report" / "report.json"
    assert json.loads(on_disk.read_text())["peak_bytes"] == report["peak_bytes"]
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| limits | `dualform study limits`")]
    assert row.endswith(f" {report['peak_bytes'] / 1e9:.1f} |")
    # Asked again later, a process tells nothing of the run that trained.
    assert "peak_bytes" not in run_study("limits", Assignment(tmp_path / "runs" / "limits"))


def test_costs_are_measured_on_disk_and_a_rerun_answers_as_the_stored_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "REPEATS", 1)
    report = run_limits(Assignment(tmp_path / "run"), Recipe(hidden=(32, 24), batch=32, steps=40))
    assert json.loads((tmp_path / "run" / "report" / "report.json").read_text()) == report
    assert [one["slots"] for one in report["measured"]] == [10 * 32, 20 * 32, 40 * 32]
    for measured in report["measured"]:
        # Keys of 64, 32 and 24 numbers and values of 32, 24 and 10: no image comes again within the first epoch.
        numbers = (64 + 32 + 24) + (32 + 24 + 10)
        assert measured["bytes"] == pytest.approx(4 * numbers * measured["slots"], rel=0.02)
        assert min(*measured["cold_seconds"].values(), measured["scoring_seconds"], measured["plain_seconds"]) > 0
    assert report["rerun"] == {"questions": 6, "same": 6}
    assert [claim["section"] for claim in report["claims"]] == ["section 6", "appendix D", "appendix D", "appendix D"]
    assert report["beside_paper"][0]["ours"].startswith("14.4 PB")


def made_up(*slots: int, power: float = 1.0, cold: float = 0.001, same: int = 6) -> dict[str, str]:
    """Verdicts where bytes and seconds grow as a power of the slots, from a start of their own."""
    measured = [
        {
            "slots": count,
            "bytes": 10**6 + 10 * count**power,
            "scoring_seconds": 0.5 + 1e-6 * count**power,
            "plain_seconds": 2.0,
            "cold_seconds": dict.fromkeys(QUESTIONS, cold),
        }
        for count in slots
    ]
    claims = limits_claims({"measured": measured, "rerun": {"same": same, "questions": 6}})
    return {claim.claim.split(" ")[0]: claim.verdict for claim in claims}


@pytest.mark.parametrize(
    ("given", "claim", "expected"),
    [
        ("power", "Storage", {1.0: "holds", 1.2: "holds in part", 1.4: "does not hold", 0.0: "does not hold"}),
        ("power", "The", {1.2: "holds", 1.4: "holds in part", 2.0: "does not hold", 0.0: "does not hold"}),
        ("cold", "Computing", {0.02: "holds", 0.2: "holds in part", 0.21: "does not hold"}),
        ("same", "A", {6: "holds", 5: "holds in part", 3: "does not hold"}),
    ],
)
def test_costs_are_judged_by_what_each_added_slot_takes_a_first_question_and_equal_answers(
    given: str, claim: str, expected: dict[float, str]
):
    assert {value: made_up(6400, 12_800, 25_600, **{given: value})[claim] for value in expected} == expected
    assert set(made_up(32, 32, 64)) == {"Computing", "A"}, "trainings of one length say nothing of growth"


SMALLER = replace(DEMO_RECIPE, hidden=(32, 32), steps=150)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any], Engine]]:
    """It replaces an earlier one."""
    out = tmp_path_factory.mktemp("demo") / "run"
    with sketching():
        run_demo(out, recipe=replace(SMALLER, steps=3))
        report = run_demo(out, recipe=SMALLER)
    with dualform.open(out) as memory:
        yield out, report, memory


def test_the_first_digits_are_forgotten_and_the_mask_brings_them_back(demo):
    out, report, _ = demo
    first = report["accuracy"]["digits"]
    assert first["after_first"] > 0.9
    assert first["final"] < 0.75
    assert first["masked"] > first["after_first"] - 0.05
    assert first["as_of_first"] == pytest.approx(first["after_first"], abs=0.005)
    assert report["accuracy"]["permuted-digits"]["final"] > 0.85
    assert set(report["verify"]) == {"layer-0", "layer-1", "layer-2"}
    assert all(layer["exact"] and layer["reconstruction_error"] < 1e-4 for layer in report["verify"].values())
    assert json.loads((out / "report" / "report.json").read_text()) == report
    tables = {table["name"]: table for table in report["tables"]}
    assert len(tables["accuracy"]["rows"]) == 4
    assert "dataset <> 'permuted-digits'" in tables["reconstruction"]["caption"]


def test_the_prediction_is_explained_from_what_was_recorded(demo):
    out, report, memory = demo
    prediction = report["prediction"]
    assert prediction["recognised_as"] != prediction["label"], "a digit that the second dataset spoils"
    assert {path.name for path in (out / "report").glob("*.png")} == set(prediction["figures"])
    assert len(prediction["layers"]) == len(prediction["figures"]) == 3
    for name, layer in prediction["layers"].items():
        hits = memory.topk(name, prediction["query"], k=1, score="abs")
        assert layer["top"][0]["slot"] == hits.slots[0][0]
        assert len(layer["top"]) == 5
        sums = memory.group_sum(name, prediction["query"], by=("dataset", "label"), score="abs")
        expected = dict(zip(sums.groups, sums.sums[0], strict=True))
        assert {(each["dataset"], each["label"]): each["sum"] for each in layer["sums"]} == expected
    assert report["slots"] == 2 * 150 * 64


def test_samples_and_query_sets_know_what_they_looked_like(demo):
    memory = demo[2]
    info = memory.info()
    assert dict(info.previews) == {"digits": "images", "permuted-digits": "images"}
    assert {query_set.previews for query_set in info.query_sets} == {"images"}
    samples = memory.sql("SELECT DISTINCT sample FROM slots WHERE dataset = 'digits' ORDER BY sample")["sample"][:5]
    for shown, images in (
        (memory.previews(samples, "digits"), digits().train),
        (memory.previews([0, 396], query_set="test-permuted-digits"), permuted(digits()).test),
    ):
        pixels = [np.asarray(Image.open(BytesIO(own.image))).ravel() for own in shown]
        np.testing.assert_array_equal(pixels, images.pixels[[own.sample for own in shown]].astype(int) * 255 // 16)


def test_a_demo_replaces_nothing_but_a_demo(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(AlreadyExists, match="already contains something"):
        run_demo(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


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
def test_a_study_that_fails_and_a_folder_without_a_report_are_named_and_the_others_still_run(checkout: Path):
    (checkout / "fails").write_text("joint\n")
    (checkout / "runs" / "single").mkdir(parents=True)
    (checkout / "runs" / "single" / "memory.json").write_text("mine")
    done, called = make(checkout)
    assert done.returncode != 0
    assert sorted(re.findall("no report of the study (.*)", done.stderr)) == ["joint", "single"]
    assert "runs/single has no report: remove it, or give it another name" in done.stderr
    assert (checkout / "runs" / "single" / "memory.json").read_text() == "mine"
    assert called == sorted(name for name in (*LISTED, "aesop") if name != "single")
    assert not (checkout / "document").exists()


@with_make
def test_aesop_at_the_papers_size_is_a_command_of_its_own_on_two_threads(checkout: Path):
    done, _ = make(checkout, "reproduction-aesop", "UPDATES=54")
    assert done.returncode == 0, done.stderr
    assert (checkout / "calls").read_text() == (
        "2 study aesop --preset paper --rerun --steps 54 --out runs/aesop-paper.partial --json\n"
    )
    assert (checkout / "runs" / "aesop-paper" / "report" / "report.json").is_file()
    assert (checkout / "document").read_text() == "-m dualform_studies.reproduction runs docs\n"
