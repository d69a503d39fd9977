"""The codec between dataclasses and messages: each field travels in the message's field of the same name.

The field's annotation and the message's descriptor say how:

    NDArray[np.float32]          bytes or a Matrix       its shape is checked against `shapes`
    tuple[str, ...]              a repeated field        or a message that has only one
    Mapping[str, int]            repeated entries        key and value are the first and second field of an entry
    Mapping[str, SomeDataclass]  repeated entries        the key is the first field, the others are the dataclass's
    str                          a text or an enum       "exact to bfloat16" is STATUS_NAME_EXACT_TO_BFLOAT16
    X | None                     an optional field       absent for None

Any other field takes its default if the message lacks it. If the message has a field for a property of the dataclass,
the property is sent and not read. messages.py has the exceptions to these rules. BadInput is raised for values that do
not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, partial
from math import prod
from types import NoneType
from typing import Any, NamedTuple, SupportsIndex, get_args, get_origin, get_type_hints

import numpy as np
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform_proto.arrays import decode_matrix, decode_numbers, decode_rows, encode_matrix, encode_numbers

Values = dict[str, Any]
ARGUMENTS = {"layers": "layer"}
"""Fields of messages -> the arguments that errors name, if they differ."""
UNSPECIFIED = {"Kernel": "linear"}
"""What 0 means in an enum. The others refuse it."""
_FREE = "+-"
"""Lengths that no other array shares."""


class Converter(NamedTuple):
    """Converts a value that is not None to that of a message's field, and back."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Custom(NamedTuple):
    """Fields of a dataclass that differ from the rules."""

    fields: tuple[str, ...]
    encode: Callable[[Any], Values]
    """The message's fields, from the whole dataclass."""
    decode: Callable[[Any], Values]
    """The dataclass's fields, from the whole message."""


CODECS: dict[type, Codec] = {}
"""The codecs of dataclasses inside others, if they differ from the rules."""
CONVERTERS: dict[str, Converter] = {}
"""Messages without a dataclass, by name."""


@dataclass(frozen=True)
class Codec:
    """Converts one dataclass to one message, and back."""

    kind: type[Any]
    message: type[Message]
    names: Mapping[str, str] | None = None
    """Fields of the dataclass -> the message's, if they have other names."""
    shapes: Mapping[str, str] | None = None
    """Arrays by field, such as "n d", in the order in which they are read. A letter is one length: that of the first
    matrix that has it, or one of `sizes`. "+" is any length but 0. An "n G d" travels as a matrix of n * G rows."""
    sizes: Mapping[str, Callable[[Values], int]] | None = None
    """Lengths that follow from fields that were read before."""
    custom: tuple[Custom, ...] = ()
    check: Callable[[Values], None] | None = None
    """Raises BadInput for values that do not fit together, before the dataclass is made of them."""
    argument: str = ""
    """The argument that errors name; otherwise it is the field's own."""

    def encode(self, value: Any) -> Any:
        sent: Values = {}
        for field in self._fields:
            if (own := getattr(value, field.attribute)) is not None:
                sent[field.name] = field.encode(own)
        for custom in self.custom:
            sent |= custom.encode(value)
        return self.message(**sent)

    def decode(self, message: Any) -> Any:
        values: Values = {}
        lengths: dict[str, int] = {}
        for custom in self.custom:
            values |= custom.decode(message)
        for field in self._fields:
            if field.absent is not None and not message.HasField(field.name):
                values |= field.absent
            elif field.decode is not None:
                values[field.attribute] = field.decode(getattr(message, field.name), values, lengths)
        if self.check is not None:
            self.check(values)
        return self.kind(**values)

    @cached_property
    def _fields(self) -> list[_Field]:
        """Those that follow the rules, in the order in which they are read."""
        wire: Mapping[str, Any] = self.message.DESCRIPTOR.fields_by_name
        hints, shapes = get_type_hints(self.kind), self.shapes or {}
        skipped = {*shapes, *(name for custom in self.custom for name in custom.fields)}
        defaults = {own.name: own.default for own in fields(self.kind)}
        found: list[_Field] = []
        for attribute in (*(name for name in defaults if name not in skipped), *shapes):
            name = (self.names or {}).get(attribute, attribute)
            if name not in wire:
                continue
            own, hint, argument = wire[name], hints[attribute], self.argument or ARGUMENTS.get(name, name)
            kinds = [kind for kind in get_args(hint) if kind is not NoneType]
            optional = len(kinds) < len(get_args(hint))
            if optional:
                hint = kinds[0] if len(kinds) == 1 else Any
            # An absent message is decoded all the same, so that a missing status is an error and never reads as exact.
            may_lack = own.has_presence and (optional or own.message_type is None)
            absent = {attribute: None if optional else defaults[attribute]} if may_lack else None
            if get_origin(hint) is np.ndarray:
                (number,), shape = get_args(get_args(hint)[1]), shapes.get(attribute, "- -").split()
                encode = partial(_encode_array, np.dtype(number), own.message_type is None)
                decode = partial(self._decode_array, shape, np.dtype(number), own.message_type is None, argument)
                found.append(_Field(attribute, name, absent, encode, decode))
            else:
                found.append(_Field(attribute, name, absent, *_read_alone(_converter(hint, own, argument))))
        taken = {field.name for field in found}
        for name, own in wire.items():
            if name not in taken and isinstance(getattr(self.kind, name, None), property):
                found.append(_Field(name, name, None, _single(Any, own, name).encode, None))
        return found

    def _decode_array(
        self,
        shape: list[str],
        dtype: np.dtype[Any],
        plain: bool,
        argument: str,
        sent: Any,
        values: Values,
        lengths: dict[str, int],
    ) -> NDArray[Any]:
        """`plain`: sent as bytes, not as a matrix. `lengths`: those known so far, by letter; a matrix adds its own."""
        for letter in shape:
            if self.sizes is not None and letter in self.sizes and letter not in lengths:
                lengths[letter] = self.sizes[letter](values)
        expected = [lengths.get(letter) for letter in shape]
        if plain:
            return decode_numbers(sent, dtype, argument, expected[0])
        found = decode_rows(sent, argument) if "+" in shape else decode_matrix(sent, dtype, argument)
        sides = expected if len(expected) == 2 else [prod(own or 0 for own in expected[:2]), expected[2]]
        wanted = [own if side is None else side for side, own in zip(sides, found.shape, strict=True)]
        if wanted != list(found.shape):
            raise BadInput(f"{argument} are {found.dtype}{list(found.shape)} in place of {wanted}.", field=argument)
        if len(expected) == 3:
            return found.reshape([own or 0 for own in expected])
        lengths |= {letter: own for letter, own in zip(shape, wanted, strict=True) if letter not in _FREE}
        return found


class _Field(NamedTuple):
    attribute: str
    name: str
    """Of the message's field."""
    absent: Values | None
    """The value if the field is absent; None to decode it anyway."""
    encode: Callable[[Any], Any]
    decode: Callable[[Any, Values, dict[str, int]], Any] | None
    """From the field's value, the fields that were read before, and the lengths that are known. None for a property."""


def _read_alone(converter: Converter) -> tuple[Callable[[Any], Any], Callable[[Any, Values, dict[str, int]], Any]]:
    return converter.encode, lambda sent, _values, _lengths: converter.decode(sent)


def _encode_array(dtype: np.dtype[Any], plain: bool, array: NDArray[Any]) -> Any:
    array = array.astype(dtype, copy=False)
    if plain:
        return encode_numbers(array)
    return encode_matrix(array if array.ndim == 2 else array.reshape(prod(array.shape[:2]), array.shape[2]))


def enum_names(enum: EnumDescriptor) -> dict[str, int]:
    """The names of an enum's values, as dataclasses have them."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return {own.name.removeprefix(prefix).lower().replace("_", " "): own.number for own in enum.values[1:]}


def encode_text(value: str, argument: str) -> str:
    """The text. Raises BadInput if it is not valid UTF-8, such as stray bytes from a command line."""
    if not isinstance(value, str):
        raise BadInput(f"{argument} is of type {type(value).__name__}, not a text.", field=argument)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{argument} is {value!r}, which is no valid text.", field=argument) from None
    return value


def encode_int64(value: SupportsIndex, argument: str) -> int:
    try:
        number = value.__index__()
    except AttributeError:
        raise BadInput(f"{argument} holds {value!r}, which is no whole number.", field=argument) from None
    if not -(2**63) <= number < 2**63:
        raise BadInput(f"{argument} holds {number}, which is beyond 64 bits.", field=argument)
    return number


def _nested(kind: Any, message: type[Message]) -> Converter:
    codec = CODECS.setdefault(kind, Codec(kind, message))
    return Converter(codec.encode, codec.decode)


def _same(value: Any) -> Any:
    return value


def _converter(hint: Any, field: Any, argument: str) -> Converter:
    if not field.is_repeated:
        return _single(hint, field, argument)
    if get_origin(hint) is not tuple:
        return _entries(get_args(hint)[1], field)
    encode, decode = _single(get_args(hint)[0], field, argument)
    return Converter(lambda values: [encode(value) for value in values], lambda sent: tuple(map(decode, sent)))


def _single(hint: Any, field: Any, argument: str) -> Converter:
    if field.enum_type is not None:
        return _enum(field.enum_type, argument)
    if field.message_type is None:
        encoders: dict[int, Any] = {FieldDescriptor.TYPE_STRING: encode_text, FieldDescriptor.TYPE_INT64: encode_int64}
        encode = encoders.get(field.type)
        return Converter(_same if encode is None else lambda value: encode(value, argument), _same)
    if field.message_type.name in CONVERTERS:
        return CONVERTERS[field.message_type.name]
    message = GetMessageClass(field.message_type)
    if is_dataclass(hint):
        return _nested(hint, message)
    (only,) = field.message_type.fields
    return within(message, only.name, _converter(hint, only, argument))


def within(message: type[Message], name: str, inner: Codec | Converter) -> Converter:
    """The value of one field of a message."""
    return Converter(
        lambda value: message(**{name: inner.encode(value)}), lambda sent: inner.decode(getattr(sent, name))
    )


def _enum(enum: EnumDescriptor, argument: str) -> Converter:
    numbers = enum_names(enum)
    names = {number: name for name, number in numbers.items()}
    if enum.name in UNSPECIFIED:
        names[0] = UNSPECIFIED[enum.name]

    def decode(number: int) -> str:
        if number not in names:
            raise BadInput(f"{argument} is {number}, which this version does not know.", field=argument)
        return names[number]

    return Converter(numbers.__getitem__, decode)


def _entries(hint: Any, field: Any) -> Converter:
    """A mapping with values of this type. It travels as a list, because maps of protobuf keep no order."""
    message, (key, *others) = GetMessageClass(field.message_type), field.message_type.fields
    if is_dataclass(hint):
        one = _nested(hint, message)
    else:
        one = within(message, others[0].name, _converter(hint, others[0], others[0].name))

    def encode(values: Mapping[str, Any]) -> list[Any]:
        entries = [one.encode(own) for own in values.values()]
        for entry, own in zip(entries, values, strict=True):
            setattr(entry, key.name, encode_text(own, key.name))
        return entries

    def decode(sent: Iterable[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for entry in sent:
            own = getattr(entry, key.name)
            if own in found:
                raise BadInput(f"{field.name} hold {key.name} {own!r} twice.", field=field.name)
            found[own] = one.decode(entry)
        return found

    return Converter(encode, decode)
