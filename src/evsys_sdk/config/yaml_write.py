"""Write plain data as YAML text that every YAML 1.1 or 1.2 reader reads as the same data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, NoReturn, cast, override

import yaml

from ..errors import ConfigError, Problem
from .yaml_text import MAX_DEPTH, MAX_DIGITS, PATTERNS, TAG

_NOT_IN_BLOCK_TEXT = re.compile(
    "^[ \t\n]|[ \t](?:\n|$)|[\x00-\x08\x0b-\x1f\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufff9-\uffff]"
)
"""Text that a `|` block would hide or lose, such as spaces at the end of a line."""


class _Dumper(yaml.SafeDumper):
    """Block style with indented lists, double quotes, no aliases; text that YAML 1.1 or 1.2 would misread is quoted."""

    @override
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)  # pyright: ignore[reportUnknownMemberType]

    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True

    @override
    def choose_scalar_style(self) -> Any:
        style = super().choose_scalar_style()
        text = cast(Any, self).event.value
        # Only double quotes can escape forbidden characters such as U+0085, which PyYAML reads as a newline.
        stays = text.isprintable() and ('"' in text or "\\" in text)
        return '"' if style == "'" and not stays else style


for _kind, (_first, _pattern) in PATTERNS.items():
    if _kind in ("int", "float"):
        cast(Any, _Dumper).add_implicit_resolver(f"{TAG}{_kind}", re.compile(f"(?:{_pattern})$"), list(_first))


def _represent_text(dumper: Any, text: str) -> Any:
    is_block = "\n" in text and not _NOT_IN_BLOCK_TEXT.search(text)
    if text.lower() in ("y", "n"):  # booleans of YAML 1.1, but not of PyYAML
        return dumper.represent_scalar(f"{TAG}str", text, style='"')
    return dumper.represent_scalar(f"{TAG}str", text, style="|" if is_block else None)


_Dumper.add_representer(str, _represent_text)


def write_yaml(value: Any) -> str:
    """`value` as YAML text; tuples become lists, and values that are not plain data are refused."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": False}
    text = cast(str, cast(Any, yaml).dump(_plain(value, "", 0), Dumper=_Dumper, width=math.inf, **options))
    return text.removesuffix("...\n") if text.count("\n") == 2 else text  # PyYAML ends a one-word document with `...`


def _plain(value: Any, path: str, depth: int) -> Any:
    """`value` in plain Python types; refuses values that YAML cannot hold, with their path."""

    def refuse(message: str, hint: str) -> NoReturn:
        raise ConfigError(Problem(message, path=path, hint=hint, value=value))

    if isinstance(value, Enum) and isinstance(value.value, str):
        value = value.value
    match value:
        case None | bool():
            return value
        case str():
            if re.search("[\ud800-\udfff]", value):
                refuse("a lone surrogate cannot be written as YAML", "Remove it from the text.")
            return str.__str__(value)
        case int():
            if value.bit_length() > 3 * MAX_DIGITS:
                raise ConfigError(Problem("this integer is too long for YAML", path=path, hint="Write it as text."))
            return int(value)
        case float():
            return float(value)
        case Mapping() | list() | tuple() if depth >= MAX_DEPTH:
            message = f"lists and mappings are nested more than {MAX_DEPTH} levels deep, or contain themselves"
            raise ConfigError(Problem(message, path=path, hint="Flatten the data."))
        case Mapping():
            entries: dict[str, Any] = {}
            for key, item in cast(Mapping[Any, Any], value).items():
                here = f"{path}.{key}" if path else str(key)
                if not isinstance(key, str):
                    raise ConfigError(Problem("a key must be text", path=here, hint="Use a string.", value=key))
                entries[_plain(key, here, depth)] = _plain(item, here, depth + 1)
            return entries
        case list() | tuple():
            return [_plain(item, f"{path}[{at}]", depth + 1) for at, item in enumerate(cast(list[Any], value))]
        case _:
            hint = "Convert it first: YAML holds text, numbers, true/false, null, lists and mappings."
            refuse(f"a value of type {type(value).__name__} cannot be written as YAML", hint)
