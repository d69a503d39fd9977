"""dualform explore --export: predictions of a memory as one file, which needs no server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_client.cli.output_file import check_output_file
from dualform_client.cli.printing import print_json, print_line, print_note
from dualform_client.cli.progress import progress_bars


def write_page(
    opened: Mapping[str, Callable[[], Answers]],
    out: Path,
    items: Sequence[str],
    without: Sequence[str],
    force: bool,
    as_json: bool,
    preview: Callable[[str | None, int], Any] | None,
) -> None:
    """`opened`: by name, what opens or connects to a memory; `preview`: what training samples look like, in place of
    its preview sets.

    Raises BadInput for several, for what is not there and for a file that would be too large; AlreadyExists for one
    that is there, and FolderError where none can be.
    """
    from dualform_explorer.export.choice import choose
    from dualform_explorer.export.page import exported_page
    from dualform_explorer.preview_function import with_previews
    from dualform_explorer.remembered import RememberedAnswers

    if len(opened) > 1:
        raise BadInput("One memory is exported at a time.", hint="Name one TARGET.", field="targets")
    check_output_file(out, force, "export")
    ((name, open_one),) = opened.items()
    with RememberedAnswers(with_previews(open_one(), preview)) as memory, progress_bars() as progress:
        info = memory.info()
        choice = choose(memory, info, items, without)
        tell = progress and partial(progress, "drawing")
        page = exported_page(memory, info, name, choice, tell=tell)
    size = _write(out, page.html)
    masks = ["; ".join(chip.words for chip in chips) for chips in choice.masks[1:]]
    if as_json:
        print_json(
            {
                "out": str(out),
                "bytes": size,
                "items": [state.item for state in choice.items],
                "without": masks,
                "failed": page.failed,
            }
        )
        return
    said = f"{len(choice.items)} predictions" if len(choice.items) > 1 else choice.items[0].item
    under = f", with nothing left out and without {', without '.join(masks)}" if masks else ""
    print_line(f"{out}: {said}{under}; {size / 2**20:.1f} MiB")
    if page.failed:
        print_note(f"{page.failed} parts have no answer, and say why in their place.")


def _write(out: Path, html: str) -> int:
    """Under a temporary name first, so that no half file stands under the name asked for; its bytes."""
    part = out.with_name(f".{out.name}.partial")
    try:
        part.write_text(html, encoding="utf-8", newline="\n")
        os.replace(part, out)
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror}.", field="export") from None
    finally:
        part.unlink(missing_ok=True)
    return out.stat().st_size
