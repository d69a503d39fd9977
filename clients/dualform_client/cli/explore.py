"""dualform explore: pages over memories for a browser, or predictions of one in a file that needs no server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_client.cli.help import command, complete_folder
from dualform_client.cli.options import (
    FILE,
    SECONDS,
    check_output_file,
    connected,
    named_function,
    reaching,
    read_token,
    replacing,
)
from dualform_client.cli.printing import Note, Report, emit, progress_bars
from dualform_client.target import check_folder
from dualform_proto.address import is_served


@command()
@reaching
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True, shell_complete=complete_folder)
@click.option("--address", default="127.0.0.1:50080", show_default=True, metavar="HOST:PORT", help="Listen here.")
@click.option("--open/--no-open", "browse", help="Open the start page in a browser.")
@click.option("--access", type=FILE, metavar="FILE", help="Ask visitors for the token in FILE.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Accept this host name, too.")
@click.option("--root-path", default="", metavar="PATH", show_default="/", help="Serve under PATH of a proxy.")
@click.option(
    "--deadline",
    type=SECONDS,
    metavar="SECONDS",
    default=15.0,
    show_default="15",
    help="Limit the time for a part of a page.",
)
@click.option(
    "--preview",
    metavar="FUNCTION",
    show_default="stored",
    help="Call preview(dataset, sample) for previews.",
)
@click.option(
    "--tokenizer",
    type=FILE,
    metavar="FILE",
    help="Name tokens by FILE of the tokenizers package.",
)
@click.option(
    "--scores",
    multiple=True,
    metavar="FILE[;OPTION]",
    help="Show another package's scores; repeatable.",
)
@click.option(
    "--export",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page to FILE, and end.",
)
@click.option(
    "--item",
    "items",
    multiple=True,
    metavar="SET/EXAMPLE",
    show_default="up to 12",
    help="Export this prediction; repeatable.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="COL:VALUE",
    show_default="each dataset",
    help="Export this ablation; repeatable.",
)
@click.option("--force", is_flag=True, help="Replace the exported file if it exists.")
def explore(
    targets: tuple[str, ...],
    ram: str | None,
    address: str,
    hosts: tuple[str, ...],
    access: Path | None,
    root_path: str,
    deadline: float,
    preview: str | None,
    tokenizer: Path | None,
    scores: tuple[str, ...],
    export: Path | None,
    items: tuple[str, ...],
    without: tuple[str, ...],
    force: bool,
    browse: bool,
    **reach: Any,
) -> Report | None:
    """Browse predictions and the training data behind them.

    It serves pages until Ctrl-C. An address that other machines can reach needs
    --access. --preview takes FILE.py:FUNCTION; nothing else is run or changed.

    \b
    Examples:
      dualform explore runs/demo --open
      dualform explore runs/demo --export page.html --item test-digits/17
    """
    from dualform_explorer.memories import names_of
    from dualform_explorer.preview_function import check_preview_function
    from dualform_explorer.server import ExplorerConfig, serve
    from dualform_explorer.words import Words

    for target in targets:
        if Path(target).exists() or not is_served(target):
            check_folder(Path(target))
    if len(set(targets)) < len(targets):
        raise BadInput("A TARGET is given twice.", hint="Name each once.", field="targets")
    if export is not None and scores:
        raise BadInput("An export has no --scores.", hint="Leave them out.", field="scores")
    given = {"--item": items, "--without": without, "--force": force}
    if export is None and (stray := [name for name, said in given.items() if said]):
        raise BadInput(f"Without --export FILE there can be no {' or '.join(stray)}.", field="export")
    function = None if preview is None else named_function(preview, "preview")
    if function is not None:
        check_preview_function(function)
    words = None if tokenizer is None else Words(tokenizer)
    opened = {
        name: partial(_opened, target, ram, reach) for name, target in zip(names_of(targets), targets, strict=True)
    }
    if export is not None:
        return _export(opened, export, items, without, force, function, words)
    token = None if access is None else read_token(access)
    config = ExplorerConfig(address, hosts, token, root_path, deadline)

    def ready(url: str) -> None:
        emit(Report({"url": url}, [f"exploring {', '.join(opened)} at {url}"]))
        sys.stdout.flush()

    serve(opened, config, ready, browse, function, words, scores)
    return None


def _opened(target: str, ram: str | None, reach: dict[str, Any]) -> Answers:
    return connected(target, ram if Path(target).exists() else None, **reach)


def _export(
    opened: Mapping[str, Callable[[], Answers]],
    out: Path,
    items: Sequence[str],
    without: Sequence[str],
    force: bool,
    preview: Callable[[str | None, int], Any] | None,
    words: Any,
) -> Report:
    """`opened`: functions that open or connect to a memory, by name. `preview`: replaces the stored preview sets.
    `words`: names labels and outputs that have no recorded name.

    Raises BadInput for several memories, unknown predictions or a file that would be too large, AlreadyExists if the
    file exists, and FolderError if it cannot be made.
    """
    from dualform_explorer.export import choose, exported_page
    from dualform_explorer.memories import Beside, RememberedAnswers
    from dualform_explorer.preview_function import AnswersWithPreviews
    from dualform_explorer.view import Snapshot

    if len(opened) > 1:
        raise BadInput("--export takes one TARGET.", hint="Export each memory to its own file.", field="targets")
    check_output_file(out, force, "export")
    ((name, open_one),) = opened.items()
    answers = open_one() if preview is None else AnswersWithPreviews(open_one(), preview)
    with RememberedAnswers(answers, Beside(words)) as memory, progress_bars() as progress:
        snapshot = Snapshot(memory, memory.info())
        choice = choose(snapshot, items, without)
        tell = progress and partial(progress, "drawing")
        page = exported_page(snapshot, name, choice, tell=tell)
    try:
        with replacing(out) as file:
            file.write_text(page.html, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror}.", field="export") from None
    size = out.stat().st_size
    masks = ["; ".join(chip.words for chip in chips) for chips in choice.masks[1:]]
    items = [state.item for state in choice.items]
    said = f"{len(items)} predictions" if len(items) > 1 else items[0]
    under = f", whole and without {', without '.join(masks)}" if masks else ""
    failed = [Note(f"{page.failed} parts have no answer; the page says why in their place.")] if page.failed else []
    return Report(
        {"out": str(out), "bytes": size, "items": items, "without": masks, "failed": page.failed},
        [f"{out}: {said}{under}; {size / 2**20:.1f} MiB", *failed],
    )
