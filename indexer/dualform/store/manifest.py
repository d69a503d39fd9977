"""memory.json: what a memory consists of and how far it is committed, checked when it is read.

It is replaced by atomic rename as the last act of every commit, so what it says is on disk. The process that writes the
first shard writes it; each other shard has a shard.json of the same form in its own folder, which speaks of it alone.

What memory.json and shard.json may say: checked when they are read, for a checksum can be right and a number wrong.

A check takes a value and its place ("layers[0].d_in"), and raises ValueError, naming both, if the value does not fit.
Fields that are not listed are left to later versions at the top and in layers, and refused everywhere else.

What a recorder that is killed while it creates a memory leaves: a folder without memory.json, which is written last.

It is no memory yet. Whoever reads is told so, and the next recorder clears it (writer.py).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from dualform.errors import NotAMemory
from dualform.faults import shortage
from dualform.store.batch import ContinuedRun, Header, Mark
from dualform.store.files.durable_files import checksum, damaged, read_regular, write_whole
from dualform.store.layer import KEEPS, PRECISIONS, Layer, Sampling, StoredOptimizer, for_one, layer_folder
from dualform.store.rows import STORED, Others
from dualform.store.tables import (
    FIRST_STEP,
    KINDS,
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

_NAMES = re.compile(
    r"memory\.json\.tmp|weights(/(initial|buffers)\.safetensors(\.tmp)?)?"
    r"|shard-00000(/writing|/slots\.duckdb(\.wal)?|/others|/layers(/[^/]+(/\d+\.tmp)?)?)?"
)
"""What is there before memory.json is, within the folder."""


def is_only_begun(folder: Path) -> bool:
    """Whether a folder holds something, but neither memory.json nor anything that comes to a memory after it: its
    recorder was killed before the memory was created, or is creating it at this moment.
    """
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*")] if folder.is_dir() else []
    return bool(found) and all(map(_NAMES.fullmatch, found))


@dataclass(frozen=True)
class DeletedSamples:
    """All that was deleted so far. Of whom, nobody can tell."""

    samples: int
    """Datapoints: rows of batches."""
    first_step: int
    """The first step that had one of them: from there on the record alone is not what the training made."""
    steps: int
    """How many steps were taken by the moment as of which the sums stand: all of the memory's."""
    sums: str = ""
    """The name of the file with what they brought, within weights/; empty where no such sum is kept."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """By slot space, how many were theirs; spaces of which they had none may be missing."""

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def and_before(self, before: DeletedSamples | None) -> DeletedSamples:
        """With what was deleted earlier, of a memory that has as many steps."""
        if before is None:
            return self
        first = min(before.first_step, self.first_step)
        slots = dict(Counter(before.slots) + Counter(self.slots))
        return replace(self, samples=before.samples + self.samples, first_step=first, slots=slots)


Check: TypeAlias = Callable[[Any, str], None]
MOST_WIDTH = 2**31 - 1
"""Numbers of a key or value: a FAISS index counts no further."""
QUERY_SET_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_FIRST_TABLES = (
    "samples", "entries", "key_rows", "steps", "parameter_groups", "factors", "defects", "watch", "labels", "digests",
    "segments",
)  # fmt: skip
"""Those that every shard of format 2 has, beside the extents of its spaces."""
_SHOWN = 80


def check_fields(fields: Any, *, whole: bool) -> None:
    """`whole`: of a memory, not of a single shard. Raises ValueError, which says what does not fit."""
    _MANIFEST(fields, "")
    _check_columns(fields)
    _check_layers(fields)
    _check_shards(fields, whole)
    _check_files(fields, whole)


def file_inside(path: str) -> bool:
    """Whether a path leads to a file within its folder, on every system."""
    parts = path.split("/")
    return not re.search(r"[\\:\0]", path) and not {"", ".", ".."} & set(parts)


def _refuse(value: Any, at: str, wanted: str) -> None:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    raise ValueError(f"{at or 'it'} is {shown}, where {wanted} is expected")


def _whole(value: Any, at: str, least: int = 0, most: int = 2**63 - 1) -> None:
    if type(value) is not int or not least <= value <= most:
        _refuse(value, at, f"an integer from {least} to {most}")


def _flag(value: Any, at: str) -> None:
    if type(value) is not bool:
        _refuse(value, at, "true or false")


def _text(value: Any, at: str, pattern: str = "", wanted: str = "text") -> None:
    if type(value) is not str or (pattern and not re.fullmatch(pattern, value)):
        _refuse(value, at, wanted)


def _one_of(*known: str) -> Check:
    return partial(_text, pattern="|".join(map(re.escape, known)), wanted=f"one of {', '.join(known)}")


def _or_null(check: Check) -> Check:
    def checked(value: Any, at: str) -> None:
        if value is not None:
            check(value, at)

    return checked


def _items(check: Check, least: int = 0, most: int | None = None) -> Check:
    def checked(value: Any, at: str) -> None:
        if type(value) is not list or len(value) < least or len(value) > (most or len(value)):
            _refuse(value, at, f"a list of {least} or more" if most is None else f"a list of {least} to {most}")
        for place, own in enumerate(value):
            check(own, f"{at}[{place}]")

    return checked


def _by_name(check: Check, name: Check = _text) -> Check:
    def checked(value: Any, at: str) -> None:
        if type(value) is not dict:
            _refuse(value, at, "an object")
        for own, inner in value.items():
            name(own, f"a name in {at}")
            check(inner, f"{at}.{own}")

    return checked


def _record(needed: Mapping[str, Check], more: Mapping[str, Check], *, others: bool = False) -> Check:
    """`needed` and `more` fields; `others`: whether there may be any that are in neither."""

    def checked(value: Any, at: str) -> None:
        if type(value) is not dict:
            _refuse(value, at, "an object")
        for name in [*needed, *value]:
            inside = f"{at}.{name}" if at else name
            if name not in value:
                raise ValueError(f"{inside} is missing")
            if check := needed.get(name) or more.get(name):
                check(value[name], inside)
            elif not others:
                raise ValueError(f"{inside} is unknown")

    return checked


def _column_type(value: Any, at: str) -> None:
    if type(value) is not str or value.removesuffix("[]") not in KINDS:
        _refuse(value, at, f"one of {', '.join(KINDS)}")


_DIGEST = partial(_text, pattern=r"[0-9a-f]{32}", wanted="a checksum of 32 hexadecimal digits")
_ROWS = _by_name(_whole)
_RANGE = _or_null(_items(_whole, 2, 2))
_TYPES = _by_name(_column_type, partial(_text, pattern=r"(?s).+", wanted="a name"))
_WIDTH = partial(_whole, most=MOST_WIDTH)
_FILE = partial(
    _text, pattern=r"(weights|probes|gallery|attributions)/[^\0]+", wanted="a file inside the memory's folder"
)
_RUN = partial(_text, pattern=r"run-\d{5,9}(-\d{1,9})?", wanted="a folder's name like run-00001")
_PARAMETER = _record(
    {"name": _text, "start": _WIDTH, "stop": _WIDTH},
    {"rows": _RANGE, "columns": _RANGE, "transposed": _flag, "leading": partial(_whole, least=1, most=64)},
    others=True,
)
_LAYER = _record(
    {
        "name": _text,
        "space": _text,
        "d_in": _WIDTH,
        "d_out": _WIDTH,
        "parameters": _items(_PARAMETER),
        "source": _text,
    },
    {
        "repeats": _flag,
        "values": _flag,
        "dtype": _one_of(*PRECISIONS),
        "reason": _text,
        "geometry": _by_name(_items(_WIDTH, 1, 4)),
        "groups": partial(_WIDTH, least=1),
        "batch_dim": partial(_whole, least=-64, most=64),
        "value_source": _text,
        "forgotten": _whole,
        "sampled": _flag,
    },
    others=True,
)
_OPTIMIZER = {"name": _text, "rule": _text, "reason": _text}
_TABLE = _record(
    {"rows": _whole, "digests": _by_name(partial(_text, pattern=r"([0-9a-f]{32})?", wanted="a digest"))}, {}
)
_SHARD = _record(
    {
        "folder": partial(_text, pattern=r"shard-\d{5,9}(-\d{1,9})?", wanted="a folder's name like shard-00000"),
        "commits": _whole,
        "tables": _by_name(_TABLE),
    },
    {"journal": _DIGEST},
)
_PREVIEW_SET = _record({"kind": _text, "file": _FILE, "samples": _whole}, {})
_QUERY_SET = _record(
    {"rows": _whole, "layers": _items(_text)},
    {"examples": _or_null(_whole), "steps": _whole, "gradients": _items(_text), "gallery": _PREVIEW_SET},
)
_TENSOR = _record({"name": _text, "dtype": _one_of(*STORED), "shape": _items(_whole)}, {})
_MARK = _record({"step": _whole, "weights": _DIGEST, "buffers": _DIGEST, "updates": _items(_whole)}, {"rows": _ROWS})


def _buffer_digests(value: Any, at: str) -> None:
    """The first memories of this format have one checksum where later ones have one by name."""
    (_DIGEST if isinstance(value, str) else _by_name(_DIGEST))(value, at)


_MANIFEST = _record(
    {
        "format": partial(_whole, least=2, most=2),
        "optimizer": _record(_OPTIMIZER, {}),
        "layers": _items(_LAYER),
        "skipped": _by_name(_text),
        "spaces": _items(_text, 1),
        "columns": _by_name(_TYPES),
        "shards": _items(_SHARD, 1),
        "files": _by_name(_record({"bytes": _whole, "checksum": _DIGEST}, {}), _FILE),
        "probes": _by_name(_QUERY_SET, partial(_text, pattern=QUERY_SET_NAME, wanted="a query set's name")),
        "recording": _flag,
    },
    {
        "buffers": _by_name(_buffer_digests),
        "aliases": _by_name(_text),
        "galleries": _by_name(_PREVIEW_SET),
        "halved": _by_name(_one_of("bfloat16", "float16")),
        "others": _record({"every": partial(_whole, least=1), "tensors": _items(_TENSOR)}, {}),
        "final": _by_name(_DIGEST),
        "optimizers": _items(_record({**_OPTIMIZER, "blocks": _items(_text)}, {}), 1),
        "marks": _items(_MARK),
        "runs": _items(_record({"folder": _RUN, "first_step": _whole}, {"rows": _ROWS})),
        "forgotten": _record(
            {"samples": _whole, "first_step": _whole, "steps": _whole}, {"sums": _text, "slots": _ROWS}
        ),
        "sampling": _record({"keep": _one_of(*KEEPS), "seed": partial(_whole, least=-(2**63)), "budget": _whole}, {}),
        "repaired": _items(_text),
    },
    others=True,
)


def _check_columns(fields: dict[str, Any]) -> None:
    spaces, columns = fields["spaces"], fields["columns"]
    if len(set(spaces)) < len(spaces):
        _refuse(spaces, "spaces", "a list of different names")
    for table in ("samples", "steps", *spaces):
        if table not in columns:
            raise ValueError(f"columns.{table} is missing")
        for name, kind in {"samples": SAMPLES, "steps": SETTINGS}.get(table, {}).items():
            if columns[table].get(name) != kind:
                _refuse(columns[table].get(name), f"columns.{table}.{name}", kind)


def _check_layers(fields: dict[str, Any]) -> None:
    names = [layer["name"] for layer in fields["layers"]]
    for number, layer in enumerate(fields["layers"]):
        at, groups = f"layers[{number}]", layer.get("groups", 1)
        if names.index(layer["name"]) < number:
            _refuse(layer["name"], f"{at}.name", "a name that no other layer has")
        if layer["space"] not in fields["spaces"]:
            _refuse(layer["space"], f"{at}.space", "one of the spaces")
        if layer["d_in"] % groups or layer["d_out"] % groups:
            _refuse(groups, f"{at}.groups", "a divisor of d_in and d_out")
        for place, block in enumerate(layer["parameters"]):
            start, stop, of_bias = block["start"], block["stop"], block["start"] == layer["d_in"]
            if not start < stop <= (layer["d_in"] + 1 if of_bias else layer["d_in"] // groups):
                _refuse([start, stop], f"{at}.parameters[{place}]", "a range of the layer's columns")
            for name in ("rows", "columns"):
                if (said := block.get(name)) and not said[0] < said[1]:
                    _refuse(said, f"{at}.parameters[{place}].{name}", "a range that is not empty")


def _check_shards(fields: dict[str, Any], whole: bool) -> None:
    folders = [part["folder"] for part in fields["shards"]]
    if len(set(folders)) < len(folders) or (len(folders) > 1 and not whole):
        _refuse(folders, "shards", "a list of different folders" if whole else "a list of one folder")
    for table in (*_FIRST_TABLES, *map(extents_table, fields["spaces"])):
        if table not in fields["shards"][0]["tables"]:
            raise ValueError(f"shards[0].tables.{table} is missing")
    starts = [0, *(run["first_step"] for run in fields.get("runs", ()))]
    runs = [run["folder"] for run in fields.get("runs", ())]
    if starts != sorted(starts) or len(set(runs)) < len(runs):
        _refuse(fields["runs"], "runs", "a list of different folders in the order of their first steps")


def _check_files(fields: dict[str, Any], whole: bool) -> None:
    """Names that say where a file is, and files that something else names."""
    files = fields["files"]
    for name in files:
        if not file_inside(name):
            _refuse(name, "a name in files", "a file inside the memory's folder")
    needed = {"weights/initial.safetensors": "files"} if whole else {}
    if sums := fields.get("forgotten", {}).get("sums"):
        needed[f"weights/{sums}.safetensors"] = "forgotten"
    for name, entry in fields.get("galleries", {}).items():
        needed[entry["file"]] = f"galleries.{name}"
    layers = {layer["name"] for layer in fields["layers"]}
    for name, query_set in fields["probes"].items():
        at, traced = f"probes.{name}", query_set.get("gradients", [])
        for layer in [*query_set["layers"], *traced]:
            if layer not in layers:
                _refuse(layer, at, "the name of a layer")
        for kind, own in (("queries", query_set["layers"]), ("errors", traced), ("examples", traced)):
            needed |= {f"probes/{name}/{kind}-{layer_folder(layer)}.npy": at for layer in own}
        if "gallery" in query_set:
            needed[query_set["gallery"]["file"]] = at
    for file, at in needed.items():
        if file not in files:
            raise ValueError(f"{at} needs {file!r}, which is not in files")


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
    """What a repair dropped of it and why, one sentence each (copying.py)."""
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
            _check_content(content, file == FILE)
            del fields["checksum"]
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


def joined_manifests(
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


@lru_cache(16)
def _check_content(content: bytes, whole: bool) -> None:
    """As `check_fields`, of a file's bytes: a process reads the same ones again when it opens a memory or writes it.

    Raises KeyError, too, where there is no checksum.
    """
    fields = json.loads(content)
    if fields.pop("checksum") != checksum(_canonical(fields)):
        raise ValueError("its checksum differs")
    check_fields(fields, whole=whole)


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
