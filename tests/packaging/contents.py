"""What an archive of the sources and a wheel must have, and must not.

python -m tests.packaging.contents FILE… names what is missing or too much, and fails.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("indexer", "protos", "service", "clients")
SHIPPED = (".py", ".pyi", ".proto", ".html", ".css", ".js", ".svg")


def shipped(root: Path = ROOT) -> set[str]:
    """The files of all packages that a user needs, as the wheel names them."""
    found = set()
    for package in (one for room in ROOMS for one in (root / room).iterdir() if one.name.startswith("dualform")):
        for path in package.rglob("*"):
            if path.suffix in SHIPPED or path.name == "py.typed" or path.name.startswith("LICENSE"):
                found.add(path.relative_to(package.parent).as_posix())
    return {name for name in found if ".egg-info" not in name}


def faults(archive: Path) -> list[str]:
    """What is wrong with a wheel or with an archive of the sources; empty where nothing is."""
    return list(_of_wheel(archive) if archive.suffix == ".whl" else _of_sources(archive))


def _of_wheel(archive: Path) -> Iterator[str]:
    names = set(zipfile.ZipFile(archive).namelist())
    yield from (f"{name} is missing" for name in sorted(shipped() - names))
    if not any(re.fullmatch(r"dualform/kernels/_kernels\.(so|dll)", name) for name in names):
        yield "the compiled loops are missing"
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        yield "the licence is missing"
    ours = re.compile(r"dualform(_\w+)?/|dualform-[^/]+\.dist-info/")
    yield from (f"{name} is too much" for name in sorted(names) if not ours.match(name) or name.endswith((".c", ".h")))


def _of_sources(archive: Path) -> Iterator[str]:
    with tarfile.open(archive) as opened:
        names = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    loops = {path.relative_to(ROOT).as_posix() for path in (ROOT / "indexer").rglob("*.[ch]")}
    wanted = {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "PKG-INFO", *loops}
    own = {name.partition("/")[2] for name in names if name.startswith(tuple(f"{room}/" for room in ROOMS))}
    yield from (f"{name} is missing" for name in sorted((wanted - names) | (shipped() - own)))
    kept = re.compile(r"(indexer|protos|service|clients)/|[^/]+$|dualform\.egg-info/")
    yield from (f"{name} is too much" for name in sorted(names) if not kept.match(name) or name.endswith(".so"))


if __name__ == "__main__":
    found = {path: own for path in sys.argv[1:] if (own := faults(Path(path)))}
    sys.exit("\n".join(f"{path}: {fault}" for path, own in found.items() for fault in own))
