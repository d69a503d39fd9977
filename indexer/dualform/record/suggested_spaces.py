"""Which spaces would hold layers that saw different batches: patterns to be given as `spaces=`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from dualform.patterns import matches


def suggested_spaces(shapes: Mapping[str, Hashable], space: str, elsewhere: Sequence[str] = ()) -> dict[str, str]:
    """Pattern -> space, for the layers of one space by the shape of the batch that each saw.

    Those of the first shape stay in `space`, each further shape gets one of its own. No pattern fits a layer of another
    shape, nor one of `elsewhere`, the layers of other spaces; so their order does not matter.
    """
    found: dict[str, str] = {}
    for number, shape in enumerate(list(dict.fromkeys(shapes.values()))[1:], 2):
        others = [*elsewhere, *(name for name, seen in shapes.items() if seen != shape)]
        for name in (name for name, seen in shapes.items() if seen == shape):
            if not any(matches(name, pattern) for pattern in found):
                found[_widest(name, others)] = f"{space}_{number}"
    return found


def _widest(name: str, others: Sequence[str]) -> str:
    """The shortest pattern that fits a layer and none of others."""
    return next((p for p in _patterns(name) if not any(matches(other, p) for other in others)), name)


def _patterns(name: str) -> Iterator[str]:
    """Widest first: at each level of the model, in any block, in any block of that number, in this module alone."""
    parts = name.split(".")
    alike = ["*" if part.isdigit() else part for part in parts]
    for depth in range(1, len(parts)):
        for within in (alike[:depth], [*alike[: depth - 1], parts[depth - 1]], parts[:depth]):
            yield ".".join([*within, "*"])
    yield ".".join([*alike[:-1], parts[-1]])
