"""Which extra brings which package, so that a missing one is named with what to install."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dualform.errors import MissingPackage

_EXTRAS = {
    "duckdb": "cpu] or [gpu",
    "faiss": "cpu] or [gpu",
    "pyarrow": "cpu] or [gpu",
    "safetensors": "cpu] or [gpu",
    "xxhash": "cpu] or [gpu",
    "torch": "record",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "accelerate": "transformers",
    "transformers": "transformers",
    "ray": "ray",
    "grpc_health": "serve",
    "grpc_reflection": "serve",
    "prometheus_client": "serve",
    "opentelemetry": "tracing",
    "matplotlib": "plot",
    "anywidget": "notebook",
    "traitlets": "notebook",
    "mcp": "mcp",
    "pydantic": "mcp",
    "pooch": "studies",
    "sklearn": "studies",
    "scipy": "studies",
    "tokenizers": "studies",
    "jinja2": "explore",
    "markupsafe": "explore",
    "starlette": "explore",
    "uvicorn": "explore",
}
"""By import name."""


def missing_package(error: ImportError) -> MissingPackage | None:
    """The error that names the extra; None where the import failed for another reason than a package of an extra."""
    package = (error.name or "").partition(".")[0]
    if isinstance(error, MissingPackage) or package not in _EXTRAS:
        return None
    extra = _EXTRAS[package]
    commands = " or ".join(f"pip install 'dualform[{name}]'" for name in extra.split("] or ["))
    return MissingPackage(
        f"the package {package} is not installed; the extra [{extra}] brings it.", hint=f"{commands}."
    )


def optional(package: str) -> Any:
    """The package, imported. Raises MissingPackage, naming the extra that brings it, where it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        unnamed = MissingPackage(f"{package} is not installed.", hint=f"Install it: pip install {package}.")
        raise missing_package(error) or unnamed from None


def require_studies() -> None:
    """Raises MissingPackage, naming the extra, where a package that only the studies need is not installed."""
    for package, extra in _EXTRAS.items():
        if extra in ("studies", "plot") and find_spec(package) is None:
            raise MissingPackage(
                f"the studies are an extra of their own, and {package} is not installed.",
                hint="pip install 'dualform[cpu,studies]' brings all that they need, or [gpu,studies].",
            )
