"""Questions put to a memory through the command line, as a reader would type them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from dualform.errors import DualformError
from dualform_client.cli.main import main

_PASSAGE, _DRAWN = re.compile(r"^sample <> \d+$"), re.compile(r"^sample NOT IN \([\d, ]+\)$")


class CommandLine:
    """Runs commands of `dualform` on one memory, in this process, and reads what they print with --json."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._said: dict[str, None] = {}

    @property
    def commands(self) -> list[str]:
        """What was asked, one of each kind: RUN stands for the memory, LAYER for the layers that were named in turn,
        ROWS for lists of query set rows, PASSAGE for the passages that were masked, DRAWN for training images that were
        drawn at random."""
        return list(self._said)

    def ask(self, command: str, *words: str) -> Any:
        """What `dualform COMMAND RUN WORDS --json` prints. Raises DualformError with what the command said."""
        self._said.setdefault(shlex.join(["dualform", command, "RUN", *_short(words)]))
        printed = StringIO()
        with redirect_stdout(printed):
            code = main([command, str(self._run), *words, "--json"])
        answer = json.loads(printed.getvalue())
        if code:
            error = answer["error"]
            raise DualformError(f"dualform {command}: {error['message']}", hint=error["hint"])
        return answer


def query_set_tokens(query_set: str, rows: Iterable[int], tokens: int) -> str:
    """Rows of a query set of so many tokens an example, as --query takes them."""
    return f"{query_set}/{','.join(f'{row // tokens}:{row % tokens}' for row in rows)}"


def _short(words: Iterable[str]) -> list[str]:
    """The words, with what varies from question to question replaced by what it is."""
    shown, before = [], ""
    for word in words:
        if before == "--layer":
            shown.append("LAYER")
        elif before == "--query":
            shown.append(Path(word).name if word.endswith(".npy") else re.sub("/.*", "/ROWS", word))
        elif before == "--out":
            shown.append("FILE.safetensors")
        else:
            shown.append(_DRAWN.sub("sample NOT IN (DRAWN)", _PASSAGE.sub("sample <> PASSAGE", word)))
        before = word
    return shown
