"""How large a run is, and where its data lie."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Plan:
    """One run. Every section's process reads it from a file."""

    folder: Path
    """Scratch: the benchmark's memory, its queries, and what peers keep on disk."""
    quick: bool = False
    study: Path | None = None
    """A recorded continual study, or None: generated keys."""
    images: Path | None = None
    """Folder with mnist/ and fashion-mnist/ for the training that is recorded; None: that section says so."""
    backend: str | None = None
    """Of dualform; None is what it picks by itself."""
    slots: int = 384_000
    """T."""
    width: int = 800
    """d, of generated keys."""
    growth: tuple[int, ...] = (96_000, 192_000, 384_000, 768_000)
    queries: tuple[int, ...] = (1, 64, 1024)
    study_queries: int = 10_000
    repeats: int = 7
    patience: float = 10.0
    """Seconds: whoever needs longer for one answer is not waited for."""
    build_patience: float = 300.0
    """Seconds that a peer may take to load the keys."""
    steps: int = 350
    """Of the continual study's training on each of its datasets, recorded and not."""
    threads: tuple[int, ...] = (1, 2, 4)
    """On which trainings run, one number after the other."""

    @property
    def memory(self) -> Path:
        return self.folder / "memory"

    @property
    def most_queries(self) -> int:
        return max(self.queries)

    def write(self, path: Path) -> None:
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        path.write_text(json.dumps(plain))

    @classmethod
    def read(cls, path: Path) -> Plan:
        plain = json.loads(path.read_text())
        for name in ("folder", "study", "images"):
            plain[name] = None if plain[name] is None else Path(plain[name])
        for name in ("growth", "queries", "threads"):
            plain[name] = tuple(plain[name])
        return cls(**plain)


def quick(folder: Path, study: Path | None, images: Path | None, backend: str | None) -> Plan:
    """Two minutes: every section that needs no whole study, on an eighth of the slots."""
    return Plan(
        folder,
        True,
        study,
        images,
        backend,
        slots=48_000,
        growth=(12_000, 24_000, 48_000),
        queries=(1, 64),
        repeats=3,
        patience=1.5,
        build_patience=20.0,
        steps=40,
        threads=(2,),
    )


def full(folder: Path, study: Path | None, images: Path | None, backend: str | None) -> Plan:
    return Plan(folder, False, study, images, backend)
