"""The command and its subcommands, and the way every error takes out of it: a message and a code, never a traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.metadata import version
from types import ModuleType

import click

from dualform_client.cli.ask import output, sums, topk
from dualform_client.cli.check import check
from dualform_client.cli.compare import compare
from dualform_client.cli.estimate import estimate
from dualform_client.cli.failure import report_failure
from dualform_client.cli.forget import forget
from dualform_client.cli.look import info, sql, verify
from dualform_client.cli.serving import health, serve
from dualform_client.cli.train import demo, study
from dualform_client.cli.weights import weights

COMMANDS = (
    *(demo, study, estimate, serve, info, topk, sums, output),
    *(compare, weights, verify, check, forget, sql, health),
)

ASKING = frozenset(command.name for command in (serve, info, topk, sums, output, compare, weights, verify, sql))
"""Commands that do nothing but answer questions about a memory."""


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(version("dualform"), prog_name="dualform")
@click.pass_context
def dualform(context: click.Context) -> None:
    """The training of a neural network as a memory that answers exact questions.

    TARGET is a memory's folder, or host:port of a server. Every command takes --json: one JSON object on stdout,
    progress on stderr.

    \b
    Example:
      dualform demo --out runs/demo
      dualform info runs/demo
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in COMMANDS:
    dualform.add_command(command)


class WithoutPandas(MetaPathFinder):
    """Arrow loads pandas where it is installed, to know its frames. None come here: a fifth of a first answer."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process.", name=fullname)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0, 1 for failures, 2 for bad usage or input, 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and given[:1] and given[0] in ASKING:
        sys.meta_path.insert(0, WithoutPandas())
    as_json = "--json" in given[: given.index("--")] if "--" in given else "--json" in given
    for stream in (sys.stdout, sys.stderr):
        # Texts of a memory that the terminal's encoding lacks are shown with a substitute.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = dualform.main(given, prog_name="dualform", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has enough of it (`dualform … | head`). Python's own last flush must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    except (Exception, KeyboardInterrupt) as error:
        return report_failure(error, as_json)
    return code if isinstance(code, int) else 0
