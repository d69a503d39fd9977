"""Tables of what samples did, which are made when a training is over and kept in its memory: SQL reads them.

    adjoints      name, query, the columns of the sample, value, steps
    retrainings   name, set, left_out, query, loss, change, steps

Each is kept under a name, in attributions/TABLE-NAME.arrow. They are of the training as it was then: `steps` says how
many steps it had, and deleting samples removes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from dualform.errors import BadInput
from dualform.store.durable_files import checksum, make_folders, write_whole
from dualform.store.folder_lock import folder_lock
from dualform.store.manifest import FileMark, Manifest
from dualform.store.snapshot import Snapshot
from dualform.store.weights import read_checked

FOLDER = "attributions/"
TABLES = ("adjoints", "retrainings")
_FILE = re.compile(rf"{FOLDER}({'|'.join(TABLES)})-([\w.-]{{1,64}})\.arrow")


def keep(path: str | os.PathLike[str], table: str, name: str, rows: pa.Table) -> None:
    """Keep rows under a name in the memory of one run, in place of those that had it. Raises BadInput for a name that
    is no plain word.
    """
    folder, file = Path(path).absolute(), f"{FOLDER}{table}-{name}.arrow"
    if not isinstance(name, str) or not _FILE.fullmatch(file):
        raise BadInput(
            f"{name!r:.40} cannot name rows of {table}.", hint="Use up to 64 letters, digits, '.', '_' and '-'.",
            field="name",
        )  # fmt: skip
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    content = sink.getvalue().to_pybytes()
    with folder_lock(folder):
        manifest = Manifest.read(folder)
        make_folders((folder / file).parent)
        write_whole(folder / file, content)
        manifest.files[file] = FileMark(len(content), checksum(content))
        manifest.write(folder)


def kept(memory: Snapshot) -> Mapping[str, Mapping[str, str]]:
    """By table, the file of each name under which a memory has rows of it."""
    found: dict[str, dict[str, str]] = {}
    for file in memory.manifest.files:
        if match := _FILE.fullmatch(file):
            found.setdefault(match[1], {})[match[2]] = file
    return found


def table(memory: Snapshot, files: Mapping[str, str]) -> pa.Table:
    """The rows of some files, by name, under one another. Raises Damaged where one is not what was written."""
    parts = []
    for name, file in files.items():
        rows = pa.ipc.open_file(read_checked(memory.path / file, memory.manifest.files[file])).read_all()
        parts.append(rows.add_column(0, "name", pa.array([name] * rows.num_rows)))
    return pa.concat_tables(parts, promote_options="permissive")
