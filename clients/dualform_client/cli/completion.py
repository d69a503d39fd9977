"""dualform completion: what a shell runs to complete layers, query sets, columns and studies."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line

_VARIABLE = "_DUALFORM_COMPLETE"
"""Of the environment; click reads it where the command begins."""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print the lines by which a shell completes commands.

    Layers, query sets and columns are completed once TARGET is on the line: those of a folder, or of a server that
    answers at once. bash must be 4.4 or newer.

    \b
    Example:
      eval "$(dualform completion bash)"
      dualform completion zsh > ~/.dualform-completion.zsh     # and source it in ~/.zshrc
      dualform completion fish > ~/.config/fish/completions/dualform.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows the shells that the argument allows"
    # Its `source` would ask this machine's bash for its version, which need not be the reader's shell.
    completer = found(click.get_current_context().find_root().command, {}, "dualform", _VARIABLE)
    script = completer.source_template % completer.source_vars()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        print_line(script.strip())
