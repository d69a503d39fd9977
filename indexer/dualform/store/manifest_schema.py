"""What memory.json and shard.json may say: checked when they are read, for a checksum can be right and a number wrong.

A check takes a value and its place ("layers[0].d_in"), and raises ValueError, naming both, if the value does not fit.
Fields that are not listed are left to later versions at the top and in layers, and refused everywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from dualform.store.layer import PRECISIONS, layer_folder
from dualform.store.others import STORED
from dualform.store.sampling import KEEPS
from dualform.store.tables import KINDS, SAMPLES, SETTINGS, extents_table

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


def _text(value: Any, at: str, pattern: str = r"(?s).*", wanted: str = "text") -> None:
    if type(value) is not str or not re.fullmatch(pattern, value):
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


def _buffers(value: Any, at: str) -> None:
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
        "buffers": _by_name(_buffers),
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
