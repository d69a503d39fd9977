"""The packages whose versions figures belong to."""

from __future__ import annotations

from dualform_studies.pages.machine import versions_of

PACKAGES = (
    "dualform",
    "numpy",
    "torch",
    "faiss-cpu",
    "faiss-gpu",
    "duckdb",
    "lancedb",
    "pymilvus",
    "milvus-lite",
    "usearch",
    "grpcio",
)


def versions() -> dict[str, str]:
    return versions_of(PACKAGES)
