"""The reference commit, the differences from it that are intended, and the comparison."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path

import numpy as np

COMMIT = "c75f594d03d8ba2462c40ac0a9600bf2d07b96e7"
"""Whose answers are the golden ones."""

CHANGED: dict[str, tuple[float | None, str]] = {}
"""Pattern of answers -> the most by which the numbers may differ from the reference's, in shares of its largest (None
of what the reference refused), and why they do."""

REFUSED = {
    "keys_only/*": "outputs, weights and contributions need values",
    "bfloat16/*/topk contribution": "bfloat16 weights round the sum of all slots, so none has a share of its own",
    "*/output softmax": "under Adam, too",
    "convolution/3.1/* gradient": "it is grouped",
    "*/topk gradient of all layers": "not for all of them the slots make the gradient",
    "attention/ledger *": "its query set is of tokens",
    "experts/experts.0/topk filter 0": "no slot of it is left",
}
"""Pattern of questions that both trees refuse -> why."""

ROOT = Path(__file__).parents[2]
FOLDERS = ("indexer", "protos", "service", "clients", ".")
SECONDS = 420

Differences = dict[str, str]
"""Question -> how its answer differs."""


class NoReference(Exception):
    """The reference commit is not in this clone."""


def differences(names: Sequence[str] = ()) -> Differences:
    """Those of this tree's answers from the reference's, without the intended ones.

    Raises NoReference in a clone that lacks the commit.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "answers.npz"
        _run(ROOT, own, names)
        answers = _arrays(own)
        golden = _arrays(_reference())
        found = {**_refused(answers), **dict(_compared(golden, answers, names))}
    stale = {} if names else {own: "listed as changed, and is not" for own in CHANGED if not _among(own, found)}
    kept = {question: how for question, how in found.items() if not _changed(question, golden, answers)}
    return {**kept, **stale}


def _refused(answers: dict[str, np.ndarray]) -> Differences:
    asked = [key.removesuffix(": refused") for key in answers if key.endswith(": refused")]
    return {key: "is refused" for key in asked if not any(fnmatchcase(key, pattern) for pattern in REFUSED)}


def _among(pattern: str, found: Differences) -> bool:
    return any(fnmatchcase(question, pattern) for question in found)


def _changed(key: str, golden: dict[str, np.ndarray], own: dict[str, np.ndarray]) -> bool:
    """Whether the difference is intended, and as small as intended."""
    for most in (most for pattern, (most, _) in CHANGED.items() if fnmatchcase(key, pattern)):
        if most is None:
            return f"{key.partition(': ')[0]}: refused" in golden
        largest = float(np.abs(own[key.partition(": ")[0] + ": sums"]).max(initial=0.0))
        return golden[key].shape == own[key].shape and bool(np.abs(golden[key] - own[key]).max() <= most * largest)
    return False


def _compared(
    golden: dict[str, np.ndarray], own: dict[str, np.ndarray], names: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for key in sorted(golden.keys() | own.keys()):
        if names and key.split("/")[0] not in names:
            continue
        if key not in own:
            yield key, "is no longer answered"
        elif key not in golden:
            yield key, "was not answered by the reference"
        elif golden[key].dtype != own[key].dtype or golden[key].shape != own[key].shape:
            yield key, f"{golden[key].dtype}{golden[key].shape} is now {own[key].dtype}{own[key].shape}"
        elif golden[key].tobytes() != own[key].tobytes():
            yield key, _numbers(golden[key], own[key])


def _numbers(golden: np.ndarray, own: np.ndarray) -> str:
    if golden.dtype == np.uint8:
        return f"{golden.tobytes()[:200]!r} is now {own.tobytes()[:200]!r}"
    apart = np.abs(golden.astype(float) - own.astype(float))
    return f"{np.count_nonzero(golden != own)} of {golden.size} numbers differ, by {np.nanmax(apart):.3g} at most"


def _arrays(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as stored:
        return dict(stored)


def _reference() -> Path:
    """The reference's answers on this machine, made once."""
    file = ROOT / "build" / "golden" / f"{COMMIT[:12]}-{_machine()}.npz"
    if not file.exists():
        archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            raise NoReference(f"commit {COMMIT} is not here: {archive.stderr.decode().strip()}")
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            scm = {**os.environ, "SETUPTOOLS_SCM_PRETEND_VERSION": "0"}
            build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            subprocess.run(build, cwd=folder, check=True, capture_output=True, env=scm)
            made = Path(folder) / "answers.npz"
            _run(Path(folder), made)
            made.replace(file)
    return file


def _machine() -> str:
    """What the bits of a training depend on: the processor, libraries, and variables that choose their loops."""
    chooses = ("ATEN_", "ONEDNN_", "MKL_", "OPENBLAS_", "DNNL_", "NPY_")
    said = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(chooses)]
    cpu = Path("/proc/cpuinfo")
    flags = [line for line in cpu.read_text().splitlines() if line.startswith("flags")][:1] if cpu.exists() else []
    libraries = [f"{name} {version(name)}" for name in ("torch", "numpy", "duckdb", "pyarrow")]
    whole = [platform.machine(), platform.python_version(), *flags, *libraries, *said]
    return hashlib.sha256("\n".join(whole).encode()).hexdigest()[:12]


def _run(tree: Path, answers: Path, names: Sequence[str] = ()) -> None:
    """Have a tree's own golden trainings recorded and asked, by its own code, into `answers`."""
    path = os.pathsep.join(str(tree / folder) for folder in FOLDERS)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DUALFORM_QUIET": "1"}
    command = [sys.executable, "-m", "tests.golden", "--answers", str(answers), *names]
    done = subprocess.run(command, cwd=tree, env=environment, timeout=SECONDS, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the golden trainings of {tree} failed:\n{done.stderr.decode()}")
