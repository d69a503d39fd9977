"""The sources build an archive and a wheel that are whole, under the version of git's tags; CITATION.cff cites."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.packaging.contents import ROOMS, ROOT, faults

FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff")
UNBUILT = shutil.ignore_patterns("__pycache__", "*.so", "*.dll", "*.egg-info", "node_modules", ".mypy_cache")


@pytest.fixture
def sources(tmp_path):
    """A copy of what the repository has, in no repository of git."""
    folder = tmp_path / "dualform"
    folder.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room, ignore=UNBUILT)
    return folder


def run(folder: Path, *command: str) -> str:
    """What it prints; in an environment without the variables of whoever runs the tests."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SETUPTOOLS_SCM"))}
    own |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CEILING_DIRECTORIES": str(folder.parent), "CFLAGS": "-O0"}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commit(folder: Path) -> None:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    if not (folder / ".git").exists():
        run(folder, "git", "init", "--quiet")
        run(folder, "git", "add", "--all")
    run(folder, "git", *who, "commit", "--quiet", "--allow-empty", "--message", "a commit")


def version(folder: Path) -> str:
    return run(folder, sys.executable, "-W", "ignore", "setup.py", "--version").split()[-1]


def test_the_version_is_that_of_the_tag_and_else_a_development_version(sources):
    assert version(sources) == "0.2.0.dev0"
    commit(sources)
    commit(sources)
    assert version(sources) == "0.2.0.dev2"
    run(sources, "git", "tag", "v0.7.0")
    assert version(sources) == "0.7.0"
    commit(sources)
    assert version(sources) == "0.7.1.dev1"


def test_the_next_version_is_that_of_the_changelog():
    uppermost = next(line for line in (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines() if line.startswith("## "))
    assert f'NEXT = "{uppermost.split()[1]}"' in (ROOT / "setup.py").read_text(encoding="utf-8")


def test_archive_and_wheel_are_whole(sources):
    """The wheel is made of the archive, whose version it has without git."""
    commit(sources)
    run(sources, "git", "tag", "v0.7.0")
    run(sources, sys.executable, "-m", "build", "--no-isolation", "--outdir", "made")
    made = sorted((sources / "made").iterdir())
    assert [path.name.partition("-py3")[0] for path in made] == ["dualform-0.7.0", "dualform-0.7.0.tar.gz"]
    assert {path.name: found for path in made if (found := faults(path))} == {}
    assert run(sources, sys.executable, "-m", "twine", "check", "--strict", *map(str, made)).count("PASSED") == 2


def test_what_is_missing_and_what_is_too_much_is_named(tmp_path):
    wheel = tmp_path / "dualform-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr("tests/test_a.py", "")
        opened.writestr("dualform/kernels/codes.c", "")
    found = faults(wheel)
    assert {"tests/test_a.py is too much", "dualform/kernels/codes.c is too much"} <= set(found)
    assert {"the compiled loops are missing", "the licence is missing", "dualform/py.typed is missing"} <= set(found)


def test_the_citation_is_whole():
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert said["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "type", "license"} <= said.keys()
    assert said["authors"] == [{"name": "The dualform developers"}]
    (paper,) = said["references"]
    assert [person["family-names"] for person in paper["authors"]] == ["Irie", "Csordás", "Schmidhuber"]
    assert paper["title"].startswith("The Dual Form of Neural Networks Revisited")
    assert (paper["type"], paper["year"], paper["volume"]) == ("conference-paper", 2022, 162)
    assert paper["url"] in (ROOT / "README.md").read_text(encoding="utf-8")
