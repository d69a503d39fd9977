"""memory.json: what a memory consists of and how far it is committed.

It is replaced by atomic rename as the last act of every commit, so what it says is on disk. The process that writes the
first shard writes it; each other shard has a shard.json of the same form in its own folder, which speaks of it alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dualform.errors import NotAMemory
from dualform.faults import shortage
from dualform.store.begun_folder import is_only_begun
from dualform.store.deleted_samples import DeletedSamples
from dualform.store.durable_files import checksum, read_regular, write_whole
from dualform.store.header import Header
from dualform.store.layer import Layer
from dualform.store.manifest_schema import check_fields
from dualform.store.mark import ContinuedRun, Mark
from dualform.store.missing_files import damaged
from dualform.store.others import Others
from dualform.store.sampling import Sampling
from dualform.store.stored_optimizer import StoredOptimizer, for_one
from dualform.store.tables import (
    FIRST_STEP,
    OPTIONAL,
    OTHERS,
    SAMPLES,
    SETTINGS,
    SHARES,
    TABLES,
    ColumnTypes,
    extents_table,
    extents_types,
)

FORMAT = 2
FILE = "memory.json"
SHARD_FILE = "shard.json"


@dataclass(frozen=True)
class FileMark:
    """A file beside the segments (weights, query sets), as committed."""

    bytes: int
    checksum: str


@dataclass(frozen=True)
class TableMark:
    """How far a DuckDB table is committed: rows beyond it belong to a commit that was cut off."""

    rows: int
    digests: dict[str, str]
    """Running digest of each column, commit after commit (tables.py); "" before its first entry."""


@dataclass
class Shard:
    """The part of a memory that one process wrote. Without tables: its own shard.json says what it holds."""

    folder: str = "shard-00000"
    commits: int = 0
    """The rows since the last one stand in the folder's journal-NNNNNN of this number, where it exists."""
    tables: dict[str, TableMark] = field(default_factory=dict)
    journal: str = ""
    """The id of that journal once it was begun, in hexadecimal; a memory of before does not say it."""

    def to_json(self) -> dict[str, Any]:
        tables = {name: vars(mark) for name, mark in self.tables.items()}
        said = {"folder": self.folder, "commits": self.commits, "tables": tables}
        return said | ({"journal": self.journal} if self.journal else {})

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Shard:
        tables = {name: TableMark(**mark) for name, mark in fields["tables"].items()}
        return cls(fields["folder"], fields["commits"], tables, fields.get("journal", ""))


def shard_folder(number: int) -> str:
    """The name of a shard's folder."""
    return f"shard-{number:05d}"


@dataclass
class Manifest:
    """The content of memory.json."""

    layers: list[Layer]
    skipped: dict[str, str]
    """Layers that were not recorded, with the reason."""
    optimizers: list[StoredOptimizer]
    """At least one."""
    spaces: list[str]
    """Names of the slot spaces; the view of the first is `slots`, that of each other has the space's name."""
    columns: dict[str, dict[str, str]]
    """DuckDB types of what differs from memory to memory: "samples" (all columns of that table), "steps" (settings of
    the optimizer), "factors" (where each optimizer has its own `first_step`), and by space the token columns, under
    the type of one slot."""
    shards: list[Shard]
    files: dict[str, FileMark] = field(default_factory=dict)
    query_sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows and layers of each query set, and how many steps were taken by then."""
    preview_sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By dataset, "" for samples without one: kind, file and number of samples of its preview set (previews/)."""
    buffers: dict[str, dict[str, str]] = field(default_factory=dict)
    """By parameter and buffer, the checksum of what the optimizer kept when the recorder left."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Further names of recorded parameters in the state dict -> the name they are recorded under: tied weights."""
    halved: dict[str, str] = field(default_factory=dict)
    """By parameter, "bfloat16" or "float16" where it is of that type and its updates are rounded as the rule rounds."""
    others: Others | None = None
    """What is kept of parameters and buffers that no slot explains; None where nothing is."""
    final: dict[str, str] = field(default_factory=dict)
    """Parameter or buffer -> checksum of what it was when the recorder left."""
    marks: list[Mark] = field(default_factory=list)
    """Moments at which the training may be resumed, ascending."""
    runs: list[ContinuedRun] = field(default_factory=list)
    """The further runs of a training that was resumed in this folder; of its first run alone."""
    deleted: DeletedSamples | None = None
    """What was taken out of the memory, all runs of this folder together; of its first run alone."""
    sampling: Sampling | None = None
    """How slots were sampled to hold a budget; None where all were kept."""
    repaired: list[str] = field(default_factory=list)
    """What a repair dropped of it and why, one sentence each (repair.py)."""
    recording: bool = True
    """False once the recorder has left in good order."""
    format: int = FORMAT

    def tables(self) -> dict[str, ColumnTypes]:
        """Every table of a shard's slots.duckdb but `commits`, with its columns as of now."""
        settings, base = self.columns["steps"], dict(TABLES)
        for name in ("steps", "parameter_groups"):
            base[name] = {**TABLES[name], **settings}
        base["factors"] = {**TABLES["factors"], **self.columns.get("factors", {})}
        extents = {extents_table(space): extents_types(self.columns[space]) for space in self.spaces}
        further = {name: types for name, types in OPTIONAL.items() if name in self.columns}
        kept = {**(OTHERS if self.others else {}), **(SHARES if self.sampling else {})}
        return {"samples": self.columns["samples"], **extents, **base, **further, **kept}

    @property
    def digest(self) -> str:
        """The checksum of all that it says."""
        return checksum(_canonical(self._fields()))

    def write(self, folder: Path, file: str = FILE) -> None:
        """Replace memory.json, or a shard's shard.json, durably."""
        fields = self._fields()
        write_whole(folder / file, _readable(fields | {"checksum": checksum(_canonical(fields))}).encode())

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "format": self.format,
            "optimizer": for_one(self.optimizers),
            "layers": [layer.to_json() for layer in self.layers],
            "skipped": self.skipped,
            "spaces": self.spaces,
            "columns": self.columns,
            "shards": [shard.to_json() for shard in self.shards],
            "files": {name: vars(mark) for name, mark in sorted(self.files.items())},
            "probes": self.query_sets,
            "buffers": self.buffers,
            "aliases": self.aliases,
            "recording": self.recording,
        }
        if self.preview_sets:
            fields["galleries"] = self.preview_sets
        if self.halved:
            fields["halved"] = self.halved
        if self.others is not None:
            fields["others"] = self.others.to_json()
        if self.final:
            fields["final"] = self.final
        if len(self.optimizers) > 1:
            fields["optimizers"] = [optimizer.to_json() for optimizer in self.optimizers]
        if self.marks:
            fields["marks"] = [mark.to_json() for mark in self.marks]
        if self.runs:
            fields["runs"] = [vars(run) for run in self.runs]
        if self.deleted is not None:
            fields["forgotten"] = self.deleted.to_json()  # as format 2 calls it
        if self.sampling is not None:
            fields["sampling"] = self.sampling.to_json()
        if self.repaired:
            fields["repaired"] = self.repaired
        return fields

    @classmethod
    def read(cls, folder: Path, file: str = FILE) -> Manifest:
        """The manifest of a memory's folder, or of a shard's.

        Raises NotAMemory where there is none or its format is another, Damaged where it was altered.
        """
        path = folder / file
        try:
            content = read_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            if file == FILE and is_only_begun(folder):
                raise NotAMemory(
                    f"{folder} does not contain a dualform memory yet: its recorder was killed before the first step "
                    "began, or is starting now.",
                    hint="Record into it; a new recorder removes the remains of an earlier one.",
                ) from None
            what = f"no {file}" if folder.is_dir() else "no folder"
            raise NotAMemory(
                f"{folder} is not a dualform memory ({what}).", hint="Pass the folder that a Recorder wrote."
            ) from None
        except OSError as error:
            raise shortage(error, f"{path} cannot be read: this process") or NotAMemory(
                f"{path} cannot be read: {error.strerror}."
            ) from None
        try:
            fields = json.loads(content)
            version = fields["format"]
            _check_format(folder, version)
            if fields.pop("checksum") != checksum(_canonical(fields)):
                raise ValueError("its checksum differs")
            check_fields(fields, whole=file == FILE)
            try:
                found = cls._from_json(fields)
            except NotAMemory as error:
                raise NotAMemory(f"{path}: {error.message}", hint=error.hint) from None
            found._check_tables()
            return found
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__} at {error}" if isinstance(error, KeyError) else str(error)
            raise damaged(path, f"was altered or cut short: {reason}") from None

    def _check_tables(self) -> None:
        """Raises ValueError where a shard has a table or column that what is said elsewhere leaves out."""
        types = self.tables()
        for part in self.shards:
            for table, mark in part.tables.items():
                known = table in {**OPTIONAL, **OTHERS, **SHARES} or table.startswith(extents_table(""))
                if known and table not in types:
                    raise ValueError(f"it has rows of the table {table!r}, but does not describe it")
                if left_out := sorted(mark.digests.keys() - types.get(table, mark.digests).keys()):
                    raise ValueError(f"columns does not list {left_out[0]!r} of the table {table!r}")
                own = table == "samples" or table.startswith(extents_table(""))
                if own and (unknown := sorted(types[table].keys() - mark.digests.keys())):
                    raise ValueError(f"columns lists {unknown[0]!r}, which the table {table!r} does not have")

    @classmethod
    def _from_json(cls, fields: dict[str, Any]) -> Manifest:
        optimizers = fields.get("optimizers") or [fields["optimizer"] | {"blocks": ()}]
        return cls(
            layers=[Layer.from_json(layer) for layer in fields["layers"]],
            skipped=fields["skipped"],
            optimizers=[StoredOptimizer.from_json(optimizer) for optimizer in optimizers],
            spaces=fields["spaces"],
            columns=fields["columns"],
            shards=[Shard.from_json(shard) for shard in fields["shards"]],
            files={name: FileMark(**mark) for name, mark in fields["files"].items()},
            query_sets=fields["probes"],
            preview_sets=fields.get("galleries", {}),
            buffers=_buffers(fields.get("buffers", {})),
            aliases=fields.get("aliases", {}),  # older files of this format have none
            halved=fields.get("halved", {}),
            others=Others.from_json(fields["others"]) if "others" in fields else None,
            final=fields.get("final", {}),
            marks=[Mark.from_json(mark) for mark in fields.get("marks", [])],
            runs=[ContinuedRun(**run) for run in fields.get("runs", [])],
            deleted=DeletedSamples(**fields["forgotten"]) if "forgotten" in fields else None,
            sampling=Sampling(**fields["sampling"]) if "sampling" in fields else None,
            repaired=fields.get("repaired", []),
            recording=fields["recording"],
            format=fields["format"],
        )


def first_manifest(header: Header, shards: list[Shard]) -> Manifest:
    """The manifest before the first batch."""
    spaces = list(dict.fromkeys(layer.space for layer in header.layers)) or ["sample"]
    columns = {"samples": dict(SAMPLES), "steps": {**SETTINGS, **header.settings}, **{space: {} for space in spaces}}
    if len(header.optimizers) > 1:
        columns["factors"] = dict(FIRST_STEP)
    return Manifest(
        layers=list(header.layers),
        skipped=dict(header.skipped),
        optimizers=list(header.optimizers),
        spaces=spaces,
        columns=columns,
        aliases=dict(header.aliases),
        halved=dict(header.halved),
        others=header.others,
        sampling=header.sampling,
        shards=shards,
    )


def joined(
    manifests: Sequence[Manifest],
    base: Manifest,
    columns: dict[str, dict[str, str]],
    layer_of: Callable[[Sequence[Layer]], Layer],
) -> Manifest:
    """The manifest of several shards or runs: the layers, spaces and shards that any of them has, in their order.

    All else is what `base` says, with these types of `columns`; `layer_of` makes one layer of those of one name.
    """
    layers: dict[str, list[Layer]] = {}
    for layer in (layer for manifest in manifests for layer in manifest.layers):
        layers.setdefault(layer.name, []).append(layer)
    return replace(
        base,
        layers=[layer_of(own) for own in layers.values()],
        spaces=list(dict.fromkeys(space for manifest in manifests for space in manifest.spaces)),
        columns=columns,
        shards=[shard for manifest in manifests for shard in manifest.shards],
    )


def _buffers(fields: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The first memories of this format knew SGD's buffer alone, and named none."""
    return {name: {"momentum_buffer": own} if isinstance(own, str) else own for name, own in fields.items()}


def _check_format(folder: Path, version: Any) -> None:
    if version == 1:
        raise NotAMemory(
            f"{folder} is a memory of format 1, written by dualform 0.1, which this version does not read.",
            hint="Open it with dualform 0.1, or record the training again.",
        )
    if isinstance(version, int) and version > FORMAT:
        raise NotAMemory(
            f"{folder} is a memory of format {version}, newer than the {FORMAT} that this version reads.",
            hint="Upgrade dualform: pip install --upgrade dualform.",
        )


def _canonical(fields: dict[str, Any]) -> bytes:
    """The same bytes for the same content, whatever the white space and order of the file."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _readable(fields: dict[str, Any]) -> str:
    """A line for each field and each entry of its list: it is written with every commit, and indenting takes long."""
    lines = [f" {json.dumps(name)}: {_entries(value)}" for name, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def _entries(value: object) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in value) + "\n ]"
