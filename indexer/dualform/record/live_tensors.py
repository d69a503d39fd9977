"""The tensors that a model holds under its parameters' names at this moment: a training may replace them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


class LiveTensors:
    """Looks parameters up by name, however modules and parameters were replaced since."""

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        """Names that the model does not have, as those of taps of one's own may be, are never looked up again."""
        self._model = model
        self._paths = {name: name.split(".") for name in names}
        self._paths = {name: path for name, path in self._paths.items() if self._walk(path) is not None}

    def has(self, name: str) -> bool:
        """Whether the model held a tensor of that name when recording began."""
        return name in self._paths

    def named(self, name: str) -> Tensor | None:
        """The tensor of a name that the model had; None where it has none any more."""
        return self._walk(self._paths[name])

    def _walk(self, path: list[str]) -> Tensor | None:
        module: Any = self._model
        for part in path[:-1]:
            if part not in module._modules:  # of torch.jit these are no dicts, and have no get
                return None
            module = module._modules[part]
            if module is None:
                return None
        own, name = module._parameters, path[-1]
        # Where it is none of its parameters, it was pruned or parametrized since: what the module computes with.
        found = own[name] if name in own else getattr(module, name, None)
        return found if isinstance(found, Tensor) else None
