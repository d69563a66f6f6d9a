"""What an unquoted or tagged scalar means: null, boolean, integer, float or text, by the YAML 1.2 core rules."""

from __future__ import annotations

import math
import re
from typing import Final

type Scalar = str | int | float | bool | None

TAG_PREFIX: Final = "tag:yaml.org,2002:"
MAX_DIGITS: Final = 1_000
"""Longer numbers are text that somebody forgot to quote, and slow to convert."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NOT_FINITE = re.compile(r"(?P<sign>[-+]?)\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_INTEGER = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_MAY_NOT_BE_TEXT = frozenset("~nNtTfF.+-0123456789")


class BadScalar(ValueError):
    """A scalar that must not be guessed at; carries the remedy."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def plain_value(text: str) -> Scalar:
    """The value of an unquoted scalar."""
    if text and text[0] not in _MAY_NOT_BE_TEXT:  # most are words: their first character spares all that follows
        return text
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return _float(text)
    special = _NOT_FINITE.fullmatch(text)
    if special is None:
        return text
    if special["sign"] is None:
        return math.nan
    return -math.inf if special["sign"] == "-" else math.inf


def read_tagged(kind: str, text: str) -> Scalar:
    """The value of a scalar with a standard tag, e.g. `!!float 1` for kind `float`."""
    if kind == "str":
        return text
    value = plain_value(text)
    if kind == "float" and type(value) is int:
        return _float(str(value))
    if type(value) is {"int": int, "float": float, "bool": bool, "null": type(None)}[kind]:
        return value
    raise BadScalar(f"tag '!!{kind}' does not fit this value", "Remove the tag, or write a value of that type.")


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise BadScalar(f"this number has {len(text)} digits", "Put it in quotes if it is text.")
    if _LEADING_ZERO.fullmatch(text):
        message = "a number with a leading zero is decimal to some YAML readers and octal to others"
        raise BadScalar(message, "Put it in quotes if it is text, drop the zero if it is a number; octal is 0o17.")
    return int(text, 0)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        message = "this number is too large for a float"
        raise BadScalar(message, "Put it in quotes if it is text; infinity is written .inf")
    # A 0 that was not written as one: a learning rate of 1e-400 must not turn into no learning.
    mantissa = re.split("[eE]", text)[0]
    if value == 0 and mantissa.strip("+-0."):
        message = "this number is too small for a float and would become 0"
        raise BadScalar(message, "Put it in quotes if it is text, or write 0.0")
    return value
