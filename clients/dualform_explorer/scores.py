"""Attribution scores of other packages, shown next to ours: one number for each training sample and example.

bergson   the folder that its score command writes: info.json, scores.bin, and candidates.npy where it was given any
dattri    numpy.save("scores.npy", attributor.attribute(train, test).numpy()), and any such array
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import MemoryInfo
from dualform.errors import BadInput

_HINT = "Pass a folder that bergson wrote, or a .npy file float[training samples, examples]."


@dataclass(frozen=True, eq=False)
class ScoreFile:
    """Scores of s training samples for n examples of a query set."""

    name: str
    samples: NDArray[np.int64]
    """int64[s]: the column `sample` of each row."""
    values: NDArray[np.float32]
    """float32[s, n], NaN if missing."""
    dataset: str | None
    query_set: str


def read_scores(given: str, info: MemoryInfo) -> ScoreFile:
    """`given`: PATH, optionally followed by ;dataset=NAME, ;set=NAME and ;name=NAME if these cannot be inferred.

    Raises BadInput for any other file, and if its rows or columns do not match the dataset or query set.
    """
    path, *options = given.split(";")
    said = dict(own.partition("=")[::2] for own in options)
    if unknown := [name for name in said if name not in ("dataset", "set", "name")]:
        raise _wrong(path, f"{unknown[0]!r} is no option.", "Options are dataset, set and name.")
    samples, values = _of_bergson(Path(path)) if Path(path).is_dir() else _of_array(Path(path))
    dataset = said.get("dataset")
    if dataset is None and len(info.datasets) > 1:
        raise _wrong(path, "The memory has several datasets.", f"Add ';dataset=NAME': {', '.join(info.datasets)}.")
    if dataset is not None and dataset not in info.datasets:
        raise _wrong(path, f"There is no dataset {dataset!r}.", f"Datasets: {', '.join(info.datasets) or 'none'}.")
    sets = {own.name: own.rows if own.examples is None else own.examples for own in info.query_sets}
    fitting = [name for name, count in sets.items() if count == values.shape[1]]
    query_set = said.get("set", fitting[0] if len(fitting) == 1 else None)
    if query_set not in fitting:
        has = ", ".join(f"{name} ({count:,})" for name, count in sets.items()) or "none"
        raise _wrong(path, f"It has scores for {values.shape[1]:,} examples.", f"Add ';set=NAME'. Query sets: {has}.")
    name = said.get("name") or Path(path).stem
    return ScoreFile(name, samples, values, dataset or next(iter(info.datasets), None), query_set)


def _of_array(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _wrong(str(path), f"It cannot be read: {error}.", _HINT) from None
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind != "f":
        raise _wrong(str(path), "It holds no array float[training samples, examples].", _HINT)
    return np.arange(len(values)), values.astype(np.float32)


def _of_bergson(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    try:
        about = json.loads((path / "info.json").read_text())
        if about.get("attribute_tokens"):
            raise _wrong(str(path), "It has a score for each token.", "Score with one number for each document.")
        formats = ["<u2" if own == "bfloat16" else own for own in about["dtype"]["formats"]]  # NumPy lacks bfloat16
        record: Any = {**about["dtype"], "formats": formats}
        rows = np.memmap(path / "scores.bin", dtype=np.dtype(record), mode="r", shape=(about["num_items"],))
        columns = [rows[f"score_{place}"] for place in range(about["num_scores"])]
        # A bfloat16 is the upper half of a float32.
        halves = [(own.astype(np.uint32) << 16).view(np.float32) if own.dtype == np.uint16 else own for own in columns]
        written = [rows[f"written_{place}"] for place in range(about["num_scores"])]
        values = np.where(np.stack(written, 1), np.stack(halves, 1), np.nan).astype(np.float32)
        listed = path / "candidates.npy"
        samples = np.load(listed, allow_pickle=False).astype(np.int64) if listed.exists() else np.arange(len(values))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _wrong(str(path), f"It cannot be read: {error}.", _HINT) from None
    return samples, values


def _wrong(path: str, why: str, hint: str) -> BadInput:
    return BadInput(f"Scores at {path}: {why}", hint=hint, field="scores")
