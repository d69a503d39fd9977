"""Notebooks as pages of the site, with the outputs that they are stored with: nothing runs while the site is built."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_HEAD = (
    '*This page is a notebook with its outputs: <a href="{name}.ipynb" download>{name}.ipynb</a>, '
    "to be opened in Jupyter.*\n\n"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page beside each notebook, and a file for each picture in it."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            for generated in _generated(file, config):
                files.append(generated)
    return files


def _generated(file: File, config: MkDocsConfig) -> Iterator[File]:
    """The pictures of a notebook, then its page."""
    path = PurePosixPath(file.src_uri)
    notebook = nbformat.reads(file.content_string, as_version=4)  # type: ignore[no-untyped-call]
    title, *cells = notebook.cells
    parts = [title.source, _HEAD.format(name=path.stem)]
    for number, cell in enumerate(cells):
        if cell.cell_type != "code":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for place, output in enumerate(cell.outputs):
            data = output.get("data", {})
            if "image/png" in data:
                picture = path.with_name(f"{path.stem}-{number}-{place}.png")
                yield File.generated(config, str(picture), content=base64.b64decode(data["image/png"]))
                parts.append(f"![{cell.metadata.get('alt', 'What the cell above draws')}]({picture.name})")
            else:
                parts.append(_shown(output))
    yield File.generated(config, str(path.with_suffix(".md")), content="\n\n".join(parts))


def _shown(output: Any) -> str:
    """A table as it is, and whatever else was printed as text."""
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output">\n{data["text/html"].strip()}\n</div>'
    text = output.text if output.output_type == "stream" else data["text/plain"]
    return f'<div class="output" markdown>\n\n````text\n{text.rstrip()}\n````\n\n</div>'
