"""The command `dualform`: it loads a subcommand, runs it, and turns every error into a message and an exit code."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from itertools import pairwise
from types import ModuleType
from typing import NoReturn, TextIO

import click

from dualform_client.cli.help import Context, UnknownCommand, report_failure

SECTIONS: dict[str, dict[str, str]] = {
    "Ask": {
        "topk": "ask",
        "group-sum": "ask",
        "contributions": "outputs",
        "output": "outputs",
        "weights": "outputs",
        "distribution": "ask",
        "compare": "ask",
        "adjoint": "attribution",
        "retrain": "attribution",
    },
    "Inspect": {
        "info": "inspection",
        "verify": "inspection",
        "check": "inspection",
        "sql": "inspection",
        "estimate": "inspection",
    },
    "Maintain": {"copy": "maintain", "delete": "maintain", "completion": "maintain"},
    "Serve": {"serve": "serving", "explore": "explore", "mcp": "serving", "token": "serving", "health": "serving"},
    "Studies": {"demo": "studies", "study": "studies"},
}
"""The commands by section of --help, each with its module, which has a function of the command's name."""
COMMANDS = {name: file for section in SECTIONS.values() for name, file in section.items()}

ASKING = frozenset((
    "compare", "contributions", "distribution", "group-sum", "info", "output", "serve", "sql", "topk", "verify",
    "weights",
))  # fmt: skip
"""Commands that only answer questions about a memory."""

_SWITCH_SECONDS = 0.0005
"""Switch interval of a server's threads. Light questions need the interpreter several times, and with Python's default
would wait 5 ms each time for a heavy one."""
_OBJECTS = 200_000
"""Threshold of the garbage collector. Loading a command makes nearly as many objects, and none of them can be freed.
"""


class Commands(click.Group):
    """Loads a command's module only when that command runs, so that a first answer does not wait for the others."""

    context_class = Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"dualform_client.cli.{COMMANDS[cmd_name]}")
        found: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise UnknownCommand(args[0], COMMANDS, ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, by section."""
        widest = max(map(len, COMMANDS))
        formatter.write_paragraph()
        for section, names in SECTIONS.items():
            formatter.write_heading(section)
            with formatter.indentation():
                found = {name: self.get_command(ctx, name) for name in names}
                formatter.write_dl(
                    [(name.ljust(widest), own.get_short_help_str(80)) for name, own in found.items() if own]
                )


@click.group(
    cls=Commands,
    invoke_without_command=True,
    options_metavar="",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="dualform", prog_name="dualform")
@click.pass_context
def dualform(context: click.Context) -> None:
    """Ask questions about the training of a neural network.

    TARGET is a memory's folder, or host:port[/NAME] of a server. Every command
    takes --json (one JSON object on stdout) and --help. Start with "dualform demo".
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


class WithoutPandas(MetaPathFinder):
    """Keeps Arrow from loading pandas, which takes a fifth of a first answer and is not needed here."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process.", name=fullname)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code: 0, 1 for failures, 2 for bad usage or input, 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        prepare(given)
    as_json = "--json" in given[: given.index("--")] if "--" in given else "--json" in given
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell (`>&-`): nobody reads it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (as long as the process)
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks are replaced.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = dualform.main(given, prog_name="dualform", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return 1  # the reader has enough (`dualform … | head`)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    except (Exception, KeyboardInterrupt) as error:
        # If stdout fails, for example on a full disk, stderr gets the error.
        for as_object in (True, False) if as_json else (False,):
            with suppress(OSError):
                return report_failure(error, as_object)
        return 1
    return code if isinstance(code, int) else 0


def prepare(given: Sequence[str]) -> None:
    """Sets up a process that only asks: no pandas, few collections, and files read ahead."""
    if given[:1] and given[0] in ASKING:
        sys.meta_path.insert(0, WithoutPandas())
        if given[0] == "serve":
            from dualform.store.files.startup import bound_arenas

            bound_arenas()  # before the first thread starts, because a thread keeps its memory pool
            sys.setswitchinterval(_SWITCH_SECONDS)
        _read_ahead(given)
        if given[0] != "serve":
            gc.set_threshold(_OBJECTS)


def _read_ahead(given: Sequence[str]) -> None:
    """Starts to read the files that a question about a folder needs, while its command is loaded."""
    folder = next((word for word in given[1:] if os.path.isfile(os.path.join(word, "memory.json"))), None)
    if folder is None:
        return
    from dualform.store.files.startup import read_ahead

    layers = [name for text in _said(given, "--layer") for name in dict.fromkeys((text, *text.split(",")))]
    query_sets = [text.partition("/")[0] for text in _said(given, "--query")]
    read_ahead(folder, layers, query_sets, codes=given[0] == "topk")


def _said(given: Sequence[str], option: str) -> list[str]:
    """All values of an option on the command line."""
    said = [after for word, after in pairwise(given) if word == option]
    return said + [word.removeprefix(f"{option}=") for word in given if word.startswith(f"{option}=")]


def run() -> NoReturn:
    """The command as a process. After a question it exits without cleaning up its libraries, which would take a tenth
    of the time.
    """
    code = main()
    for stream in (sys.stdout, sys.stderr):
        if not _written(stream):
            code = code or 1
    if sys.argv[1:] and sys.argv[1] in ASKING - {"serve"}:
        os._exit(code)
    sys.exit(code)


def _written(stream: TextIO) -> bool:
    """Whether the stream could be flushed. If not, the rest is dropped, or Python's own last flush would fail again."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
