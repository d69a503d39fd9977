"""Commands that maintain memories and the shell: copy, delete and completion."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from dualform.answers.table import counted
from dualform_client.cli.help import FAILED, command, complete_folder, complete_query_set
from dualform_client.cli.options import check_run
from dualform_client.cli.printing import Note, Report, print_note, progress_bar

if TYPE_CHECKING:
    from dualform.deletion.delete import Deletion

NOT_PROMISED = (
    "This is not unlearning. The trained weights stay as they are, and W_T less W_0 and less the sum of the other "
    "slots is the sum of the deleted ones, whether it is kept or not. Copies of the folder, and processes that have "
    "it open, are not reached. If a batch was normalised (BatchNorm), the other keys of the batch reveal a single "
    "one that is missing."
)
_VARIABLE = "_DUALFORM_COMPLETE"
"""The environment variable that click reads at the start of the command."""


@command()
@click.argument("run", shell_complete=complete_folder)
@click.argument("copy")
def copy(run: str, copy: str) -> Report:
    """Copy a memory to a new folder, and check the copy.

    A training may go on recording into RUN: COPY has what was on disk at one
    moment. The folder COPY appears once every check has passed; a copy that
    fails leaves nothing.

    \b
    Example:
      dualform copy runs/demo backups/demo
    """
    check_run(run)
    from dualform.store.maintenance.copying import copy_memory

    with progress_bar("copying") as progress:
        made = copy_memory(run, copy, progress)
    lines = [f"{copy} has {counted(made.steps, 'step')} and passed every check", made.cut_off]
    return Report({"copy": copy, "steps": made.steps, "cut_off": made.cut_off}, filter(None, lines))


@command()
@click.argument("run", shell_complete=complete_folder)
@click.option("--where", required=True, metavar="SQL", help="Delete samples for which this is true.")
@click.option(
    "--query-set",
    "query_sets",
    multiple=True,
    metavar="NAME",
    help="Remove this query set, too; repeatable.",
    shell_complete=complete_query_set,
)
@click.option("--cut-off", is_flag=True, help="Delete although the recording never finished.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(run: str, where: str, query_sets: tuple[str, ...], cut_off: bool, yes: bool) -> Report | int:
    """Remove samples from a memory for good.

    It is not unlearning: no model changes. The memory is rewritten without the
    samples' keys, values and columns; slots get new numbers.

    Under SGD, what they added to the weights stays as one sum, so that the final
    weights still add up. If few slots are deleted, that sum reveals what they
    were. Under other optimizers only scores and the final weights remain.

    \b
    Example:
      dualform delete runs/mnist --where "sample = 1234"
    """
    check_run(run)
    from dualform.deletion.delete import delete as carry_out, planned_deletion

    if not yes:
        for sentence in _said(planned_deletion(run, where, query_sets=query_sets, cut_off=cut_off)):
            print_note(sentence)
        if not click.confirm("Delete them? This cannot be undone.", err=True):
            print_note("Nothing was deleted.")
            return FAILED
    done = carry_out(run, where, query_sets=query_sets, cut_off=cut_off)
    stay = [Note(_stay(done.unsure))] if yes and done.unsure else []
    return Report({**asdict(done), "note": NOT_PROMISED}, [f"deleted: {_counted(done)}", *stay])


def _counted(found: Deletion) -> str:
    slots = ", ".join(counted(count, f"{space} slot") for space, count in found.slots.items())
    return f"{counted(found.samples, 'row')} ({slots}) of {counted(found.steps, 'step')}"


def _said(found: Deletion) -> list[str]:
    """Sentences that say what a deletion does, before it is confirmed."""
    lost = ", ".join(f"{count:,} of {_dataset(name)}" for name, count in found.shown.items())
    sentences: tuple[tuple[object, str], ...] = (
        (True, f"This deletes {_counted(found)}, with their keys, values and columns."),
        (
            found.summed,
            f"What they added to {', '.join(found.summed)} is kept as one sum, as of the end. Weights as of an earlier "
            f"step are known only up to step {found.first_step}.",
        ),
        (
            found.scores_only,
            f"{', '.join(found.scores_only)} can no longer be rebuilt from step {found.first_step} on: only scores and "
            "the final weights remain.",
        ),
        (found.query_sets, f"These query sets are removed: {', '.join(found.query_sets)}."),
        (found.unsure, _stay(found.unsure)),
        (found.shown, f"Previews are removed: {lost}."),
        (
            found.preview_sets,
            f"Preview sets that are removed: those of {', '.join(map(_dataset, found.preview_sets))}. None of "
            "their samples is left, or some of the deleted ones have no number.",
        ),
        (
            found.others,
            f"{_listed(found.others)} are kept up to step {found.first_step} and as of the end, "
            f"{counted(found.span, 'step')} later; their values in between are removed. The fewer steps these are, the "
            "more the difference reveals of their batches.",
        ),
        (
            found.removed,
            f"These files are not part of the memory and are removed, too: {', '.join(found.removed)}.",
        ),
        (True, NOT_PROMISED),
        (found.few, "They are so few that the sum spans their keys."),
        (
            found.alone,
            f"{counted(found.alone, 'step')} had no other samples: what is kept of such a step reveals them.",
        ),
    )
    return [sentence for holds, sentence in sentences if holds]


def _stay(query_sets: tuple[str, ...]) -> str:
    return (
        f"Query sets that stay: {', '.join(query_sets)}. They may hold an input of the deleted samples that their keys "
        "do not reveal: after dropout or batch normalisation, in deeper layers, and if keys are not stored. Remove one "
        "with --query-set NAME."
    )


def _dataset(name: str) -> str:
    return name or "samples without a dataset"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


@command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> Report:
    """Print a shell completion script.

    It completes commands and options and, once TARGET is on the line, layers,
    query sets and columns. bash must be 4.4 or newer.

    \b
    Examples:
      eval "$(dualform completion bash)"
      dualform completion zsh > ~/.dualform.zsh    # and source it in ~/.zshrc
      dualform completion fish > ~/.config/fish/completions/dualform.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows the shells that the argument allows"
    # Its `source` would ask this machine's bash for its version, which need not be the reader's shell.
    completer = found(click.get_current_context().find_root().command, {}, "dualform", _VARIABLE)
    script = completer.source_template % completer.source_vars()
    return Report({"shell": shell, "script": script}, [script.strip()])
