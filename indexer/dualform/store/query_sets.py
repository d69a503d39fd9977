"""Query sets on disk: probes/NAME/ holds one .npy file per layer's queries, and the labels and outputs where known.

Where a query set was taken with a loss it also holds, by layer, what the gradients of its examples' losses are made of:
error signals, the example of each row, and the keys of those rows where they are others than the queries, as those of a
layer that is called several times are.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.contents import OutputSummary
from dualform.errors import BadInput, NotFound
from dualform.questions.gradients import ExampleGradients, LayerGradients
from dualform.store.files.durable_files import checksum, damaged, make_folders, write_whole
from dualform.store.layer import Layer
from dualform.store.locks import held_back
from dualform.store.manifest import QUERY_SET_NAME, FileMark, Manifest
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.previews.stored_previews import StoredPreviewSet, free_name, write_preview_set
from dualform.store.weights import read_checked

_NAME = re.compile(QUERY_SET_NAME)
_LONGEST_NAME = 200

_SUMMARY = {
    "largest": ("largest.npy", "<i8", 2),
    "values": ("largest-outputs.npy", "<f4", 2),
    "label": ("label-outputs.npy", "<f4", 1),
    "logsumexp": ("logsumexp.npy", "<f4", 1),
}
"""By what it is of a summary: the file, its type and its dimensions."""
_PARSING = Lock()
"""NumPy reads a header with Python's own parser, which in CPython 3.11 fails when threads parse at the same time."""


@dataclass(frozen=True)
class QuerySetArrays:
    """A query set as it is taken."""

    name: str
    queries: Mapping[str, NDArray[np.float32]]
    """float32[rows, d_in] by layer."""
    labels: NDArray[np.int64] | None
    """int64[rows]: one for each example, or for each of its tokens; None where they are not known."""
    outputs: NDArray[np.float32] | None
    """float32[rows, outputs] of the whole model, of each example or of each of its tokens, example after example; those
    of the first rows alone where there is a `summary`; None where it returns no such matrix."""
    examples: int | None = None
    """How many there are; None where it cannot be told. Their rows in a layer may be more, one a token."""
    steps: int = 0
    """How many steps of the run had moved the weights that it was taken by."""
    gradients: ExampleGradients | None = None
    """Of the examples' own losses; None of a query set that was taken without one."""
    preview_set: PreviewSet | None = None
    """What the examples looked like, whose numbers are its samples'; None where that is not known."""
    preview_set_bytes: int | None = None
    """That it may take; None for however many."""
    summary: OutputSummary | None = None
    """Of the outputs of tokens, where all of them would take too much."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Of the whole model, by the name of their file."""
        found: dict[str, NDArray[Any] | None] = {"labels.npy": self.labels}
        if self.summary is None:
            found["outputs.npy"] = self.outputs
        else:
            found["first-outputs.npy"] = self.outputs
            found |= {file: getattr(self.summary, name) for name, (file, _, _) in _SUMMARY.items()}
        return {name: array for name, array in found.items() if array is not None}

    def arrays_of(self, layer: str) -> dict[str, NDArray[Any]]:
        """Of one layer, by what stands before its folder in the name of their file."""
        found: dict[str, NDArray[Any]] = {}
        if layer in self.queries:
            found["queries"] = self.queries[layer]
        if self.gradients is not None and (own := self.gradients.layers.get(layer)) is not None:
            found |= {"errors": own.errors, "examples": own.examples}
            if layer not in self.queries or not np.array_equal(own.keys, self.queries[layer]):
                found["error-keys"] = own.keys
        return found


def query_sets_until(entries: Mapping[str, dict[str, Any]], steps: int) -> dict[str, dict[str, Any]]:
    """Of a manifest's query sets, those whose weights are of its first steps; older memories do not say when they were
    taken, and keep theirs.
    """
    return {name: entry for name, entry in entries.items() if entry.get("steps", 0) <= steps}


def examples_in(entry: Mapping[str, Any]) -> int | None:
    """How many examples a query set has by its entry in the manifest; None where it cannot be told. Older memories say
    it of their preview sets, and of query sets with a loss.
    """
    known: int | None = entry.get("examples", entry.get("gallery", {}).get("samples"))
    return known


def check_name(name: Any, taken: Collection[str]) -> None:
    """Raises BadInput for a name that no query set can have, and for one that is taken."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        shown = repr(name) if len(repr(name)) <= _LONGEST_NAME else f"{name!r:.40}…"
        raise BadInput(
            f"{shown} cannot name a query set.",
            hint=f"Use up to {_LONGEST_NAME} letters, digits, '.', '_' and '-'.",
            field="name",
        )
    if name in taken:
        raise BadInput(f"Query set {name!r} already exists.", hint="Give each query set its own name.", field="name")


def write_query_set(
    memory: Path, manifest: Manifest, query_set: QuerySetArrays
) -> tuple[dict[str, FileMark], dict[str, Any]]:
    """Write a query set durably; returns the marks of its files and its entry in the manifest.

    Raises BadInput for a name that is taken or no plain word.
    """
    name, queries = query_set.name, query_set.queries
    check_name(name, manifest.query_sets)
    folder = memory / "probes" / name
    make_folders(folder)
    files, shown = dict[str, FileMark](), dict[str, Any]()
    if query_set.preview_set is not None:
        file = free_name(f"probes/{name}", manifest.files)
        files[file], shown = write_preview_set(
            memory, file, query_set.preview_set.samples, query_set.preview_set.content, query_set.preview_set_bytes
        )
    layers = {layer.name: layer for layer in manifest.layers}
    traced = [] if query_set.gradients is None else list(query_set.gradients.layers)
    arrays = dict(query_set.arrays)
    for layer in dict.fromkeys([*queries, *traced]):
        arrays |= {_file(layers[layer], kind): array for kind, array in query_set.arrays_of(layer).items()}
    for file, array in arrays.items():
        stream = io.BytesIO()
        np.save(stream, np.ascontiguousarray(array), allow_pickle=False)
        content = stream.getvalue()
        write_whole(folder / file, content)
        files[f"probes/{name}/{file}"] = FileMark(len(content), checksum(content))
    rows = len(next(iter(queries.values()))) if queries else 0
    examples = query_set.examples if query_set.gradients is None else query_set.gradients.count  # one loss an example
    entry: dict[str, Any] = {"rows": rows, "layers": list(queries), "examples": examples, "steps": query_set.steps}
    if query_set.gradients is not None:
        entry["gradients"] = traced
    if shown:
        entry["gallery"] = shown
    return files, entry


def _file(layer: Layer, kind: str = "queries") -> str:
    return f"{kind}-{layer.folder}.npy"


class StoredQuerySet:
    """A query set of an opened memory; its arrays are read, and verified, when asked for."""

    def __init__(self, memory: Path, name: str, manifest: Manifest) -> None:
        self.name = name
        self.rows: int = manifest.query_sets[name]["rows"]
        self.layers: tuple[str, ...] = tuple(manifest.query_sets[name]["layers"])
        self.examples = examples_in(manifest.query_sets[name])
        """How many there are; None where it cannot be told."""
        self.traced: tuple[str, ...] = tuple(manifest.query_sets[name].get("gradients", ()))
        """Layers that it has gradients in; none of a query set that was taken without a loss."""
        self._memory, self._manifest = memory, manifest

    @property
    def preview_set(self) -> StoredPreviewSet | None:
        """What its examples looked like; None where it was taken without that. Raises Damaged, naming the file."""
        entry = self._manifest.query_sets[self.name].get("gallery")
        return None if entry is None else StoredPreviewSet.of(self._memory, entry, self._manifest.files)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """int64[rows], -1 where unknown; None where the query set was taken without labels."""
        return self._array("labels.npy", "<i8", 1)

    @property
    def outputs(self) -> NDArray[np.float32] | None:
        """float32[rows, outputs] of the whole model, of each example or of each of its tokens, example after example;
        None where it returned no such matrix, or too large a one."""
        return self._array("outputs.npy", "<f4", 2)

    @property
    def first_outputs(self) -> NDArray[np.float32] | None:
        """float32[rows, outputs]: those of all rows, or of the first ones where no more are kept."""
        found = self.outputs
        return self._array("first-outputs.npy", "<f4", 2) if found is None else found

    @property
    def summary(self) -> OutputSummary | None:
        """Of outputs of tokens that are not kept themselves."""
        arrays = {name: self._array(*own) for name, own in _SUMMARY.items()}
        first = self._array("first-outputs.npy", "<f4", 2)
        if first is None or any(own is None for own in arrays.values()):
            return None
        return OutputSummary(**arrays, width=first.shape[1])  # type: ignore[arg-type]

    def queries(self, layer: str) -> NDArray[np.float32]:
        """float32[rows, d_in]: the layer's inputs. Raises NotFound for a layer that the query set does not hold."""
        if layer not in self.layers:
            raise NotFound(
                f"Query set {self.name!r} does not contain queries of layer {layer!r}.",
                hint=f"Layers: {', '.join(self.layers)}.",
                field="layer",
            )
        own = self._layer(layer)
        found = self._array(_file(own), "<f4", 2, own.d_in)
        assert found is not None
        return found

    def gradients(self, layer: str) -> LayerGradients:
        """What the gradients of its examples are made of in a layer, one of `traced`."""
        own = self._layer(layer)
        errors = self._array(_file(own, "errors"), "<f4", 2, own.d_out)
        examples = self._array(_file(own, "examples"), "<i8", 1)
        keys = self._array(_file(own, "error-keys"), "<f4", 2, own.d_in)
        assert errors is not None
        assert examples is not None
        return LayerGradients(self.queries(layer) if keys is None else keys, errors, examples)

    def keys(self, layer: str) -> Iterator[NDArray[np.float32]]:
        """Everything that the layer took, float32[…, d_in] each."""
        if layer in self.layers:
            yield self.queries(layer)
        if layer in self.traced:
            yield self.gradients(layer).keys

    def _layer(self, name: str) -> Layer:
        return next(known for known in self._manifest.layers if known.name == name)

    def _array(self, file: str, dtype: str, axes: int, width: int | None = None) -> NDArray[Any] | None:
        """Raises Damaged, naming the file, where it is not an array of this type with so many axes and columns."""
        inside = f"probes/{self.name}/{file}"
        if inside not in self._manifest.files:
            return None
        content = read_checked(self._memory / inside, self._manifest.files[inside])
        stream = io.BytesIO(content)
        try:
            with held_back(), _PARSING:
                version = np.lib.format.read_magic(stream)
                shape, transposed, found = np.lib.format.read_array_header_1_0(stream)
        except ValueError as error:
            raise damaged(self._memory / inside, f"is not a NumPy array: {error}") from None
        left = len(content) - stream.tell()
        fits = (version, found, len(shape), transposed) == ((1, 0), np.dtype(dtype), axes, False)
        if not fits or width not in (None, shape[-1]) or math.prod(shape) * found.itemsize != left:
            said = f"{found}{list(shape)} in {left} bytes"
            raise damaged(self._memory / inside, f"does not fit the query set: it has {said}")
        return np.frombuffer(content, found, offset=stream.tell()).reshape(shape).copy()
