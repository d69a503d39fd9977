"""Probes on disk: probes/NAME/ holds one .npy file per layer's queries, and the labels and outputs where known."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput, NotFound
from dualform.store.durable_files import checksum, make_folders, write_whole
from dualform.store.forks import held_back
from dualform.store.layer import Layer
from dualform.store.manifest import FileMark, Manifest
from dualform.store.weights import read_checked

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_PARSING = Lock()
"""NumPy reads a header with Python's own parser, which in CPython 3.11 fails when threads parse at the same time."""


@dataclass(frozen=True)
class ProbeArrays:
    """A probe as it is taken."""

    name: str
    queries: Mapping[str, NDArray[np.float32]]
    """float32[rows, d_in] by layer."""
    labels: NDArray[np.int64] | None
    """int64[rows]; None where they are not known."""
    outputs: NDArray[np.float32] | None
    """float32[rows, outputs] of the whole model; None where it does not return such a matrix."""
    steps: int = 0
    """How many steps of the run had moved the weights that it was taken by."""


def probes_until(entries: Mapping[str, dict[str, Any]], steps: int) -> dict[str, dict[str, Any]]:
    """Of a manifest's probes, those whose weights are of its first steps; older memories do not say when they were
    taken, and keep theirs.
    """
    return {name: entry for name, entry in entries.items() if entry.get("steps", 0) <= steps}


def write_probe(memory: Path, manifest: Manifest, probe: ProbeArrays) -> tuple[dict[str, FileMark], dict[str, Any]]:
    """Write a probe durably; returns the marks of its files and its entry in the manifest.

    Raises BadInput for a name that is taken or no plain word.
    """
    name, queries = probe.name, probe.queries
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot name a probe.", hint="Use letters, digits, '.', '_' and '-'.", field="name")
    if name in manifest.probes:
        raise BadInput(f"there is a probe {name!r} already.", hint="Give each probe its own name.", field="name")
    folder = memory / "probes" / name
    make_folders(folder)
    layers = {layer.name: layer for layer in manifest.layers}
    arrays: dict[str, NDArray[Any]] = {_file(layers[layer]): rows for layer, rows in queries.items()}
    if probe.labels is not None:
        arrays["labels.npy"] = probe.labels
    if probe.outputs is not None:
        arrays["outputs.npy"] = probe.outputs
    files = {}
    for file, array in arrays.items():
        stream = io.BytesIO()
        np.save(stream, np.ascontiguousarray(array), allow_pickle=False)
        content = stream.getvalue()
        write_whole(folder / file, content)
        files[f"probes/{name}/{file}"] = FileMark(len(content), checksum(content))
    rows = len(next(iter(queries.values()))) if queries else 0
    return files, {"rows": rows, "layers": list(queries), "steps": probe.steps}


def _file(layer: Layer) -> str:
    return f"queries-{layer.folder}.npy"


class StoredProbe:
    """A probe of an opened memory; its arrays are read, and verified, when asked for."""

    def __init__(self, memory: Path, name: str, manifest: Manifest) -> None:
        self.name = name
        self.rows: int = manifest.probes[name]["rows"]
        self.layers: tuple[str, ...] = tuple(manifest.probes[name]["layers"])
        self._memory, self._manifest = memory, manifest

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """int64[rows], -1 where unknown; None where the probe was taken without labels."""
        return self._array("labels.npy")

    @property
    def outputs(self) -> NDArray[np.float32] | None:
        """float32[rows, outputs] of the whole model; None where it did not return such a matrix."""
        return self._array("outputs.npy")

    def queries(self, layer: str) -> NDArray[np.float32]:
        """float32[rows, d_in]: the layer's inputs. Raises NotFound for a layer that the probe does not hold."""
        if layer not in self.layers:
            raise NotFound(
                f"probe {self.name!r} holds no queries of layer {layer!r}.",
                hint=f"It holds those of {', '.join(self.layers)}.",
                field="layer",
            )
        found = self._array(_file(next(known for known in self._manifest.layers if known.name == layer)))
        assert found is not None
        return found

    def _array(self, file: str) -> NDArray[Any] | None:
        inside = f"probes/{self.name}/{file}"
        if inside not in self._manifest.files:
            return None
        content = read_checked(self._memory / inside, self._manifest.files[inside])
        with held_back(), _PARSING:
            return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
