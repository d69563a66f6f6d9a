"""Messages between the tests and the solution: frames of JSON with typed values.

`encode` and `decode` support plain data. For other values they call `export` and `resolve`, with which each side
decides what the other can refer to.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# The values are of any type, and the Python is that of the sandbox. The programs start for each scoring, so slow
# imports are made only where needed.

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LONGEST_FRAME = 64 * 1024 * 1024
DEEPEST = 80
_SAFE_INTEGER = 2**53
TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
}
PLAIN_METHODS = {name for kind in TYPES.values() for name in dir(kind) if not name.startswith("_")}
_BY_HEX: Any = (float, bytes, bytearray)
_SETS: Any = (set, frozenset)
_HEX_NAMES: dict[str, Any] = {kind.__name__: kind for kind in _BY_HEX}
_VIEWS = (type({}.keys()), type({}.items()), type({}.values()))
_BY_TEXT = {
    "Decimal": ("decimal", ""),
    "Fraction": ("fractions", ""),
    "datetime": ("datetime", "fromisoformat"),
    "date": ("datetime", "fromisoformat"),
    "time": ("datetime", "fromisoformat"),
}
"""Types that are sent as text: their module, and the name of their parser if it is not the constructor."""


class Garbage(Exception):
    """Received data is not a valid value, or a value cannot be sent."""


def send(descriptor: int, message: Any) -> None:
    """Write one frame."""
    body = json.dumps(message).encode("ascii")
    if len(body) > LONGEST_FRAME:
        raise Garbage(f"the value is larger than {LONGEST_FRAME} bytes")
    remaining = memoryview(len(body).to_bytes(4, "big") + body)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def receive(descriptor: int) -> Any:
    """Read one frame; raise EOFError if the other side has ended."""
    length = int.from_bytes(_read(descriptor, 4), "big")
    if length > LONGEST_FRAME:
        raise Garbage(f"a frame of {length} bytes")
    try:
        return json.loads(_read(descriptor, length))
    except (ValueError, RecursionError) as error:
        raise Garbage(f"a frame that is not JSON: {error}") from None


def _read(descriptor: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        # Read in parts, because the length is untrusted: allocate only for received data.
        part = os.read(descriptor, min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def encode(value: Any, export: Callable[[Any], Any], depth: int = 0) -> Any:
    """Encode a value as JSON; subclasses of builtin types are sent as the builtin type."""
    if depth > DEEPEST:
        raise Garbage(f"the value is nested more than {DEEPEST} levels deep, or contains itself")

    def inner(values: Any) -> list[Any]:
        return [encode(item, export, depth + 1) for item in values]

    if value is None or isinstance(value, (bool, str)):
        return value if value is None or isinstance(value, bool) else str.__str__(value)
    if isinstance(value, int):
        # Large integers in hexadecimal, because Python limits decimals to 4300 digits.
        return int(value) if -_SAFE_INTEGER < value < _SAFE_INTEGER else {"int": hex(value)}
    if isinstance(value, complex):
        return {"complex": [float.hex(value.real), float.hex(value.imag)]}
    for kind in _BY_HEX:  # exact for floats, including infinities, which JSON lacks
        if isinstance(value, kind):
            return {kind.__name__: kind.hex(value)}
    # Use the methods of the builtin types, because a subclass could override them to return other items.
    if isinstance(value, list):
        return inner(list.__iter__(value))
    if isinstance(value, tuple):
        fields = getattr(type(value), "_fields", None)
        if isinstance(fields, tuple) and len(fields) == tuple.__len__(value):
            return {"namedtuple": [type(value).__name__, list(map(str, fields)), inner(tuple.__iter__(value))]}
        return {"tuple": inner(tuple.__iter__(value))}
    for kind in _SETS:
        if isinstance(value, kind):
            return {kind.__name__: inner(kind.__iter__(value))}
    if isinstance(value, dict):
        counter = getattr(sys.modules.get("collections"), "Counter", None)
        return {"Counter" if type(value) is counter else "dict": [inner(pair) for pair in dict.items(value)]}
    if isinstance(value, range):
        return {"range": inner((value.start, value.stop, value.step))}
    return _encode_library_value(value, inner, export)


def _encode_library_value(value: Any, inner: Callable[[Any], list[Any]], export: Callable[[Any], Any]) -> Any:
    kind = type(value)
    module, reader = _BY_TEXT.get(kind.__name__, ("", ""))
    if module and kind is getattr(sys.modules.get(module), kind.__name__, None):
        return {"text": [kind.__name__, value.isoformat() if reader else str(value)]}
    if kind in _VIEWS or kind is getattr(sys.modules.get("collections"), "deque", None):
        return {kind.__name__: inner(value)}
    if kind is getattr(sys.modules.get("datetime"), "timedelta", None):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        plain = value.tolist()
        return {"array": inner([plain])[0]} if kind.__name__ == "ndarray" else inner([plain])[0]
    if isinstance(value, type) and TYPES.get(value.__name__) is value:
        return {"type": value.__name__}
    return export(value)


def decode(data: Any, resolve: Callable[[str, Any], Any], depth: int = 0) -> Any:
    """Decode a value from JSON; builtin types are constructed here from their parts."""
    if depth > DEEPEST:
        raise Garbage("a value is nested too deep")

    def inner(values: Any) -> list[Any]:
        if not isinstance(values, list):
            raise Garbage("a value is malformed")
        return [decode(item, resolve, depth + 1) for item in values]

    if data is None or isinstance(data, (bool, int, str)):
        return data
    if isinstance(data, list):
        return inner(data)
    if not isinstance(data, dict) or len(data) != 1:
        raise Garbage("a value is malformed")
    ((tag, content),) = data.items()
    try:
        return _build(tag, content, inner, resolve)
    except Garbage:
        raise
    except (TypeError, ValueError, KeyError, ArithmeticError, AttributeError) as error:
        raise Garbage(f"a value is malformed: {error}") from None


def _build(tag: str, content: Any, inner: Callable[[Any], list[Any]], resolve: Callable[[str, Any], Any]) -> Any:
    if tag in ("tuple", "set", "frozenset"):
        return TYPES[tag](inner(content))
    if tag == "dict":
        return dict(inner(pair) for pair in content)
    if tag in _HEX_NAMES:
        return _HEX_NAMES[tag].fromhex(content)
    if tag == "int":
        return int(content, 16)
    if tag == "complex":
        return complex(*map(float.fromhex, content))
    if tag == "range":
        return range(*inner(content))
    if tag == "text":
        module, reader = _BY_TEXT[content[0]]
        kind = getattr(__import__(module), content[0])
        return (getattr(kind, reader) if reader else kind)(content[1])
    if tag == "timedelta":
        return __import__("datetime").timedelta(*inner(content))
    if tag == "namedtuple":
        values = inner(content[2])
        if PLAIN_METHODS.intersection(content[1]):  # a field must not replace a method of plain data
            return tuple(values)
        return __import__("collections").namedtuple(content[0], content[1])(*values)
    if tag == "deque":
        return __import__("collections").deque(inner(content))
    if tag == "Counter":
        return __import__("collections").Counter(dict(inner(pair) for pair in content))
    if tag == "dict_keys":
        return dict.fromkeys(inner(content)).keys()
    if tag == "dict_items":
        return dict(inner(content)).items()
    if tag == "dict_values":
        return dict(enumerate(inner(content))).values()
    if tag == "type":
        return TYPES[content]
    if tag == "array":
        plain = inner([content])[0]
        numpy = sys.modules.get("numpy")
        return numpy.array(plain) if numpy else plain
    return resolve(tag, content)
