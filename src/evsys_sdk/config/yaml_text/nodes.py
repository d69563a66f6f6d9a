"""The node graph of one document: what was written where, with aliases not yet expanded.

`compose.py` builds it and checks its size, so that nothing here can recurse or grow without bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .scalars import Scalar


@dataclass(slots=True, eq=False)
class ScalarNode:
    """A single value. Lines and columns of nodes count from 0, as the parser gives them."""

    size: ClassVar[int] = 1
    height: ClassVar[int] = 0
    line: int
    column: int
    value: Scalar


@dataclass(slots=True, eq=False)
class SequenceNode:
    """A list."""

    line: int
    column: int
    items: list[Node] = field(default_factory=list["Node"])
    size: int = 1
    """Values in it, itself included, with aliases expanded."""
    height: int = 1
    """Levels of lists and mappings, itself included, with aliases expanded."""


@dataclass(slots=True, eq=False)
class MappingNode:
    """A mapping: its own entries, and the mappings it merges, the one that wins first."""

    line: int
    column: int
    entries: dict[str, tuple[Node, Node]] = field(default_factory=dict[str, tuple["Node", "Node"]])
    merged: list[MappingNode] = field(default_factory=list["MappingNode"])
    merge_line: int | None = None
    size: int = 1
    height: int = 1


@dataclass(slots=True, eq=False)
class AliasNode:
    """`*name`: stands where it was written, and means its target."""

    line: int
    column: int
    target: ScalarNode | SequenceNode | MappingNode

    @property
    def size(self) -> int:
        return self.target.size

    @property
    def height(self) -> int:
        return self.target.height


type Node = ScalarNode | SequenceNode | MappingNode | AliasNode


def target_of(node: Node) -> ScalarNode | SequenceNode | MappingNode:
    """The node itself, or what it is an alias of."""
    return node.target if isinstance(node, AliasNode) else node


def plain(node: Node) -> Any:
    """The plain data that `node` means, independent of every other part of the document."""
    node = target_of(node)
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [item.value if type(item) is ScalarNode else plain(item) for item in node.items]
    data: dict[str, Any] = {}
    for source in reversed(node.merged):
        data.update(plain(source))
    for key, (_, value) in node.entries.items():
        data[key] = value.value if type(value) is ScalarNode else plain(value)
    return data


def child(node: Node, step: str | int) -> tuple[Node, tuple[int, int]] | None:
    """The value one step below `node`, and where it (or its key) stands; None when there is no such step."""
    node = target_of(node)
    if isinstance(node, SequenceNode):
        if isinstance(step, int) and 0 <= step < len(node.items):
            item = node.items[step]
            return item, (item.line, item.column)
        return None
    if isinstance(node, ScalarNode) or not isinstance(step, str):
        return None
    if step in node.entries:
        key, value = node.entries[step]
        return value, (key.line, key.column)
    return next((found for source in node.merged if (found := child(source, step))), None)
