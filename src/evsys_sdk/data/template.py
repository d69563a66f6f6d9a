"""Text with `{field}` placeholders, filled from a row.

Only `{name}` and `{name.name}` are placeholders, with names of letters, digits and underscores. Other braces stay
unchanged, so JSON, code and LaTeX need no escapes: `{"a": {query}}` has one placeholder. Write `{{name}}` for the text
`{name}`. Lists and objects are inserted as compact JSON; null is refused, because "None" is not an answer.

    render = compile_template("Query: {query}")
    render({"query": "hi"})  # 'Query: hi'
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from .bad_rows import MissingValueError
from .fields import Reader, require

type Render = Callable[[Mapping[str, Any]], str]

_NAME = r"[^\W\d]\w*(?:\.-?\w+)*"
_PLACEHOLDER = re.compile(r"\{\{(" + _NAME + r")\}\}|\{(" + _NAME + r")\}")


def compile_template(text: str) -> Render:
    """A function that fills the template from a row; a missing field is an error."""
    literals, names = _split(text)
    readers = [require(name) for name in names]
    if len(names) == 1:  # fast path: most templates have one field
        return _render_one(literals[0], names[0], readers[0], literals[1])
    rest = list(zip(names, readers, literals[1:], strict=True))

    def render(row: Mapping[str, Any]) -> str:
        parts = [literals[0]]
        for name, read, literal in rest:
            value = read(row)
            parts.append(value if value.__class__ is str else as_text(value, name))
            parts.append(literal)
        return "".join(parts)

    return render


def fields_of(text: str) -> list[str]:
    """The fields of a template, in order of appearance."""
    return _split(text)[1]


def as_text(value: Any, name: str) -> str:
    """The text of a field's value."""
    if isinstance(value, str):
        return value
    if value is None:
        remedy = "Drop such rows with filter, leave them out with `on_bad_row: skip`, or fill the field in."
        raise MissingValueError(f"the field '{name}' is null. {remedy}", name)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return str(value)


def _render_one(before: str, name: str, read: Reader, after: str) -> Render:
    def render(row: Mapping[str, Any]) -> str:
        value: Any = row.get(name)
        if value.__class__ is not str:  # also if missing or nested
            value = as_text(read(row), name)
        return before + value + after

    return render


def _split(text: str) -> tuple[list[str], list[str]]:
    """The literal parts (one more than fields) and the fields between them."""
    literals, names, end = [""], list[str](), 0
    for match in _PLACEHOLDER.finditer(text):
        literals[-1] += text[end : match.start()]
        end = match.end()
        if match[1]:
            literals[-1] += f"{{{match[1]}}}"
        else:
            names.append(match[2])
            literals.append("")
    literals[-1] += text[end:]
    return literals, names
