"""dualform delete: takes samples out of a memory for good, after it was said what that means."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dualform_client.cli.failure import FAILED
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line, print_note
from dualform_client.cli.suggestions import complete_folder, complete_query_set
from dualform_client.cli.target import check_run

if TYPE_CHECKING:
    from dualform.deletion.delete import Deletion

NOT_PROMISED = (
    "Not promised is that nothing tells of them. The weights stay as they are, and W_T less W_0 and less the sum of "
    "the others is the sum of what is deleted, whether it is kept or not. Copies of the folder, and processes that "
    "have it open, are not reached. Where a batch was normalised (BatchNorm), the keys of the others in it tell of a "
    "single one that is missing."
)


@click.command()
@click.argument("run", shell_complete=complete_folder)
@click.option("--where", required=True, metavar="SQL", help="The samples to delete, by columns of the sample.")
@click.option(
    "--query-set",
    "query_sets",
    multiple=True,
    metavar="NAME",
    help="A query set to remove as well; repeatable. Default: none.",
    shell_complete=complete_query_set,
)
@click.option("--cut-off", is_flag=True, help="Delete although the recording was cut off: nobody goes on with it.")
@click.option("--yes", is_flag=True, help="Delete without asking first.")
@json_option
def delete(run: str, where: str, query_sets: tuple[str, ...], cut_off: bool, yes: bool, as_json: bool) -> int:
    """Take samples out of a memory for good.

    No key, value or column of theirs is stored. The memory is written anew without them, next to the old one, and takes
    its place in one step; the old files are removed. Slots are numbered anew. What they brought to the weights stays as
    one sum where the optimizer is SGD, so that weights at the end still add up; under other optimizers scores are left,
    and the weights of the end.

    Not promised is that nothing tells of them: W_T less W_0 and less the sum of the others is the sum of what was
    deleted, and where few slots are deleted it tells what they were.

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
    if as_json:
        print_json({**asdict(done), "note": NOT_PROMISED})
    else:
        print_line(f"deleted: {_counted(done)}")
        if yes and done.unsure:
            print_note(_stay(done.unsure))
    return 0


def _counted(found: Deletion) -> str:
    slots = ", ".join(f"{count} {space} slots" for space, count in found.slots.items())
    return f"{found.samples} samples ({slots}) of {found.steps} steps"


def _said(found: Deletion) -> list[str]:
    """What is about to happen, a sentence or two each."""
    said = [f"This deletes {_counted(found)}: no key, value or column of theirs is stored."]
    if found.summed:
        said.append(
            f"What they brought to {', '.join(found.summed)} is kept as one sum, as of the end: weights as of an "
            f"earlier step are known up to step {found.first_step} alone."
        )
    if found.scores_only:
        said.append(
            f"Of {', '.join(found.scores_only)} nothing can be rebuilt any more from step {found.first_step} on: "
            "scores are left, and the weights of the end."
        )
    if found.query_sets:
        said.append(f"Query sets that are removed: {', '.join(found.query_sets)}.")
    if found.unsure:
        said.append(_stay(found.unsure))
    if found.shown:
        lost = ", ".join(f"{count} of {_dataset(name)}" for name, count in found.shown.items())
        said.append(f"Preview sets lose what they looked like: {lost}.")
    if found.preview_sets:
        said.append(
            f"Preview sets that are removed: those of {', '.join(map(_dataset, found.preview_sets))}. No sample is "
            "left of theirs, or some that go have no number."
        )
    if found.others:
        said.append(
            f"{_listed(found.others)} are kept up to step {found.first_step} and as of the end, {found.span} "
            f"step{'s' * (found.span != 1)} on; what they were in between is removed. The fewer steps these are, the "
            "more the difference tells of their batches."
        )
    if found.removed:
        said.append(f"Removed as well, for they are no part of the memory: {', '.join(found.removed)}.")
    said.append(NOT_PROMISED)
    if found.few:
        said.append("They are so few that the sum spans their keys.")
    if found.alone:
        said.append(f"{found.alone} steps were theirs alone: what is kept of such a step tells of them.")
    return said


def _stay(query_sets: tuple[str, ...]) -> str:
    return (
        f"Query sets that stay: {', '.join(query_sets)}. One may hold an input of theirs where the keys do not tell "
        "of it: behind dropout or normalised batches, in deeper layers, and where keys are not stored. Name it by "
        "--query-set to remove it."
    )


def _dataset(name: str) -> str:
    return name or "samples without a dataset"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
