"""The README's examples run as they stand, in their order, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dualform
from dualform_service.server import Server

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- tested: (\w+) -->\n```python\n(.*?)```", README, re.DOTALL))


def run(name: str, **replaced: str) -> None:
    code = EXAMPLES[name]
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    exec(compile(code, f"README.md, {name}", "exec"), {})


def test_every_example_is_about_fifteen_lines():
    assert EXAMPLES.keys() == {"record", "ask", "replay", "client"}
    for name, code in EXAMPLES.items():
        assert len([line for line in code.splitlines() if line.strip()]) <= 16, name


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("record")
    run("ask")
    run("replay")
    with dualform.open("runs/mine") as memory:
        server = Server(memory, "127.0.0.1:0")
        port = server.start()
        try:
            run("client", **{"50051": str(port)})
        finally:
            server.stop(1)
    printed = capsys.readouterr().out
    assert "Certificate(relative_error=" in printed
    assert "(20, 10)" in printed


@pytest.mark.parametrize("command", ["make demo", "make test", "torchtext", "tokenizers"])
def test_says_what_people_look_for(command):
    assert command in README
