"""`make reproduction` with stand-ins for what it calls, which note how they were called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dualform_studies.images.datasets import FOLDER
from dualform_studies.studies import STUDIES

MAKEFILE = Path(__file__).parents[2] / "Makefile"
LISTED = re.findall(r"^STUDIES := (.*)$", MAKEFILE.read_text(), re.MULTILINE)[0].split()
STUDY = """\
#!/bin/sh
# study NAME … --out FOLDER --json
echo "$OMP_NUM_THREADS $*" >> calls
test ! -e fails || ! grep --quiet --line-regexp "$2" fails || exit 1
while [ "$1" != --out ]; do shift; done
mkdir -p "$2/report" && touch "$2/report/report.json"
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    for name, script in (("dualform", STUDY), ("python", '#!/bin/sh\necho "$*" > document\n')):
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "ready").touch()
    return tmp_path


def make(checkout: Path, target: str = "reproduction", *given: str) -> subprocess.CompletedProcess[str]:
    command = ["make", target, "VENV=.", "BIN=./bin", *given]
    environment = os.environ | {"DUALFORM_DATA": str(checkout / "data")}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)


def studies_called(checkout: Path) -> list[str]:
    return [line.split()[2] for line in (checkout / "calls").read_text().splitlines()]


def test_every_study_is_listed():
    assert {*LISTED, "cifar10"} == set(STUDIES)


def test_cifar_10_is_studied_where_its_files_are(checkout: Path):
    files = checkout / "data" / FOLDER
    files.mkdir(parents=True)
    (files / "test_batch.bin.gz").touch()
    assert make(checkout).returncode == 0
    assert sorted(studies_called(checkout)) == sorted([*LISTED, "aesop", "cifar10"])


def test_every_study_runs_once_on_one_thread_and_the_document_comes_last(checkout: Path):
    done = make(checkout)
    assert done.returncode == 0, done.stderr
    calls = (checkout / "calls").read_text().splitlines()
    assert {line.split()[0] for line in calls} == {"1"}
    assert sorted(studies_called(checkout)) == sorted([*LISTED, "aesop"]), "aesop a second time, as a rerun"
    assert (checkout / "document").read_text() == "-m dualform_studies.reproduction runs docs\n"
    (checkout / "calls").unlink()
    assert make(checkout).returncode == 0
    assert not (checkout / "calls").exists(), "what has its report is not run again"


def test_a_study_that_fails_is_named_and_the_others_still_run(checkout: Path):
    (checkout / "fails").write_text("joint\n")
    done = make(checkout)
    assert done.returncode != 0
    assert "no report of the study joint\n" in done.stderr
    assert done.stderr.count("no report of the study") == 1
    assert sorted(studies_called(checkout)) == sorted([*LISTED, "aesop"])
    assert not (checkout / "document").exists()


def test_a_folder_without_a_report_is_left_alone(checkout: Path):
    (checkout / "runs" / "single").mkdir(parents=True)
    (checkout / "runs" / "single" / "memory.json").write_text("mine")
    done = make(checkout)
    assert done.returncode != 0
    assert "runs/single has no report: remove it, or give it another name" in done.stderr
    assert (checkout / "runs" / "single" / "memory.json").read_text() == "mine"


def test_aesop_at_the_papers_size_is_a_command_of_its_own_on_two_threads(checkout: Path):
    done = make(checkout, "reproduction-aesop", "UPDATES=54")
    assert done.returncode == 0, done.stderr
    assert (checkout / "calls").read_text() == (
        "2 study aesop --preset paper --rerun --steps 54 --out runs/aesop-paper.partial --json\n"
    )
    assert (checkout / "runs" / "aesop-paper" / "report" / "report.json").is_file()
    assert (checkout / "document").read_text() == "-m dualform_studies.reproduction runs docs\n"
