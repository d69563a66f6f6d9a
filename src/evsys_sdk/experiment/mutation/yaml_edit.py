"""Changing single values in the text of a YAML file, so that its comments and its layout stay.

Each edit is checked by reading the result back. Where the text cannot be edited safely (the value is shared through an
anchor, for instance) the whole file is written anew from its data, which loses comments but nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import yaml

from ...config.fields import Path
from ...config.yaml_text import read_yaml
from ...config.yaml_write import write_yaml
from ...errors import EvsysError


def edit(text: str, changes: Mapping[Path, Any]) -> str:
    """The file with some values set; keys that are not there yet are added."""
    wanted = read_yaml(text).data
    for path, value in changes.items():
        wanted = _set(wanted, path, value)
    try:
        result = text
        for path, value in changes.items():  # each reads the text anew: positions have moved since the one before
            result = _edit(result, path, value)
        if read_yaml(result).data == wanted:
            return result
    except (_NotEditableError, EvsysError, yaml.YAMLError):
        pass
    return write_yaml(wanted)


class _NotEditableError(Exception):
    """The text has no place of its own for the value."""


def _set(node: Any, path: Path, value: Any) -> Any:
    """A copy of `node` with `value` at `path`; mappings on the way are made where there are none."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        items = list(cast("list[Any]", node))
        items[key] = _set(items[key], rest, value)
        return items
    entries: dict[str, Any] = dict(cast("dict[str, Any]", node)) if isinstance(node, dict) else {}
    entries[key] = _set(entries.get(key), rest, value)
    return entries


def _edit(text: str, path: Path, value: Any) -> str:
    root = cast("Any", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    shared = _find_shared(root)
    node: Any = root
    for depth, part in enumerate(path):
        if id(node) in shared:
            raise _NotEditableError
        found = _child(node, part)
        if found is None:
            return _insert(text, node, path[depth:], value)
        node = found
    flow = isinstance(node, yaml.ScalarNode) or node.flow_style
    if id(node) in shared or not flow or (isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")):
        raise _NotEditableError
    start, end = node.start_mark.index, node.end_mark.index
    if start == end:  # `key:` with nothing behind it
        raise _NotEditableError
    return text[:start] + _flow(value) + text[end:]


def _insert(text: str, node: Any, rest: Path, value: Any) -> str:
    """Add a key to a mapping, with everything that it is to hold."""
    if not isinstance(node, yaml.MappingNode) or isinstance(rest[0], int):
        raise _NotEditableError
    for key in reversed(rest[1:]):
        value = {key: value}
    entry = f"{_flow(rest[0])}: {_flow(value)}"
    entries = cast("list[tuple[Any, Any]]", node.value)
    if node.flow_style:
        if not entries:
            start = node.start_mark.index
            return f"{text[:start]}{{ {entry} }}{text[node.end_mark.index :]}"
        end = entries[-1][1].end_mark.index
        return f"{text[:end]}, {entry}{text[end:]}"
    key, held = entries[0]
    first = key.start_mark
    if isinstance(held, yaml.ScalarNode) and held.end_mark.line == first.line and held.start_mark.index > first.index:
        line_end = text.find("\n", held.end_mark.index)
        line_end = len(text) if line_end < 0 else line_end
        return f"{text[:line_end]}\n{' ' * first.column}{entry}{text[line_end:]}"
    # Before the first key: where the value behind it ends is not known exactly.
    return f"{text[: first.index]}{entry}\n{' ' * first.column}{text[first.index :]}"


def _child(node: Any, part: str | int) -> Any:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part] if part < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        # What seems to stand here may come from the mapping that is merged.
        if any(key.value == "<<" for key, _ in node.value):
            raise _NotEditableError
        return next((value for key, value in node.value if key.value == part), None)
    raise _NotEditableError


def _find_shared(root: Any) -> set[int]:
    """Nodes that stand in several places, through an anchor and its aliases."""
    seen: set[int] = set()
    twice: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) in seen:
            twice.add(id(node))
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending += node.value
        elif isinstance(node, yaml.MappingNode):
            pending += [inner for pair in node.value for inner in pair]
    return twice


def _flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value).items()
        return "{ " + ", ".join(f"{_flow(key)}: {_flow(inner)}" for key, inner in entries) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(inner) for inner in cast("list[Any]", value)) + "]"
    text = write_yaml(value).strip()
    # What is plain outside of brackets may end an entry inside of them.
    unsafe = isinstance(value, str) and not text.startswith(('"', "'")) and any(mark in text for mark in ",[]{}#&*\n")
    return json.dumps(value) if unsafe or "\n" in text else text
