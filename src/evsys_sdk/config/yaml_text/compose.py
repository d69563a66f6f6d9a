"""From clean text to the node graph, event by event.

Works on the parser's events with its own stack: the parsers' composers recurse, so deep nesting would exhaust the
stack, and their constructors would resolve tags. Sizes are summed over aliases while composing, so an alias bomb is
found before anything is expanded. All problems of meaning are collected; a syntax error ends the reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from ...errors import Problem, closest
from .nodes import AliasNode, MappingNode, Node, ScalarNode, SequenceNode, target_of
from .report import Report, excerpt
from .scalars import TAG_PREFIX, BadScalar, Scalar, plain_value, tagged_value

MAX_VALUES: Final = 1_000_000
"""Values in one document, with aliases expanded."""
MAX_DEPTH: Final = 100
"""Levels of lists and mappings inside each other, with aliases expanded."""
_MANY_ANCHORS: Final = 1_000
"""From here on, looking for a similar name takes too long."""

_SCALAR_KINDS = frozenset({"str", "int", "float", "bool", "null"})
_TAG_DIRECTIVE = re.compile(r"^%TAG\b", re.MULTILINE)
_SWALLOWED_ITEM = re.compile(r"[\r\n][ \t]*-[ \t]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def compose(text: str, file: str | None) -> Node:
    """The node graph of the only document in `text`."""
    composer = _Composer(text, Report(file))
    return composer.compose()


@dataclass(slots=True, eq=False)
class _Open:
    """A list or mapping whose end has not been reached; `key` is the mapping key that waits for its value."""

    node: SequenceNode | MappingNode
    key: Node | None = None


class _Composer:
    def __init__(self, text: str, report: Report) -> None:
        self._text = text
        self._report = report
        self._stack: list[_Open] = []
        self._anchors: dict[str, ScalarNode | SequenceNode | MappingNode] = {}
        self._merge_keys: set[Node] = set()
        self._unusable_keys: set[Node] = set()
        self._root: Node | None = None

    def compose(self) -> Node:
        self._refuse_tag_directives()
        documents = 0
        for event in self._events():
            if isinstance(event, yaml.ScalarEvent):
                self._attach(self._scalar(event))
            elif isinstance(event, yaml.CollectionStartEvent):
                self._open(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._attach(self._stack.pop().node)
            elif isinstance(event, yaml.AliasEvent):
                self._attach(self._alias(event))
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    hint = "Remove this '---' and what follows, or put it into a file of its own."
                    message = "a second document starts here; one file holds one document"
                    self._report.fail(message, event.start_mark, hint=hint)
        self._report.raise_if_any()
        if self._root is None:
            self._report.stop(Problem("the YAML text is empty", hint="Add at least one line such as 'key: value'."))
        return self._root

    def _refuse_tag_directives(self) -> None:
        """Tag shorthands have no use where tags are refused, and the parsers take quadratic time over many of them."""
        found = _TAG_DIRECTIVE.search(self._text)
        if found:
            line = self._text.count("\n", 0, found.start()) + 1
            self._report.stop(Problem("'%TAG' lines are not supported", hint="Remove the line.", line=line, column=1))

    def _events(self) -> Iterator[Any]:
        parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(self._text)
        try:
            while parser.check_event():
                yield parser.get_event()
        except yaml.MarkedYAMLError as error:
            from .syntax import explain

            self._report.stop(explain(error, self._text))
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # the pure Python parser lets some escape
            line = getattr(parser, "line", None)
            self._report.stop(Problem(f"this is not YAML: {error}", line=None if line is None else line + 1))
        finally:
            parser.dispose()

    def _scalar(self, event: Any) -> ScalarNode:
        mark = event.start_mark
        node = ScalarNode(mark.line, mark.column, self._scalar_value(event))
        self._remember(event, node)
        if self._expects_key():
            self._check_scalar_key(event, node)
        elif not self._stack and event.implicit[0] and not event.value:
            self._report.stop(Problem("the YAML text is empty", hint="Add at least one line such as 'key: value'."))
        return node

    def _scalar_value(self, event: Any) -> Scalar:
        text: str = event.value
        try:
            if event.tag is None:
                if not event.implicit[0]:
                    return self._quoted(event)
                if event.end_mark.line != event.start_mark.line:
                    self._check_lines(event)
                return plain_value(text)
            if event.tag == "!":
                return text
            kind = event.tag.removeprefix(TAG_PREFIX)
            if kind in _SCALAR_KINDS:
                return tagged_value(kind, text)
            if kind != "merge":
                self._refuse_tag(event, "a single value")
        except BadScalar as bad:
            self._report.add(str(bad), event.start_mark, value=excerpt(text), hint=bad.hint)
        return text

    def _quoted(self, event: Any) -> str:
        if not event.value.isascii() and _SURROGATE.search(event.value):  # libyaml refuses this by itself
            hint = "Write the character itself instead of its two halves."
            self._report.add("an escape stands for half of a surrogate pair", event.start_mark, hint=hint)
        return event.value

    def _check_lines(self, event: Any) -> None:
        """Refuse unquoted text that has swallowed a list item, because it was indented further than its list."""
        start, end = event.start_mark, event.end_mark
        swallowed = _SWALLOWED_ITEM.search(self._text, start.index, end.index)
        if swallowed:
            message = f"this unquoted text goes on over the '- ' on a line below and ends on line {end.line + 1}"
            hint = "Align the '-' with the other items of its list; for text of several lines use '|' or quotes."
            self._report.add(message, start, value=excerpt(event.value), hint=hint)

    def _check_scalar_key(self, event: Any, node: ScalarNode) -> None:
        if event.value == "<<" and (event.implicit[0] or event.tag == f"{TAG_PREFIX}merge"):
            self._merge_keys.add(node)
        elif not isinstance(node.value, str):
            kind = "null" if node.value is None else "a boolean" if isinstance(node.value, bool) else "a number"
            self._refuse_key(node, kind, f'Put it in quotes: "{excerpt(event.value)}".')

    def _open(self, event: Any) -> None:
        mark = event.start_mark
        is_list = isinstance(event, yaml.SequenceStartEvent)
        kind = "a list" if is_list else "a mapping"
        if event.tag not in (None, "!", f"{TAG_PREFIX}{'seq' if is_list else 'map'}"):
            self._refuse_tag(event, kind)
        node = (SequenceNode if is_list else MappingNode)(mark.line, mark.column)
        if self._expects_key():
            self._refuse_key(node, kind, "Put it in quotes if it is text, such as a {{ template }}.")
        self._remember(event, node)
        self._stack.append(_Open(node))
        self._check_depth(node, 0)

    def _alias(self, event: Any) -> Node:
        name, mark = excerpt(event.anchor), event.start_mark
        target = self._anchors.get(event.anchor)
        if target is None:
            guess = closest(name, self._anchors) if len(self._anchors) < _MANY_ANCHORS else None
            hint = f"Did you mean '*{guess}'?" if guess else f"Define it above with '&{name}', or quote the text."
            self._report.add(f"alias '*{name}' has no anchor above it", mark, hint=hint)
            target = ScalarNode(mark.line, mark.column, f"*{name}")
        if any(around.node is target for around in self._stack):
            self._report.fail(
                f"alias '*{name}' stands inside what it refers to", mark, hint="Data cannot contain itself."
            )
        node = AliasNode(mark.line, mark.column, target)
        self._check_depth(node, node.height)
        if self._expects_key() and not (isinstance(target, ScalarNode) and isinstance(target.value, str)):
            self._refuse_key(node, "an alias of something else", "Write the key itself.")
        return node

    def _expects_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].node, MappingNode) and self._stack[-1].key is None

    def _attach(self, node: Node) -> None:
        """Add a finished node to the list or mapping around it."""
        if not self._stack:
            self._root = node
            return
        around = self._stack[-1]
        parent = around.node
        parent.size += node.size
        if parent.size > MAX_VALUES:
            hint = "Keep rows in a data file, and do not nest aliases in aliases."
            message = f"the document holds more than {MAX_VALUES:,} values once aliases are expanded"
            self._report.fail(message, node, hint=hint)
        parent.height = max(parent.height, 1 + node.height)
        if isinstance(parent, SequenceNode):
            parent.items.append(node)
        elif around.key is None:
            around.key = node
        else:
            self._add_entry(parent, around.key, node)
            around.key = None

    def _add_entry(self, mapping: MappingNode, key: Node, value: Node) -> None:
        if key in self._merge_keys:
            self._merge(mapping, key, value)
        if key in self._merge_keys or key in self._unusable_keys:
            return
        name = str(getattr(target_of(key), "value", ""))
        if name in mapping.entries:
            first = mapping.entries[name][0].line + 1
            message = f"key '{excerpt(name)}' is given twice: on line {first} and on line {key.line + 1}"
            self._report.add(message, key, hint="Remove or rename one of them.")
        else:
            mapping.entries[name] = (key, value)

    def _merge(self, mapping: MappingNode, key: Node, value: Node) -> None:
        if mapping.merge_line is not None:
            message = f"'<<' is given twice: on line {mapping.merge_line + 1} and on line {key.line + 1}"
            self._report.add(message, key, hint="Merge several mappings with one list: '<<: [*first, *second]'.")
            return
        mapping.merge_line = key.line
        source = target_of(value)
        for node in map(target_of, source.items) if isinstance(source, SequenceNode) else (source,):
            if isinstance(node, MappingNode):
                mapping.merged.append(node)
            else:
                found = "a list" if isinstance(node, SequenceNode) else excerpt(str(node.value))
                hint = "Write '<<: *name' with the anchor of a mapping, or quote the key if '<<' is meant literally."
                self._report.add("'<<' can only merge mappings", value, value=found, hint=hint)

    def _remember(self, event: Any, node: ScalarNode | SequenceNode | MappingNode) -> None:
        if event.anchor is None:
            return
        earlier = self._anchors.setdefault(event.anchor, node)
        if earlier is not node:
            lines = f"on line {earlier.line + 1} and on line {node.line + 1}"
            message = f"anchor '&{excerpt(event.anchor)}' is defined twice: {lines}"
            self._report.add(message, node, hint="Rename one of them.")

    def _check_depth(self, node: Node, height: int) -> None:
        if len(self._stack) + height > MAX_DEPTH:
            hint = "Flatten the data, or look for a bracket or alias too many."
            self._report.fail(f"lists and mappings are nested more than {MAX_DEPTH} levels deep", node, hint=hint)

    def _refuse_key(self, node: Node, kind: str, hint: str) -> None:
        if not any(around.node in self._unusable_keys for around in self._stack):  # one report for {{{{ x }}}}
            self._report.add(f"a key must be text, and this one is {kind}", node, hint=hint)
        self._unusable_keys.add(node)

    def _refuse_tag(self, event: Any, what: str) -> None:
        tag: str = event.tag
        kind = tag.removeprefix(TAG_PREFIX)
        shown = excerpt(tag if kind == tag else f"!!{kind}")
        if kind in {*_SCALAR_KINDS, "seq", "map"}:
            self._report.add(f"tag '{shown}' does not fit {what}", event.start_mark, hint="Remove the tag.")
            return
        message = f"tag '{shown}' is not supported: YAML here is data and builds no objects"
        hint = "Remove the tag and write plain values; put text that begins with '!' in quotes."
        self._report.add(message, event.start_mark, hint=hint)
