"""memory.json: what a memory consists of and how far it is committed.

It is replaced by atomic rename as the last act of every commit, so what it says is on disk.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualform.errors import Damaged, NotAMemory
from dualform.store.durable import checksum, write_whole
from dualform.store.layer import Layer

FORMAT = 1
FILE = "memory.json"


@dataclass(frozen=True)
class FileMark:
    """A file beside the segments (weights, probes), as committed."""

    bytes: int
    checksum: str


@dataclass(frozen=True)
class TableMark:
    """How far a DuckDB table is committed: rows beyond it belong to a commit that was cut off."""

    rows: int
    digest: str
    """Running digest of the rows, commit after commit (tables.py)."""


@dataclass
class Shard:
    """The part of a memory that one process wrote."""

    folder: str = "shard-00000"
    commits: int = 0
    tables: dict[str, TableMark] = field(default_factory=dict)


@dataclass
class Manifest:
    layers: list[Layer]
    skipped: dict[str, str]
    """Layers that were not recorded, with the reason."""
    optimizer: str
    rule: str
    """Name of the optimizer's update rule, by which outputs and weights can be rebuilt; empty where there is none."""
    reason: str
    """Why there is none."""
    spaces: dict[str, str]
    """Slot table of each space."""
    columns: dict[str, dict[str, str]]
    """Slot columns and their DuckDB types, by space."""
    shards: list[Shard]
    files: dict[str, FileMark] = field(default_factory=dict)
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows and layers of each probe."""
    recording: bool = True
    """False once the recorder has left in good order."""
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Replace memory.json, durably."""
        fields = {
            "format": self.format,
            "optimizer": {"name": self.optimizer, "rule": self.rule, "reason": self.reason},
            "layers": [layer.to_json() for layer in self.layers],
            "skipped": self.skipped,
            "spaces": self.spaces,
            "columns": self.columns,
            "shards": [
                {"folder": s.folder, "commits": s.commits, "tables": {k: vars(v) for k, v in s.tables.items()}}
                for s in self.shards
            ],
            "files": {name: vars(mark) for name, mark in sorted(self.files.items())},
            "probes": self.probes,
            "recording": self.recording,
        }
        text = json.dumps(fields | {"checksum": checksum(_canonical(fields))}, indent=1, ensure_ascii=False)
        write_whole(folder / FILE, text.encode())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a memory's folder.

        Raises NotAMemory where there is none or its format is newer, Damaged where it was altered.
        """
        path = folder / FILE
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            what = "has no memory.json" if folder.is_dir() else "is no folder"
            raise NotAMemory(
                f"{folder} is no memory: it {what}.", hint="Name the folder that a Recorder wrote."
            ) from None
        except OSError as error:
            raise NotAMemory(f"{path} cannot be read: {error.strerror}.") from None
        try:
            fields = json.loads(content)
            version = fields["format"]
            if isinstance(version, int) and version > FORMAT:
                raise NotAMemory(
                    f"{folder} is a memory of format {version}, newer than the {FORMAT} that this version reads.",
                    hint="Upgrade dualform: pip install --upgrade dualform.",
                )
            if fields.pop("checksum") != checksum(_canonical(fields)):
                raise ValueError("its checksum differs")
            return cls._from_json(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__} at {error}" if isinstance(error, KeyError) else str(error)
            raise Damaged(f"{path} was altered or cut short: {reason}.") from None

    @classmethod
    def _from_json(cls, fields: dict[str, Any]) -> Manifest:
        optimizer = fields["optimizer"]
        return cls(
            layers=[Layer.from_json(layer) for layer in fields["layers"]],
            skipped=fields["skipped"],
            optimizer=optimizer["name"],
            rule=optimizer["rule"],
            reason=optimizer["reason"],
            spaces=fields["spaces"],
            columns=fields["columns"],
            shards=[
                Shard(s["folder"], s["commits"], {name: TableMark(**mark) for name, mark in s["tables"].items()})
                for s in fields["shards"]
            ],
            files={name: FileMark(**mark) for name, mark in fields["files"].items()},
            probes=fields["probes"],
            recording=fields["recording"],
            format=fields["format"],
        )


def _canonical(fields: dict[str, Any]) -> bytes:
    """The same bytes for the same content, whatever the white space and order of the file."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
