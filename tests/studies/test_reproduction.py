from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from dualform.errors import NotFound
from dualform_studies.assignment import Assignment
from dualform_studies.dual_form_figures import CAPTIONS
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART, Beside, Claim, Verdict
from dualform_studies.pages.frame import LARGEST_PNG, new_figure
from dualform_studies.pages.page import Page
from dualform_studies.reproduction import main, write_reproduction


def test_the_document_holds_every_page_that_there_is(tmp_path: Path):
    run = tmp_path / "runs" / "continual"
    page = Page(run, "Continual learning")
    with new_figure(run / "report" / "plot.png", 1.0) as figure:
        figure.subplots().plot([1, 2])
    page.figure(run / "report" / "plot.png", "Two points.")
    command = Assignment(run, steps=5, prompts=("a fox",)).command("continual")
    beside = [Beside("accuracy", "96 %", "97 %").plain()]
    page.write({"command": command, "beside_paper": beside, "seconds": {"all": 61.5}})
    docs = tmp_path / "docs"
    (docs / "reproduction" / "continual").mkdir(parents=True)
    (docs / "reproduction" / "continual" / "stale.png").touch()
    told = CliRunner().invoke(main, [str(tmp_path / "runs"), str(docs)])
    assert told.exit_code == 0, told.output
    text = (docs / "reproduction.md").read_text()
    assert text.startswith("# The paper, reproduced")
    assert "## Continual learning" in text
    threads = json.loads((run / "report" / "report.json").read_text())["machine"]["threads"]
    assert f"| continual | `{command}` | {threads} | 2 |" in text
    assert "| single | not run | - | - | - |" in text
    assert "| aesop | not run | - | - | - |\n| aesop-paper | not run | - | - | - |\n" in text
    assert "- [Continual learning](#continual-continual-learning)" in text
    assert "| continual | accuracy | 96 % | 97 % | - |" in text
    (shown,) = (docs / "reproduction" / "continual").iterdir()
    assert f"](reproduction/continual/{shown.name})" in text
    sizes = {kind: (run / "report" / f"plot.{kind}").stat().st_size for kind in ("png", "svg")}
    assert shown.name == f"plot.{min(sizes, key=sizes.__getitem__)}"


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The PNG of the one figure that a study's page shows."""
    run = tmp_path / "runs" / "single"
    page, path = Page(run, "Single task"), run / "report" / "plot.png"
    with new_figure(path, 1.0) as figure:
        figure.subplots().plot([1, 2])
    page.figure(path, "Two points.")
    page.write({"command": "dualform study single"})
    (tmp_path / "docs").mkdir()
    return path


def write(shown: Path) -> str:
    return write_reproduction(shown.parents[2], shown.parents[3] / "docs").read_text()


def test_the_figures_of_the_dual_form_stand_at_the_head(shown: Path):
    text = write(shown)
    for name in CAPTIONS:
        assert f"](reproduction/dual-form/{name}.png)" in text
        assert (shown.parents[3] / "docs" / "reproduction" / "dual-form" / f"{name}.png").is_file()
    assert text.index("primal-form.png") < text.index("dual-form.png)\n") < text.index("The studies; DATA")


@pytest.mark.parametrize(("png", "svg", "kind"), [(2000, 1000, "svg"), (1000, 2000, "png"), (200_000, 119_999, "svg")])
def test_of_a_figure_the_smaller_file_is_kept(shown: Path, png: int, svg: int, kind: str):
    pad(shown, png)
    shown.with_suffix(".svg").write_bytes(bytes(svg))
    assert f"](reproduction/single/plot.{kind})" in write(shown)
    kept = list((shown.parents[3] / "docs" / "reproduction" / "single").iterdir())
    assert [(path.name, path.stat().st_size) for path in kept] == [(f"plot.{kind}", min(png, svg))]


def test_a_picture_that_moves_stays_a_png(shown: Path):
    frames = [Image.new("RGB", (200, 200), colour) for colour in ("white", "black")]
    frames[0].save(shown, save_all=True, append_images=frames[1:])
    shown.with_suffix(".svg").write_bytes(b"<svg/>")
    assert "](reproduction/single/plot.png)" in write(shown)


def test_a_figure_that_is_too_large_is_refused_and_nothing_is_lost(shown: Path):
    docs = shown.parents[3] / "docs"
    write(shown)
    before = {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()}
    pad(shown, LARGEST_PNG + 1)
    shown.with_suffix(".svg").write_bytes(bytes(LARGEST_PNG))
    told = CliRunner().invoke(main, [str(shown.parents[2]), str(docs)])
    assert told.exit_code == 1
    assert told.output == (
        f"Error: the figure {shown} takes 120,001 bytes; a page that is kept under version control has room for "
        "120,000. Draw it smaller or with fewer colours.\n"
    )
    assert {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()} == before


def test_a_figure_that_is_gone_is_named(shown: Path):
    shown.unlink()
    with pytest.raises(NotFound, match=r"plot\.png, which its page shows, is not there\. Run its study again\."):
        write(shown)


def pad(png: Path, size: int) -> None:
    """Make a PNG so many bytes long by an ancillary chunk that readers pass over."""
    Image.new("L", (8, 8)).save(png)
    content = png.read_bytes()
    end = content.index(b"IEND") - 4
    data = b"duAl" + bytes(size - len(content) - 12)
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    png.write_bytes(content[:end] + chunk + content[end:])


CLAIM = Claim("section 5.2", "Its class leads.", "one example", "81 % of 10,000", HOLDS, "80 % or more", "Leading")


def test_claims_come_first_and_lead_to_their_evidence(tmp_path: Path):
    for name in ("single", "joint"):
        page = Page(tmp_path / "runs" / name, name)
        page.heading("Leading")
        page.write({"command": f"dualform study {name}", "claims": [CLAIM.plain()]})
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    row = "| Its class leads. (section 5.2) | one example | 81 % of 10,000 | holds | [joint](#joint-leading) |"
    assert row in text
    assert text.index(row) < text.index("dualform study single")
    assert '<a id="joint-leading"></a>' in text


def test_a_claim_that_several_studies_test_counts_once_by_its_least_verdict(tmp_path: Path):
    def write(name: str, *verdicts: tuple[str, str, Verdict]) -> None:
        page = Page(tmp_path / "runs" / name, name)
        page.heading("Leading")
        claims = [Claim(section, claim, "", "", verdict, "", "Leading") for section, claim, verdict in verdicts]
        page.write({"command": name, "claims": [claim.plain() for claim in claims]})

    write("single", ("5.2", "A hub.", HOLDS), ("5.2", "It leads.", HOLDS), ("5.3", "It leads.", IN_PART))
    write("joint", ("5.2", "A hub.", FAILS))
    write("continual", ("5.2", "A hub.", IN_PART))
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    assert "Of 3 claims, 1 hold, 1 hold in part and 1 do not hold; one that several trainings put to the test" in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda report: json.dumps(report)[:-9], "(char "),
        (lambda report: "[1]", "it is no JSON object"),
        (lambda report: json.dumps(report | {"command": None} | {"machine": {}}), "it has no 'threads'"),
        (lambda report: json.dumps(report | {"claims": [{"claim": "A hub."}]}), "missing"),
        (
            lambda report: json.dumps(report | {"claims": [CLAIM.plain() | {"verdict": "maybe"}]}),
            "'maybe' is no verdict",
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
    assert_refused(tmp_path, f"{path} is not the whole report of a study: ", reason, "Run its study again.")


def test_a_report_without_its_page_is_named(tmp_path: Path):
    Page(tmp_path / "runs" / "joint", "Joint").write({"command": "dualform study joint"})
    page = tmp_path / "runs" / "joint" / "report" / "index.md"
    page.unlink()
    assert_refused(tmp_path, f"{page}, the page of a study that has a report, is not there.")


def test_a_folder_without_any_report_overwrites_nothing(tmp_path: Path):
    (tmp_path / "runs" / "single").mkdir(parents=True)
    assert_refused(tmp_path, f"{tmp_path / 'runs'} holds no report of a study.")


def assert_refused(folder: Path, *words: str) -> None:
    """The command ends in an error that says so, and the document stays as it was."""
    (folder / "docs").mkdir()
    (folder / "docs" / "reproduction.md").write_text("of an earlier day")
    told = CliRunner().invoke(main, [str(folder / "runs"), str(folder / "docs")])
    assert told.exit_code == 1
    assert isinstance(told.exception, SystemExit), "no traceback"
    assert all(word in told.output for word in words), told.output
    assert [path.name for path in (folder / "docs").iterdir()] == ["reproduction.md"]
    assert (folder / "docs" / "reproduction.md").read_text() == "of an earlier day"


def test_a_hub_in_different_settings_is_judged_once_over_the_studies(tmp_path: Path):
    image = {"dataset": "mnist", "sample": 4, "label": 0, "weight": 0.06}
    for name in ("single", "joint", "compact"):
        page = Page(tmp_path / "runs" / name, name)
        page.heading("Hubs")
        hubs = {} if name == "compact" else {"hubs": {"layer-0": {"often": [image]}}}
        page.write({"command": f"dualform study {name}", **hubs})
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    said = "mnist image 4, class 0: 6.0 % in single (layer-0), 6.0 % in joint (layer-0)"
    (row,) = (line for line in text.splitlines() if "different settings" in line)
    assert f"{said}; studies: single, joint | holds | [single](#single-hubs) |" in row
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
    assert "| keys stored | 4.510 |" in text


def test_a_command_says_what_an_assignment_does(tmp_path: Path):
    assignment = Assignment(tmp_path, seed=3, runs=2, prompts=("it's", "b"), dry_run=True)
    assert assignment.command("aesop") == (
        "dualform study aesop --data DATA --out RUN --seed 3 --runs 2 --prompt 'it'\"'\"'s' --prompt b --dry-run"
    )
