"""A walk of CONTRIBUTING, and the files that run while something takes it."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).parents[1]
ROOMS = [ROOT / room for room in ("indexer/dualform", "protos", "service", "clients")]
_PATH = re.compile(r"`([\w/]+(?:\.py|/))`")


class Walk(NamedTuple):
    """What CONTRIBUTING says of a way."""

    stops: list[str]
    """The file of each numbered line before the files beside the way, in order."""
    beside: list[str]
    """The files, and folders (ending in /) with all that is in them, that stand beside the way."""

    def unnamed(self, ran: set[str]) -> list[str]:
        """The files that ran and are neither a stop nor beside the way."""
        folders = tuple(name for name in self.beside if name.endswith("/"))
        named = {*self.stops, *self.beside}
        return sorted(file for file in ran if file not in named and not file.startswith(folders))


def walk(title: str) -> Walk:
    """The walk of a section."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    way, _, rest = page.partition(f"\n### {title}\n")[2].partition("\n#")[0].partition("\nBeside the way ")
    lines = re.findall(r"^\d+\. .*", way, re.MULTILINE)
    return Walk([found[1] for line in lines if (found := _PATH.search(line))], _PATH.findall(rest.partition("\n\n")[0]))


class Trace:
    """Notes the files of ours of which a function is called, on every thread that begins inside, while it is on."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self.on, self._over = False, False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self._over:  # on a thread that outlives the trace, as those of the compiled loops do
            sys.setprofile(None)
        # Modules and classes run as they are imported, by whoever is the first to need them.
        if not self.on or event != "call" or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return
        file = Path(frame.f_code.co_filename)
        self.ran |= {file.relative_to(room).as_posix() for room in ROOMS if file.is_relative_to(room)}

    def __enter__(self) -> Self:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.on, self._over = False, True
        sys.setprofile(None)
        threading.setprofile(None)
