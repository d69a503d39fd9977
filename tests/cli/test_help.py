from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from dualform_client.cli.main import COMMANDS, dualform as group

PAGE = (Path(__file__).parent.parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
REACHING = {"--token-file", "--tls", "--tls-ca", "--tls-cert", "--tls-key", "--timeout", "--ram"}
"""Options of every command that asks a TARGET."""
SCORE = {"--score", "--abs", "--target", "--at-step", "--allow-inexact"}
"""Of commands that take a score with all that belongs to it."""
OPTIONS = {
    "demo": {"--out"},
    "study": {"--data", "--out", "--steps", "--seed", "--runs", "--preset", "--prompt", "--rerun", "--dry-run"}
    | {"--quick"},
    "estimate": {"--steps", "--samples", "--layers", "--tried", "--folder", "--budget"},
    "serve": {
        *(
            "--address",
            "--token-file",
            "--token-rate",
            "--sql",
            "--tls-cert",
            "--tls-key",
            "--tls-client-ca",
            "--max-concurrent",
            "--max-small",
            "--request-bytes",
            "--log",
            "--explore",
            "--metrics",
            "--tracing",
            "--answer-bytes",
            "--deadline",
        ),
        "--config",
        *("--ram", "--ray", "--shard-deadline"),
    },
    "info": REACHING,
    "mcp": REACHING,
    "topk": {*REACHING, "--layer", "--query", "-k", "--where", "--by", *SCORE},
    "group-sum": {*REACHING, "--layer", "--query", "--where", "--by", *SCORE, "--top"},
    "distribution": {*REACHING, "--layer", "--query", "--where", "--points", *SCORE},
    "output": {
        *(*REACHING, "--layer", "--query", "--where", "--at-step", "--allow-inexact"),
        *("--kernel", "--temperature", "--no-initial"),
    },
    "contributions": {*REACHING, "--layer", "--query", "--by", "--where", "--at-step", "--allow-inexact"},
    "compare": {*REACHING, "--layer", "--query", "-k", "--where", "--score", "--abs"},
    "weights": {*REACHING, "--where", "--where-space", "--at-step", "--allow-inexact", "--out", "--force"},
    "verify": REACHING,
    "check": {"--repair", "--out"},
    "completion": set(),
    "copy": set(),
    "explore": {
        *REACHING,
        "--address",
        "--host",
        "--access",
        "--root-path",
        "--deadline",
        "--preview",
        "--export",
        "--item",
        "--without",
        "--force",
        "--open",
    },
    "delete": {"--where", "--query-set", "--cut-off", "--yes"},
    "sql": REACHING,
    "health": {"--tls-ca", "--tls-cert", "--tls-key", "--timeout"},
    "token": {"--scopes", "--file"},
}


def _command(name: str) -> click.Command:
    with click.Context(group) as context:
        found = group.get_command(context, name)
    assert found is not None
    return found


def test_the_commands():
    assert set(COMMANDS) == set(OPTIONS)


@pytest.mark.parametrize("command", list(map(_command, COMMANDS)), ids=lambda command: command.name)
def test_every_command_has_help_with_an_example(dualform, command):
    told = dualform(command.name, "--help")
    assert told.code == 0
    assert f"dualform {command.name} " in told.out.split("Example:")[1]
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert parameter.help, parameter.name


@pytest.mark.parametrize("command", list(map(_command, COMMANDS)), ids=lambda command: command.name)
def test_every_option_with_a_value_says_its_default(command):
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag and not option.required:
            assert option.show_default or "Default: " in option.help or "goes with --" in option.help, option.name


def test_the_list_of_commands_says_what_each_does(dualform):
    listed = dict(line.split(maxsplit=1) for line in dualform().out.split("Commands:\n")[1].splitlines())
    assert set(listed) == set(COMMANDS)
    assert not [name for name, line in listed.items() if not line.endswith(".") or line.endswith("...")]


@pytest.mark.parametrize("command", list(map(_command, COMMANDS)), ids=lambda command: command.name)
def test_every_command_takes_its_options_and_no_others(command):
    options = {opt for option in command.params if isinstance(option, click.Option) for opt in option.opts}
    assert options == OPTIONS[command.name] | {"--json"}


@pytest.mark.parametrize("command", list(map(_command, COMMANDS)), ids=lambda command: command.name)
def test_every_command_stands_in_the_readme(command):
    assert re.search(rf"`dualform {command.name}\b", PAGE)


def test_version(dualform):
    assert dualform("--version").out == f"dualform, version {version('dualform')}\n"


def test_alone_it_says_what_there_is(dualform):
    told = dualform()
    assert told.code == 0
    assert all(name in told.out for name in OPTIONS)


@pytest.mark.parametrize("command", ["serve", "topk"])
def test_the_share_of_memory_for_codes_is_said(command):
    (option,) = [own for own in group.get_command(click.Context(group), command).params if own.name == "ram"]
    said = option.help.lower()
    assert "half of the machine" in said
    assert "an eighth for their codes" in said


@pytest.mark.parametrize("command", ["topk", "group-sum", "distribution", "compare"])
def test_no_score_is_offered_that_the_command_line_cannot_name(dualform, command):
    assert "your own" not in " ".join(dualform(command, "--help").out.split()).partition("--score NAME")[2][:300]
