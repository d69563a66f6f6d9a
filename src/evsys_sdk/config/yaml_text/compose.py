"""From clean text to a tree of nodes that know where they were written.

Reads the parser's events itself: the parsers' own composers have no bound on depth, and stop at the first problem.
Aliases and merges are resolved on the way, and sizes are summed over them, so an alias bomb is found before anything
is expanded. All problems of meaning are collected; a syntax error ends the reading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import yaml

from ...errors import MISSING, ConfigError, Problem, closest
from .scalars import TAG_PREFIX, BadScalar, Scalar, plain_value, read_tagged

MAX_VALUES: Final = 1_000_000
"""Values in one document, with aliases expanded."""
MAX_DEPTH: Final = 100
"""Levels of lists and mappings inside each other, with aliases expanded."""
_MAX_PROBLEMS: Final = 100
"""Where reading gives up: a file with more is not a config with mistakes but something else."""
_MANY_ANCHORS: Final = 1_000
"""From here on, looking for a similar name takes too long."""

_SCALAR_KINDS = frozenset({"str", "int", "float", "bool", "null"})
_TAG_DIRECTIVE = re.compile(r"^%TAG\b", re.MULTILINE)
_SWALLOWED_ITEM = re.compile(r"[\r\n][ \t]*-[ \t]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_EMPTY = Problem("the YAML text is empty", hint="Add at least one line such as 'key: value'.")


@dataclass(slots=True, eq=False)
class Node:
    """A value and where it stands, both from 0; an alias stands where it is, and holds what its anchor holds."""

    line: int
    column: int
    value: Scalar | list[Node] | dict[str, tuple[Node, Node]]
    """Of a mapping: the key and the value by name, with what was merged into it."""
    size: int = 1
    """Values in it, itself included."""
    height: int = 0
    """Levels of lists and mappings, itself included."""

    def to_data(self) -> Any:
        """The plain data, independent of every other part of the document."""
        if isinstance(self.value, list):
            return [item.to_data() for item in self.value]
        if isinstance(self.value, dict):
            return {name: value.to_data() for name, (_, value) in self.value.items()}
        return self.value


def excerpt(text: str, length: int = 80) -> str:
    """`text` cut to what a sentence can hold; a config may be one line of five million characters."""
    return text if len(text) <= length else f"{text[:length]}…"


def compose(text: str, file: str | None) -> Node:
    """The only document in `text`."""
    return _Composer(text, file).compose()


class _Composer:
    def __init__(self, text: str, file: str | None) -> None:
        self._text, self._file = text, file
        self._parser: Any = None
        self._problems: list[Problem] = []
        self._anchors: dict[str, Node] = {}
        self._open: list[Node] = []
        """The lists and mappings that are being read, the outermost first."""
        self._in_refused_key = False

    def compose(self) -> Node:
        found = _TAG_DIRECTIVE.search(self._text)
        if found:  # without a use where tags are refused, and the parsers take quadratic time over many of them
            line = self._text.count("\n", 0, found.start()) + 1
            self._stop(Problem("'%TAG' lines are not supported", hint="Remove the line.", line=line, column=1))
        # libyaml where PyYAML was built with it; what it lets pass differently is checked here for both.
        self._parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(self._text)
        try:
            root = self._read_document()
        except ConfigError:  # it is a ValueError as well, and must not be taken for the parser's
            raise
        except yaml.MarkedYAMLError as error:
            from .syntax import explain

            self._stop(explain(error, self._text))
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # the pure Python parser lets some escape
            line = getattr(self._parser, "line", None)
            self._stop(Problem(f"this is not YAML: {error}", line=None if line is None else line + 1))
        finally:
            self._parser.dispose()
        if self._problems:
            raise ConfigError(self._problems)
        return root

    def _read_document(self) -> Node:
        self._parser.get_event()  # the start of the stream
        if self._parser.check_event(yaml.StreamEndEvent):
            self._stop(_EMPTY)
        self._parser.get_event()
        first = self._parser.peek_event()  # of comments alone the parser makes an empty value
        if isinstance(first, yaml.ScalarEvent) and first.implicit[0] and not first.value:  # pyright: ignore[reportUnknownMemberType]
            self._stop(_EMPTY)
        root = self._read_node()
        self._parser.get_event()
        if not self._parser.check_event(yaml.StreamEndEvent):
            hint = "Remove this '---' and what follows, or put it into a file of its own."
            message = "a second document starts here; one file holds one document"
            self._fail(message, self._parser.get_event().start_mark, hint=hint)
        return root

    def _read_node(self) -> Node:
        event = self._parser.get_event()
        if isinstance(event, yaml.AliasEvent):
            return self._find_anchor(event)
        mark = event.start_mark
        node = Node(mark.line, mark.column, None)
        if event.anchor is not None:
            # Before its content is read, so that an alias inside it is found to stand in what it refers to.
            self._name(event.anchor, node)
        if isinstance(event, yaml.ScalarEvent):
            node.value = self._read_scalar(event)
            return node
        is_list = isinstance(event, yaml.SequenceStartEvent)
        if event.tag not in (None, "!", f"{TAG_PREFIX}{'seq' if is_list else 'map'}"):
            self._refuse_tag(event, "a list" if is_list else "a mapping")
        self._open.append(node)
        # Before going in: every level is a call, and deeper text must end in a message and not in a RecursionError.
        self._check_depth(node, 0)
        node.height = 1
        node.value = self._read_items(node) if is_list else self._read_entries(node)
        self._open.pop()
        return node

    def _read_items(self, around: Node) -> list[Node]:
        items: list[Node] = []
        while not self._parser.check_event(yaml.SequenceEndEvent):
            items.append(self._read_node())
            self._grow(around, items[-1])
        self._parser.get_event()
        return items

    def _read_entries(self, around: Node) -> dict[str, tuple[Node, Node]]:
        entries: dict[str, tuple[Node, Node]] = {}
        merges: list[tuple[Node, Node]] = []
        while not self._parser.check_event(yaml.MappingEndEvent):
            event = self._parser.peek_event()
            key, is_usable = self._read_key(event)
            self._grow(around, key)  # keys count: a mapping of a million of them is large as well
            value = self._read_node()
            self._grow(around, value)
            if _is_merge(event):
                merges.append((key, value))
            elif is_usable:
                self._add_entry(entries, key, value)
        self._parser.get_event()
        return self._merge(merges) | entries  # its own win

    def _read_key(self, event: Any) -> tuple[Node, bool]:
        """A key, and whether it can be one: a key is text."""
        refused = {yaml.SequenceStartEvent: "a list", yaml.MappingStartEvent: "a mapping"}.get(event.__class__, "")
        if refused:  # said before what is in it, and instead of that: {{{{ x }}}}
            self._refuse_key(refused, event.start_mark, "Put it in quotes if it is text, such as a {{ template }}.")
        before, self._in_refused_key = self._in_refused_key, self._in_refused_key or bool(refused)
        key = self._read_node()
        self._in_refused_key = before
        if refused or isinstance(key.value, str):
            return key, not refused
        if isinstance(event, yaml.AliasEvent):
            self._refuse_key("an alias of something else", key, "Write the key itself.")
        else:
            kind = "null" if key.value is None else "a boolean" if isinstance(key.value, bool) else "a number"
            self._refuse_key(kind, key, f'Put it in quotes: "{excerpt(event.value)}".')
        return key, False

    def _refuse_key(self, kind: str, at: Any, hint: str) -> None:
        if not self._in_refused_key:
            self._add(f"a key must be text, and this one is {kind}", at, hint=hint)

    def _add_entry(self, entries: dict[str, tuple[Node, Node]], key: Node, value: Node) -> None:
        name = str(key.value)
        if name in entries:
            first = entries[name][0].line + 1
            message = f"key '{excerpt(name)}' is given twice: on line {first} and on line {key.line + 1}"
            self._add(message, key, hint="Remove or rename one of them.")
        else:
            entries[name] = (key, value)

    def _merge(self, merges: list[tuple[Node, Node]]) -> dict[str, tuple[Node, Node]]:
        """What `<<` brings; of several mappings the earlier ones win."""
        for key, _ in merges[1:]:
            message = f"'<<' is given twice: on line {merges[0][0].line + 1} and on line {key.line + 1}"
            self._add(message, key, hint="Merge several mappings with one list: '<<: [*first, *second]'.")
        found: dict[str, tuple[Node, Node]] = {}
        for _, value in merges[:1]:
            for source in value.value if isinstance(value.value, list) else [value]:
                if isinstance(source.value, dict):
                    found = source.value | found
                else:
                    shown = "a list" if isinstance(source.value, list) else excerpt(str(source.value))
                    hint = "Write '<<: *name' with the anchor of a mapping, or quote '<<' if it is meant literally."
                    self._add("'<<' can only merge mappings", value, value=shown, hint=hint)
        return found

    def _read_scalar(self, event: Any) -> Scalar:
        text: str = event.value
        try:
            if event.tag is None and event.implicit[0]:
                self._check_lines(event)
                return plain_value(text)
            if event.tag is None and not text.isascii() and _SURROGATE.search(text):  # libyaml refuses this by itself
                hint = "Write the character itself instead of its two halves."
                self._add("an escape stands for half of a surrogate pair", event.start_mark, hint=hint)
            if event.tag in (None, "!"):
                return text
            kind = event.tag.removeprefix(TAG_PREFIX)
            if kind in _SCALAR_KINDS:
                return read_tagged(kind, text)
            if kind != "merge":
                self._refuse_tag(event, "a single value")
        except BadScalar as bad:
            self._add(str(bad), event.start_mark, value=excerpt(text), hint=bad.hint)
        return text

    def _check_lines(self, event: Any) -> None:
        """Refuse unquoted text that has swallowed a list item, because it was indented further than its list."""
        start, end = event.start_mark, event.end_mark
        if end.line != start.line and _SWALLOWED_ITEM.search(self._text, start.index, end.index):
            message = f"this unquoted text goes on over the '- ' on a line below and ends on line {end.line + 1}"
            hint = "Align the '-' with the other items of its list; for text of several lines use '|' or quotes."
            self._add(message, start, value=excerpt(event.value), hint=hint)

    def _name(self, anchor: str, node: Node) -> None:
        earlier = self._anchors.setdefault(anchor, node)
        if earlier is not node:
            lines = f"on line {earlier.line + 1} and on line {node.line + 1}"
            self._add(f"anchor '&{excerpt(anchor)}' is defined twice: {lines}", node, hint="Rename one of them.")

    def _find_anchor(self, event: Any) -> Node:
        name, mark = excerpt(event.anchor), event.start_mark
        target = self._anchors.get(event.anchor)
        if target is None:
            guess = closest(name, self._anchors) if len(self._anchors) < _MANY_ANCHORS else None
            hint = f"Did you mean '*{guess}'?" if guess else f"Define it above with '&{name}', or quote the text."
            self._add(f"alias '*{name}' has no anchor above it", mark, hint=hint)
            target = Node(mark.line, mark.column, f"*{name}")
        if any(around is target for around in self._open):  # a copy of it would never end
            self._fail(f"alias '*{name}' stands inside what it refers to", mark, hint="Data cannot contain itself.")
        self._check_depth(mark, target.height)
        return replace(target, line=mark.line, column=mark.column)

    def _grow(self, around: Node, inner: Node) -> None:
        around.size += inner.size
        around.height = max(around.height, 1 + inner.height)
        if around.size > MAX_VALUES:
            hint = "Keep rows in a data file, and do not nest aliases in aliases."
            message = f"the document holds more than {MAX_VALUES:,} values once aliases are expanded"
            self._fail(message, inner, hint=hint)

    def _check_depth(self, at: Any, height: int) -> None:
        if len(self._open) + height > MAX_DEPTH:
            hint = "Flatten the data, or look for a bracket or alias too many."
            self._fail(f"lists and mappings are nested more than {MAX_DEPTH} levels deep", at, hint=hint)

    def _refuse_tag(self, event: Any, what: str) -> None:
        kind = event.tag.removeprefix(TAG_PREFIX)
        shown = excerpt(event.tag if kind == event.tag else f"!!{kind}")
        if kind in {*_SCALAR_KINDS, "seq", "map"}:
            self._add(f"tag '{shown}' does not fit {what}", event.start_mark, hint="Remove the tag.")
            return
        message = f"tag '{shown}' is not supported: YAML here is data and builds no objects"
        hint = "Remove the tag and write plain values; put text that begins with '!' in quotes."
        self._add(message, event.start_mark, hint=hint)

    def _add(self, message: str, at: Any, *, value: Any = MISSING, hint: str = "") -> None:
        """Note a problem at a mark or a node, and go on reading."""
        here = Problem(message, value=value, hint=hint, line=at.line + 1, column=at.column + 1)
        if len(self._problems) + 1 >= _MAX_PROBLEMS:
            self._stop(here)
        self._problems.append(here.located(file=self._file))

    def _fail(self, message: str, at: Any, *, hint: str) -> NoReturn:
        self._stop(Problem(message, hint=hint, line=at.line + 1, column=at.column + 1))

    def _stop(self, problem: Problem) -> NoReturn:
        """Raise everything found so far, `problem` last, because reading cannot go on."""
        raise ConfigError([*self._problems, problem.located(file=self._file)]) from None


def _is_merge(event: Any) -> bool:
    """Whether a key is `<<`, unquoted."""
    if not isinstance(event, yaml.ScalarEvent):
        return False
    found: Any = event
    return found.value == "<<" and (found.implicit[0] or found.tag == f"{TAG_PREFIX}merge")
