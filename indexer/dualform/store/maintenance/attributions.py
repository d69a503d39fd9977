"""Tables of what samples did, which are made when a training is over and kept in its memory: SQL reads them.

    adjoints      name, query, example, the columns of the sample, value, steps
    retrainings   name, set, left_out, query, example, loss, change, steps
    left_out      name, set, dataset, sample, steps: the samples that each of them lacked

Each is kept under a name, in attributions/TABLE-NAME-CHECKSUM.arrow. They are of the training as it was then: `steps`
says how many steps it had, and deleting samples removes them. `example` is the stored one that a query is, as
SET/EXAMPLE; NULL where it is none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from dualform.errors import BadInput
from dualform.store.files.durable_files import checksum, make_folders, remove, write_whole
from dualform.store.locks import folder_lock
from dualform.store.manifest import FileMark, Manifest
from dualform.store.reading.snapshot import Snapshot
from dualform.store.weights import read_checked

FOLDER = "attributions/"
_INT, _TEXT, _NUMBER = pa.int64(), pa.string(), pa.float64()
_QUERY = {"query": _INT, "example": _TEXT}
TABLES: Mapping[str, Mapping[str, pa.DataType]] = {
    "adjoints": {**_QUERY, "dataset": _TEXT, "sample": _INT, "value": pa.float32(), "steps": _INT},
    "retrainings": {"set": _INT, "left_out": _INT, **_QUERY, "loss": _NUMBER, "change": _NUMBER, "steps": _INT},
    "left_out": {"set": _INT, "dataset": _TEXT, "sample": _INT, "steps": _INT},
}
"""The columns that each has where nothing is kept; adjoints then have more."""
_FILE = re.compile(rf"{FOLDER}({'|'.join(TABLES)})-([\w.-]{{1,64}})-[0-9a-f]{{16}}\.arrow")


def check_name(name: str | None) -> None:
    """Raises BadInput for a name that is no plain word; None keeps nothing."""
    if name is not None and not (isinstance(name, str) and re.fullmatch(r"[\w.-]{1,64}", name)):
        raise BadInput(
            f"{name!r:.40} cannot name rows.", hint="Use up to 64 letters, digits, '.', '_' and '-'.", field="name"
        )


def keep(path: str | os.PathLike[str], name: str, tables: Mapping[str, pa.Table]) -> None:
    """Keep rows of tables under a name in the memory of one run, all of them or none, in place of those that had it."""
    folder = Path(path).absolute()
    with folder_lock(folder):
        manifest = Manifest.read(folder)
        named = ((file, _FILE.fullmatch(file)) for file in manifest.files)
        before = {file for file, found in named if found and found[1] in tables and found[2] == name}
        for table, rows in tables.items():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_file(sink, rows.schema) as writer:
                writer.write_table(rows)
            content = sink.getvalue().to_pybytes()
            file = f"{FOLDER}{table}-{name}-{checksum(content)[:16]}.arrow"
            make_folders((folder / file).parent)
            write_whole(folder / file, content)
            manifest.files[file] = FileMark(len(content), checksum(content))
            before.discard(file)
        for file in before:
            del manifest.files[file]
        manifest.write(folder)
        for file in before:
            remove(folder / file)


def table(memory: Snapshot, name: str) -> pa.Table:
    """Its rows under all names, of all runs, one under another. Raises Damaged where a file is not what was written."""
    parts = [pa.schema({"name": _TEXT, **TABLES[name]}).empty_table()]
    for run in memory.runs:
        for file, mark in run.manifest.files.items():
            if (found := _FILE.fullmatch(file)) and found[1] == name:
                rows = pa.ipc.open_file(read_checked(run.path / file, mark)).read_all()
                parts.append(rows.add_column(0, "name", pa.array([found[2]] * rows.num_rows)))
    return pa.concat_tables(parts, promote_options="permissive")
