"""Which extra brings which package, so that a missing one is named with what to install."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
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


def loaded_on_use(package: str, homes: Mapping[str, tuple[str, str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names are loaded when they are first used. `homes`: by name, the module and
    the name there. It raises MissingPackage where an extra is not installed.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = homes[name]
        try:
            value = getattr(import_module(module), attribute)
        except ImportError as error:
            raise missing_package(error) or error from None
        setattr(sys.modules[package], name, value)
        return value

    return load


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
