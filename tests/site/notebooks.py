"""The notebooks of docs/, run from the top in a kernel of their own.

python -m tests.site.notebooks stores each with the outputs of such a run.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
SECONDS = 600
"""What a cell may take where the machine is busy."""


def run(path: Path, kernel: str = "python3") -> Any:
    """The notebook with the outputs of this run. Raises CellExecutionError for what a cell raises."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=SECONDS, kernel_name=kernel, resources=where, record_timing=False)
        client.execute(env=os.environ | {"TMPDIR": folder})  # memories of its temporary folders go with it
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """What a cell printed comes in one or in several pieces, as the kernel had time: here in one."""
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    others = [output for output in outputs if output.output_type != "stream"]
    return [nbformat.v4.new_output("stream", name="stdout", text=printed), *others] if printed else others


if __name__ == "__main__":
    for path in NOTEBOOKS:
        nbformat.write(run(path), path)
