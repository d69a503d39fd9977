"""--help: short, grouped, with an example; and what an unknown command or option is answered."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from docs.site import command_line

from dualform_client.cli.help import HEADINGS, ConnectionOption
from dualform_client.cli.main import COMMANDS, SECTIONS, dualform as group

LINES, COLUMNS, LETTERS = 40, 80, 60


def _command(name: str) -> click.Command:
    with click.Context(group) as context:
        found = group.get_command(context, name)
    assert found is not None
    return found


every_command = pytest.mark.parametrize("command", list(map(_command, COMMANDS)), ids=lambda command: command.name)


def _options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option)]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_screen(dualform, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    told = dualform(*name.split(), "--help")
    lines = told.out.splitlines()
    assert told.code == 0
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert not [line for line in lines if line.endswith("-")], "no name of an option is broken"
    assert not name or f"  dualform {name} " in told.out.split("Example")[1]


@every_command
def test_options_stand_in_order(dualform, command):
    """Required ones, then others, then those of the connection."""
    shown, place = dualform(command.name, "--help").out, 0
    for heading in HEADINGS:
        own = [
            option
            for option in _options(command)
            if heading == ("Connection and RAM" if isinstance(option, ConnectionOption) else
                           "Required" if option.required else "Options")
        ]  # fmt: skip
        assert (f"\n{heading}:\n" in shown) == bool(own)
        for option in own:
            place = shown.index(f"\n  {option.opts[0]} ", place)


@every_command
def test_every_option_has_a_short_text_and_says_its_default(command):
    for option in _options(command):
        default = option.get_default(click.Context(command), call=False)
        assert option.help[0].isupper() or option.help.startswith("aesop"), option.name
        assert option.help.endswith("."), option.name
        assert len(option.help) <= LETTERS, option.name
        if not option.is_flag and isinstance(default, int | float | Path):
            assert option.show_default, option.name


def test_the_list_of_commands_says_what_each_does(dualform):
    assert dualform("--version").out == f"dualform, version {version('dualform')}\n"
    parts = dualform().out.split("\nAsk:\n")
    listed = [line for line in f"Ask:\n{parts[1]}".splitlines() if line]
    assert [line.rstrip(":") for line in listed if not line.startswith(" ")] == list(SECTIONS)
    rows = dict(line.split(maxsplit=1) for line in listed if line.startswith(" "))
    assert list(rows) == list(COMMANDS)
    assert not [name for name, line in rows.items() if not line.endswith(".") or line.endswith("...")]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["topkk"], "Unknown command 'topkk'.", "Did you mean topk? Try 'dualform --help'."),
        (["runs/demo"], "Unknown command 'runs/demo'.", "Try 'dualform --help'."),
        (["info", "x", "--jso"], "Unknown option '--jso'.", "Did you mean --json? Try 'dualform info --help'."),
        (["--verison"], "Unknown option '--verison'.", "Did you mean --version? Try 'dualform --help'."),
        (["topk", "x"], "Missing option '--query'.", "Try 'dualform topk --help'."),
        (["topk"], "Missing argument 'TARGET'.", "Try 'dualform topk --help'."),
        (
            ["output", "x", "--query", "test", "--at-step", "y"],
            "Invalid value for '--at-step': 'y' is not a valid integer.",
            "Try 'dualform output --help'.",
        ),
    ],
)
def test_what_is_mistyped_is_told_with_what_is_near(dualform, words, message, hint):
    assert dualform(*words) == (2, "", f"error: {message}\nhint: {hint}\n")
    told = dualform(*words, "--json")
    assert (told.code, told.json["error"]) == (2, {"code": "usage", "message": message, "hint": hint})


def test_the_page_has_the_help_of_every_command():
    """`python -m docs.site.command_line` writes it."""
    assert command_line.PAGE.read_text(encoding="utf-8") == command_line.page()
    assert all(f"\n### dualform {name}\n" in command_line.page() for name in COMMANDS)


def test_the_commands_of_the_page_are_right(dualform, folder, tmp_path, monkeypatch):
    """Those above the reference, on another memory."""
    prose = command_line.PAGE.read_text(encoding="utf-8").partition(command_line.BEGIN)[0]
    asked = re.findall(r"^    dualform (.*)", prose, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    for words in map(shlex.split, asked):
        known = {"runs/demo": folder, "layer-2": "2", "test-digits/17": "test/1", "dataset = 'digits'": "label = 1"}
        placed = [known.get(word, word.replace("300", "3")) for word in words]
        assert words[0] == "demo" or dualform(*placed).code == 0, words
