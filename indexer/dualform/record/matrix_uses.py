"""What matrices of a model go into beside products with a matrix: why they are no layers."""

from __future__ import annotations

_ONE_KERNEL = (
    "one kernel computes all its products, which hides them: compute them one by one, as transformers does "
    "with experts_implementation='eager'"
)
_TELL_NOTHING = frozenset(
    ("__get__", "__getitem__", "size", "dim", "numel", "view", "transpose", "permute", "detach", "is_inference")
) | {"storage_offset", "stride", "untyped_storage"}
_COPIES = frozenset(("reshape", "contiguous", "clone", "to", "float", "double", "type"))


class MatrixUses:
    """Of the parameters of one model, by name, as functions of torch were called with them."""

    def __init__(self) -> None:
        self._functions: dict[str, set[str]] = {}

    def add(self, parameter: str, function: str) -> None:
        if function not in _TELL_NOTHING:
            self._functions.setdefault(parameter, set()).add(function)

    def __contains__(self, parameter: str) -> bool:
        """Whether any use of it was seen."""
        return parameter in self._functions

    def why_no_layer(self, parameter: str) -> str:
        """Of one that was in no product with a matrix."""
        functions = self._functions.get(parameter, set())
        if {"grouped_mm", "_grouped_mm"} & functions:
            return _ONE_KERNEL
        if functions and functions <= _COPIES:
            return f"{', '.join(sorted(functions))} may copy it, and products with a copy are not seen"
        if "add" in functions:
            return "it is added, not multiplied"
        if functions:
            into = ", ".join(sorted(functions - _COPIES))
            return f"it goes into {into}, not into a matrix product that the recorder can see"
        return "no product with it was seen in the first step; products in compiled code are never seen"
