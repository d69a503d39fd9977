"""Tables on terminals of few columns: no layer's name is cut, nothing that was asked for is missing, and what was left
out is named. In a pipe nothing is left out."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from rich.cells import cell_len
from torch import nn

import dualform
from dualform_client.cli import main
from dualform_client.cli.printing import Importance, Table
from dualform_client.cli.tables import show

LAYER = "transformer.h.11.attn.c_attn.query"
ANNOTATOR = "annotator 3 of the second round of labelling"
WIDE_BY = "annotator,dataset,label,difficulty_of_the_example_as_annotated"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A memory of long names."""
    torch.manual_seed(0)
    block = nn.ModuleDict({"attn": nn.ModuleDict({"c_attn": nn.ModuleDict({"query": nn.Linear(6, 18)})})})
    model = nn.ModuleDict({"transformer": nn.ModuleDict({"h": nn.ModuleDict({"11": block})})})
    layer = block["attn"]["c_attn"]["query"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.randn(8, 6), torch.arange(8) % 4
    model.forward = lambda images: layer(images)
    path = tmp_path_factory.mktemp("long") / "run"
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        said = {"annotator": [ANNOTATOR] * 8, "difficulty_of_the_example_as_annotated": torch.rand(8)}
        with recorder.step(dataset="a-data-set-of-a-long-name", label=labels, sample=torch.arange(8), **said):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        recorder.query_set("validation-of-the-second-round", images, label=labels)
    return path


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """What the command shows on a terminal so wide."""

    def run(columns: int, *arguments: object) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "dumb")
        with redirect_stdout(_Terminal()) as shown:
            assert main([*map(str, arguments)]) == 0
        return shown.getvalue()

    return run


def letters(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("columns", [40])
@pytest.mark.parametrize(
    ("question", "asked_for"),
    [
        (("info",), (LAYER, "exact", "validation-of-the-second-round", "a-data-set-of-a-long-name")),
        (("verify",), (LAYER, "reconstructionerror", "exact")),
        (("topk", "-k", 1, "--by", WIDE_BY), (*WIDE_BY.split(","), "slot", "score", letters(ANNOTATOR), "/17(label1)")),
        (("group-sum", "--by", WIDE_BY), (*WIDE_BY.split(","), "sum", letters(ANNOTATOR), "a-data-set-of-a-long-name")),
        (("contributions", "--by", "annotator"), ("what", letters(ANNOTATOR), "initial", "residual")),
        (("output",), ("query", "largest")),
        (("sql", "SELECT * FROM slots"), (*WIDE_BY.split(","), letters(ANNOTATOR), "a-data-set-of-a-long-name")),
    ],
    ids=lambda value: str(value[0]),
)
def test_what_was_asked_for_is_whole_on_a_narrow_terminal(folder, on_terminal, columns, question, asked_for):
    command, *options = question
    if command not in ("info", "verify", "sql"):
        options += ["--layer", LAYER, "--query", "validation-of-the-second-round/5"]
    shown = on_terminal(columns, command, folder, *options)
    title, *lines = shown.splitlines()
    assert "…" not in shown
    table = [line for line in lines if " columns left out: " not in line and " column left out: " not in line]
    assert all(len(line) <= columns for line in table if line not in _titles(shown)), shown
    assert _holds(shown, [text.replace("/17(label1)", "/5(label1)") for text in asked_for])
    assert title


def _titles(shown: str) -> list[str]:
    """Lines that are no table's: a terminal breaks them itself."""
    return [line for line in shown.splitlines() if " · " in line or line.startswith("Columns of")]


def _holds(shown: str, texts: list[str]) -> bool:
    """Whether each text is there, in one line or broken within a column of lines that follow each other."""
    found = [letters(line) for line in shown.splitlines()]
    for block in shown.split("\n\n"):
        lines = [line for line in block.splitlines() if "─" not in line]
        for table in (lines, lines[1:], lines[2:], lines[3:]):  # titles and sentences may stand above
            found += [letters(column) for column in _columns(table)]
    return all(any(text in column for column in found) for text in texts)


def _columns(lines: list[str]) -> list[str]:
    """What stands between places that are blank in all lines, two of them or more: each column from top to bottom."""
    width = max(map(len, lines), default=0)
    blank = "".join("#" if any(line[place : place + 1].strip() for line in lines) else " " for place in range(width))
    spans = [match.span() for match in re.finditer(r"#(?:#| #)*", blank)]
    return ["".join(line[start:end] for line in lines) for start, end in spans]


def test_columns_that_there_is_no_room_for_are_named(folder, on_terminal, dualform):
    asked = ["topk", folder, "--layer", LAYER, "--query", "validation-of-the-second-round/5", "-k", 2]
    narrow, wide = on_terminal(80, *asked), on_terminal(300, *asked)
    (line,) = [line for line in narrow.splitlines() if "left out" in line]
    header = next(line for line in wide.splitlines() if line.startswith("query"))
    count, named = re.fullmatch(r"(\d+) columns left out: (.*) \(a pipe and --json have all\)", line).groups()
    assert {"call", "row", "position"} <= set(named.split(", ")) <= set(header.split())
    assert int(count) == len(named.split(", "))
    assert "left out" not in wide
    # All of it is there without a terminal, however narrow the environment says that one is.
    on_terminal(40, "info", folder)
    piped = dualform(*asked).out
    assert [line.split() for line in piped.splitlines()[1:]] == [line.split() for line in wide.splitlines()[1:]]


TEXTS = st.text(st.sampled_from("ab.-_/ 漢é"), max_size=30)


def printed(monkeypatch, columns: int, *table) -> str:
    """A table as a terminal so wide shows it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    with redirect_stdout(_Terminal()) as shown:
        show(Table("t", *table))
    return shown.getvalue()


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=6), st.integers(12, 90))
def test_cells_are_broken_and_never_cut(table, width):
    names, *rows = zip(*table, strict=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        shown = printed(monkeypatch, width, [f"{name}{place}" for place, name in enumerate(names)], rows)
    assert all(cell_len(line) <= width for line in shown.splitlines())
    headed = "─" in shown  # else each row is a list of names and cells
    told = [*(names if headed else names * len(rows)), *(cell for row in rows for cell in row)]
    assert [shown.count(letter) for letter in "ab漢é"] == ["".join(told).count(letter) for letter in "ab漢é"]


@pytest.mark.parametrize("columns", [1, 12, 80])
def test_no_cell_passes_for_another_row(columns, monkeypatch):
    shown = printed(monkeypatch, columns, ["text", "na\nme"], [["a\nb", 1]])
    told = "".join(shown.split()).replace("─", "").replace(":", "")
    assert sorted(told) == sorted("t" + "text" + "na�me" + "a�b" + "1")
    assert columns < 80 or len(shown.split("\n")[1:-2]) == 3


def test_columns_go_by_importance_and_numbers_are_never_broken(monkeypatch):
    names = ["query", "call", "user", "step", "label", "empty"]
    table = names, [[*[1.23457e-05] * 5, None]], Importance(["query"], last=["label", "step"], first=["call"])
    shown = [printed(monkeypatch, width, *table) for width in range(100, 10, -1)]
    numbers = {*names[:-1]}
    assert all(text.count("1.23457e-05") == len(numbers & {*text.splitlines()[1].split()}) for text in shown)
    left = [re.search("left out: (.*) [(]", text) for text in shown]
    assert list(dict.fromkeys(found and found[1] for found in left)) == [
        None, "empty", "call, empty", "call, user, empty", "call, user, step, empty", "call, user, step, label, empty"
    ]  # fmt: skip
    assert printed(monkeypatch, 10, *table).startswith("t\nquery: \n1.23457e-0\n5\n")


def test_a_query_has_the_name_that_it_was_asked_by(dualform, folder, tmp_path):
    names = ["validation-of-the-second-round/5", "validation-of-the-second-round/2"]
    asked = ["--layer", LAYER, "--query", f"{names[0]},2"]
    for command in (["topk", "-k", 1], ["group-sum", "--by", "label"], ["output"]):
        told = dualform(command[0], folder, *asked, *command[1:], "--json").json
        assert [(one["name"], one["label"]) for one in told["asked"]] == [*zip(names, (1, 2), strict=True)]
        shown = dualform(command[0], folder, *asked, *command[1:]).out
        assert all(f"{name} (label {label})" in shown for name, label in zip(names, (1, 2), strict=True))
    np.save(tmp_path / "q.npy", np.ones(6, np.float32))
    told = dualform("output", folder, "--layer", LAYER, "--query", tmp_path / "q.npy", "--json").json
    assert told["asked"] == [{"query": 0, "name": "0", "label": None}]


def test_internals_are_for_those_who_ask(dualform, folder):
    plain, verbose = dualform("info", folder).out, dualform("info", folder, "--verbose").out
    for inner in ("rounding", "reconstruction error", "backend", "snapshot"):
        assert inner not in plain
        assert inner in verbose
    assert plain.startswith("1 step of SGD · 8 sample slots · finished\n")
    assert dualform("sql", folder, "SELECT 1 AS one").out.startswith("1 row\n")
