"""Strict YAML reader: text to plain data with positions. `yaml_write` writes it back.

Reading follows the YAML 1.2 core rules on PyYAML's nodes and refuses ambiguous input: duplicate keys, keys that are not
text, custom tags, several documents, alias bombs. Each refusal is a `ConfigError` with the line, the value and the
remedy. The top level may be any value.

    document = read_yaml_file(Path("config.yaml"))
    document.data["run"]["algorithm"]                    # plain dict, list, str, int, float, bool, None
    document.position(("run", "algorithm", "kind"))      # (12, 5)
    read_yaml(write_yaml(data)).data == data

| written            | read as | because                                                                         |
|--------------------|---------|---------------------------------------------------------------------------------|
| `yes no on off`    | text    | as in YAML 1.2; only `true` and `false` (`True`, `TRUE` ...) are booleans       |
| `1e-5 1E5 .5 5.`   | float   | as in YAML 1.2; YAML 1.1 readers see text in `1e-5`                             |
| `0x10 0o17`        | int     |                                                                                 |
| `1_000 0b1 1:30`   | text    | as in YAML 1.2; underscores, binary and base 60 are YAML 1.1                    |
| `012`              | refused | 12 in YAML 1.2 and 10 in YAML 1.1: quote it or drop the zero                    |
| `1e999`            | refused | not a finite number; infinity is `.inf`                                         |
| `2024-01-01`       | text    | dates stay text                                                                 |
| `<<: *base`        | merge   | the mapping's own keys win; with a list of mappings the earlier ones win        |
"""

from __future__ import annotations

import math
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import yaml

from ..errors import MISSING, ConfigError, Problem, closest

MAX_BYTES: Final = 5_000_000
"""The largest YAML file read by default."""
_MAX_VALUES: Final = 1_000_000
"""Values in one document, with aliases expanded."""
MAX_DEPTH: Final = 100
"""Levels of lists and mappings, with aliases expanded."""
MAX_DIGITS: Final = 1_000
"""Longer numbers are probably unquoted text, and slow to convert."""
_MAX_PROBLEMS: Final = 100
_TOO_DEEP: Final = f"lists and mappings are nested more than {MAX_DEPTH} levels deep"

TAG: Final = "tag:yaml.org,2002:"
PATTERNS: Final = {
    "bool": ("tTfF", r"true|True|TRUE|false|False|FALSE"),
    "int": ("-+0123456789", r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+"),
    "float": (
        "-+0123456789.",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    ),
    "null": ("~nN", r"~|null|Null|NULL|"),
    "merge": ("<", "<<"),
}
"""Unquoted scalars by the YAML 1.2 core schema: tag -> first characters, pattern."""
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters that YAML forbids, or (U+0085, U+2028, U+2029) that break a line in YAML 1.1 only."""
_SWALLOWED_ITEM = re.compile(r"[\r\n][ \t]*-[ \t]")


# A subclass of libyaml's loader where PyYAML has it, with the resolvers of YAML 1.2 alone.
_Loader: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {"yaml_implicit_resolvers": {}})
for _kind, (_first, _pattern) in PATTERNS.items():
    _found = re.compile(f"(?:{_pattern})$")
    _Loader.add_implicit_resolver(f"{TAG}{_kind}", _found, ["", *_first] if _kind == "null" else list(_first))


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: its data, and the line and column of every value in it."""

    data: Any
    """Plain dict, list, str, int, float, bool or None; aliases are copied, not shared."""
    file: str | None
    _root: Any = field(repr=False, compare=False)

    def position(self, path: tuple[str | int, ...]) -> tuple[int, int] | None:
        """Line and column (from 1) of the value at `path`, or of its key in a mapping.

        A missing path gives the place of its nearest existing parent. For an alias or a merge it is the place of the
        original value.
        """
        node = place = self._root
        for step in path:
            if isinstance(node, yaml.MappingNode) and step in (entries := _entries(node)):
                place, node = entries[step]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
                place = node = node.value[step]
            else:
                break
        return place.start_mark.line + 1, place.start_mark.column + 1


def read_yaml(text: str | bytes, *, file: str | None = None) -> Document:
    """Parse one YAML document; `file` is the name in error messages."""
    reader = _Reader(_decode(text, file), file)
    root = reader.compose()
    reader.measure(root)
    data = reader.construct(root)
    if reader.problems:
        raise ConfigError(list(reader.problems.values()))
    return Document(data, file, root)


def read_yaml_file(path: Path, *, max_bytes: int = MAX_BYTES) -> Document:
    """Parse a YAML file, which must be a regular file of at most `max_bytes`."""
    return read_yaml(_read_bytes(path, max_bytes), file=str(path))


def _excerpt(text: str, length: int = 80) -> str:
    """`text` cut to `length` characters."""
    return text if len(text) <= length else f"{text[:length]}…"


class _Reader:
    """Parses text to nodes and nodes to data, and collects the problems."""

    def __init__(self, text: str, file: str | None) -> None:
        self._text, self._file = text, file
        self.problems: dict[tuple[int, int], Problem] = {}
        """(Line, column) -> problem, so that an aliased value is reported once."""
        self._sizes: dict[int, tuple[int, int]] = {}
        """Id of a node -> number of values and levels in it."""

    def compose(self) -> Any:
        if match := re.search(r"^%TAG\b", self._text, re.MULTILINE):  # libyaml takes quadratic time for many of them
            self._stop(_at(self._text, match.start(), "'%TAG' lines are not supported", "Remove the line.", None))
        try:
            self._check_depth()
            root = _Loader(self._text).get_single_node()
        except ConfigError:  # a subclass of ValueError
            raise
        except yaml.MarkedYAMLError as error:
            self._stop(_explain(error, self._text))
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # the pure Python parser raises them too
            self._stop(Problem(f"this is not YAML: {error}"))
        if root is None or (isinstance(root, yaml.ScalarNode) and root.start_mark.index == root.end_mark.index):
            self._stop(Problem("the YAML text is empty", hint="Add at least one line such as 'key: value'."))
        return root

    def _check_depth(self) -> None:
        """Refuse deep nesting before composing, which recurses without a limit in libyaml."""
        depth = 0
        for event in cast(Any, yaml.parse(self._text, Loader=_Loader)):  # pyright: ignore[reportUnknownMemberType]
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                self._fail(_TOO_DEEP, event.start_mark, "Look for a bracket or alias too many.")

    def measure(self, node: Any) -> tuple[int, int]:
        """Number of values and levels in a node with aliases expanded; refuses alias bombs."""
        if (known_size := self._sizes.get(id(node))) is not None:
            if known_size == (0, 0):
                self._fail("this alias is inside the value it refers to", node.start_mark, "Write the value itself.")
            return known_size
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        self._sizes[id(node)] = (0, 0)
        size, height = 1, 0
        inner = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        for child in inner:
            child_size, child_height = self.measure(child)
            size, height = size + child_size, max(height, child_height)
        if size > _MAX_VALUES:
            hint = "Keep rows in a data file, and do not nest aliases in aliases."
            message = f"the document holds more than {_MAX_VALUES:,} values once aliases are expanded"
            self._fail(message, node.start_mark, hint)
        if height >= MAX_DEPTH:
            self._fail(_TOO_DEEP, node.start_mark, "Look for a bracket or alias too many.")
        self._sizes[id(node)] = (size, height + 1)
        return size, height + 1

    def construct(self, node: Any) -> Any:
        """The plain data of a node."""
        kind = node.tag.removeprefix(TAG)
        if isinstance(node, yaml.ScalarNode):
            return self._construct_scalar(node, kind)
        shape, expected = ("a list", "seq") if isinstance(node, yaml.SequenceNode) else ("a mapping", "map")
        if kind != expected:
            self._refuse_tag(node, shape)
        if isinstance(node, yaml.SequenceNode):
            return [self.construct(item) for item in node.value]
        self._check_keys(node)
        return {name: self.construct(value) for name, (_, value) in _entries(node).items()}

    def _check_keys(self, node: Any) -> None:
        keys: dict[str, Any] = {}
        for key, value in node.value:
            name = self.construct(key) if isinstance(key, yaml.ScalarNode) else None
            if not isinstance(name, str):
                kind = {"int": "a number", "float": "a number", "bool": "a boolean", "null": "null"}
                shown = kind.get(key.tag.removeprefix(TAG), "a list or a mapping")
                quoted = f': "{_excerpt(key.value)}"' if isinstance(key, yaml.ScalarNode) else " if it is text"
                self._add(f"a key must be text, and this one is {shown}", key, f"Put it in quotes{quoted}.")
            elif name in keys:
                lines = f"on line {keys[name].start_mark.line + 1} and on line {key.start_mark.line + 1}"
                self._add(f"key '{_excerpt(name)}' is given twice: {lines}", key, "Remove or rename one of them.")
            else:
                keys[name] = key
            sources = value.value if _is_merge(key) and isinstance(value, yaml.SequenceNode) else [value]
            if _is_merge(key) and not all(isinstance(source, yaml.MappingNode) for source in sources):
                hint = "Write '<<: *name' with the anchor of a mapping, or quote '<<' if it is meant literally."
                self._add("'<<' can only merge mappings", value, hint)

    def _construct_scalar(self, node: Any, kind: str) -> Any:
        text: str = node.value
        source = slice(node.start_mark.index, node.end_mark.index)
        if node.style in (None, "") and "\n" in self._text[source] and _SWALLOWED_ITEM.search(self._text[source]):
            hint = "Align the '-' with the other items of its list; for text of several lines use '|' or quotes."
            self._add("this unquoted text continues over the '- ' on a line below", node, hint, _excerpt(text))
        if kind in ("str", "merge"):
            return text
        if kind not in PATTERNS:
            self._refuse_tag(node, "a single value")
            return text
        pattern = PATTERNS["int" if kind == "float" and text.lstrip("+-").isdecimal() else kind][1]
        if not re.fullmatch(pattern, text):
            hint = "Remove the tag, or write a value of that type."
            self._add(f"tag '!!{kind}' does not fit this value", node, hint, _excerpt(text))
            return text
        if kind == "bool":
            return text.lower() == "true"
        return None if kind == "null" else self._construct_number(node, kind, text)

    def _construct_number(self, node: Any, kind: str, text: str) -> int | float:
        quote = "Put it in quotes if it is text"
        if len(text) > MAX_DIGITS and kind == "int":
            self._add(f"this number has {len(text)} digits", node, f"{quote}.", _excerpt(text))
            return 0
        if kind == "int":
            if re.fullmatch(r"[-+]?0[0-9]+", text):
                message = "a number with a leading zero is decimal to some YAML readers and octal to others"
                self._add(message, node, f"{quote}, drop the zero if it is a number; octal is 0o17.", text)
                return 0
            return int(text, 0)
        if text.lower().endswith(("inf", "nan")):
            return float(text.replace(".", ""))
        value = float(text)
        # A nonzero number must not underflow to 0, e.g. a learning rate of 1e-400.
        is_too_small = value == 0 and re.split("[eE]", text)[0].strip("+-0.")
        if math.isinf(value) or is_too_small:
            size = "small for a float and would become 0" if is_too_small else "large for a float"
            hint = "or write 0.0" if is_too_small else "infinity is written .inf"
            self._add(f"this number is too {size}", node, f"{quote}; {hint}.", _excerpt(text))
        return value

    def _refuse_tag(self, node: Any, node_kind: str) -> None:
        kind = node.tag.removeprefix(TAG)
        shown = _excerpt(node.tag if kind == node.tag else f"!!{kind}")
        if kind in {*PATTERNS, "str", "seq", "map"}:
            self._add(f"tag '{shown}' does not fit {node_kind}", node, "Remove the tag.")
            return
        hint = "Remove the tag and write plain values; put text that begins with '!' in quotes."
        self._add(f"tag '{shown}' is not supported: YAML here is data and builds no objects", node, hint)

    def _fail(self, message: str, mark: Any, hint: str) -> NoReturn:
        self._stop(Problem(message, hint=hint, line=mark.line + 1, column=mark.column + 1))

    def _add(self, message: str, node: Any, hint: str, value: Any = MISSING) -> None:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        problem = Problem(message, value=value, hint=hint, line=line, column=column)
        self.problems.setdefault((line, column), problem.located(file=self._file))
        if len(self.problems) >= _MAX_PROBLEMS:
            raise ConfigError(list(self.problems.values()))

    def _stop(self, problem: Problem) -> NoReturn:
        raise ConfigError(problem.located(file=self._file)) from None


def _is_merge(key: Any) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.tag == f"{TAG}merge"


def _entries(node: Any) -> dict[str, tuple[Any, Any]]:
    """Name -> key and value nodes of a mapping with `<<` merged; own keys win, then earlier mappings."""
    own: dict[str, tuple[Any, Any]] = {}
    merged: dict[str, tuple[Any, Any]] = {}
    for key, value in node.value:
        if _is_merge(key):
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(source, yaml.MappingNode):
                    merged = _entries(source) | merged
        elif isinstance(key, yaml.ScalarNode):
            own.setdefault(key.value, (key, value))
    return merged | own


_SYNTAX: Final = (
    ("quoted scalar; found unexpected", "<the quote opened here is not closed", "Add the closing quote."),
    ("quoted scalar", "this is not an escape that double quotes allow",
     "Write \\\\ for a backslash, or put the text in single quotes."),
    ("cannot start any token", "an unquoted value cannot begin with this character", "Put the value in quotes."),
    ("mapping values are not allowed",
     "a key cannot start here: an unquoted value cannot contain ': ', and the line above may not be finished",
     "Put the whole value in quotes, or check the indentation of both lines."),
    ("expected ':'", "<this line has no ': '", "Write 'key: value', with a space after the colon."),
    ("flow (sequence|mapping)", "<the bracket opened here is not closed, or a ',' is missing before the end of it",
     "Add the missing bracket or ','; put text that contains any of [ ] { } , : # in quotes."),
    ("parsing a block mapping", "this does not belong to the mapping above it",
     "Give all keys of a mapping the same indentation, and put text with special characters in quotes."),
    ("parsing a block collection", "this line is between the items of a list and is not an item",
     "Begin the line with '- ', or change its indentation to match what it belongs to."),
    ("<document start>", "this line does not belong to the lines above it",
     "Give all top-level keys the same indentation, and put text with special characters in quotes."),
    ("undefined alias", "this alias has no anchor above it", "Define it above with '&name', or quote the text."),
    ("duplicate anchor", "this anchor is defined twice", "Rename one of them."),
    ("single document", "a second document starts here; one file holds one document",
     "Remove this '---' and what follows, or put it into another file."),
    ("scanning an? (alias|anchor)|a tag|tag handle", "<an unquoted '*', '&' or '!' has a meaning in YAML",
     "Put the value in quotes."),
)  # fmt: skip
"""Pattern of the parser's message, our message, and the remedy. A message that begins with `<` is located at the start
of the construct, others where parsing stopped."""


def _explain(error: yaml.MarkedYAMLError, text: str) -> Problem:
    complaint = f"{error.context or ''}; {error.problem or ''}".strip("; ")
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Problem(f"this is not valid YAML: {complaint}")
    line = _line_at(text, mark)
    message, hint = f"this is not valid YAML: {complaint}", "Check this line and the one above it."
    if "\t" in line[: len(line) - len(line.lstrip())]:
        message = "this line is indented with a tab; YAML is indented with spaces only"
        hint = "Replace every tab at the start of a line by spaces, two per level."
    else:
        for pattern, own_message, remedy in _SYNTAX:
            if re.search(pattern, complaint):
                mark = error.context_mark or mark if own_message.startswith("<") else mark
                message, hint = own_message.removeprefix("<"), remedy
                break
    shown = _excerpt(_line_at(text, mark).strip(), 200)
    return Problem(message, value=shown or MISSING, hint=hint, line=mark.line + 1, column=mark.column + 1)


def _line_at(text: str, mark: Any) -> str:
    start = max(text.rfind("\n", 0, mark.index), text.rfind("\r", 0, mark.index)) + 1
    return text[start : start + 5_000].partition("\n")[0].rstrip("\r")


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file; refuses other files before opening them."""

    def refuse(message: str, hint: str = "") -> NoReturn:
        raise ConfigError(Problem(message, hint=hint, file=str(path))) from None

    content = b""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            refuse("this is a directory, not a file", "Give the path of a YAML file inside it.")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe waits for a writer
            hint = "Write the YAML to an ordinary file and give its path."
            refuse("this is a pipe, socket or device, not a regular file", hint)
        if status.st_size > max_bytes:
            hint = "Keep rows in a data file (for instance JSONL) and name that file in the YAML."
            refuse(f"this file has {status.st_size / 1e6:.1f} MB; at most {max_bytes / 1e6:g} MB are read", hint)
        with path.open("rb") as opened:
            content = opened.read(max_bytes)
    except FileNotFoundError:
        folder = path.parent
        guess = closest(path.name, [entry.name for entry in folder.iterdir()]) if folder.is_dir() else None
        absent = "Check the path." if folder.is_dir() else f"The folder '{folder}' does not exist either."
        refuse("there is no such file", f"Did you mean '{folder / guess}'?" if guess else absent)
    except OSError as error:
        hint = f"Make it readable, e.g. chmod u+r {path.name}" if isinstance(error, PermissionError) else ""
        refuse(f"this file cannot be read: {(error.strerror or str(error)).lower()}", hint)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(Problem(f"this is not a usable path: {error}", value=str(path))) from None
    return content


def _decode(source: str | bytes, file: str | None) -> str:
    """`source` as text without a byte order mark; refuses characters that YAML forbids."""
    hint = "Remove it, or write it as an escape inside double quotes; save the file as UTF-8."
    try:
        text = source if isinstance(source, str) else source.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"this text is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}"
        before = error.object[: error.start].decode("utf-8")
        raise ConfigError(_at(before, len(before), message, "Save the file as UTF-8.", file)) from None
    text = text.removeprefix("\ufeff")
    if bad := _FORBIDDEN.search(text):
        message = f"character U+{ord(bad.group()):04X} is not allowed in YAML text"
        raise ConfigError(_at(text, bad.start(), message, hint, file))
    return text


def _at(text: str, index: int, message: str, hint: str, file: str | None) -> Problem:
    before = text[:index].replace("\r\n", "\n").replace("\r", "\n")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return Problem(message, hint=hint, file=file, line=line, column=column)
