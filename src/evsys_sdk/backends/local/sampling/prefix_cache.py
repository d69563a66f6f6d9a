"""Prefix cache: keys and values of earlier texts, so that prompts with a common prefix need less prefill.

It is a radix tree, so that shared prefixes are stored once; the least recently used leaves are evicted first. Each
cache belongs to one frozen set of weights.

    remembered.keep(text, cache, slot)                  # a text that is in a slot
    found = remembered.find(prompt)                     # the longest cached prefix
    found.copy_to(cache, slot)
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import bisect
import heapq
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from .. import memory
from ..base.packing import Ints, common_start
from .decoding import KeyValueCache

SHORTEST = 8
"""Shorter pieces are not cached, because computing them is faster than copying."""
_NOTED = 64
"""Maximum number of prompts with cached logits."""


@dataclass(eq=False, slots=True)
class _Stretch:
    """A node of the tree: some tokens that follow those of its parent, with their keys and values."""

    tokens: Ints
    taken: Any
    """Keys and values, in the form of the cache."""
    used: int
    """Logical time of the last use."""
    state_tokens: int = 0
    """Memory of the recurrent states at its end, in tokens."""
    children: dict[int, _Stretch] = field(default_factory=dict["int", "_Stretch"])
    """Children by their first token. There is no reference to the parent, so that released nodes are freed at once."""

    @property
    def size(self) -> int:
        """Memory of the node in tokens, including recurrent states."""
        return len(self.tokens) + self.state_tokens


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The cached prefix of a text. It stays valid after eviction."""

    length: int = 0
    parts: tuple[tuple[Any, int], ...] = ()
    """Cached pieces in order, and the number of positions to copy from each."""

    def copy_to(self, cache: KeyValueCache, slot: int) -> None:
        """Fill the first positions of a slot."""
        start = 0
        for copied, length in self.parts:
            cache.put(slot, start, copied, length)
            start += length


class PrefixCache:
    """Cached texts for one set of weights. `forget` may be called from any thread."""

    def __init__(self) -> None:
        self._root = _Stretch(np.empty(0, np.int64), {}, 0)
        self._clock = itertools.count(1)
        self._lock = threading.Lock()
        self.tokens = 0
        """Size of the cache in tokens."""
        self._after: OrderedDict[bytes, Tensor] = OrderedDict()
        """Logits after prompts, so that a repeated prompt needs no computation."""
        memory.evict_when_short(self)

    def find(self, text: Ints) -> CachedPrefix:
        """Return the longest cached prefix of a text."""
        with self._lock:
            path = self._walk(text)
            while path and not _can_end(*path[-1]):
                path.pop()
            parts = tuple((stretch.taken, common) for stretch, common in path)
        length = sum(common for _, common in parts)
        return CachedPrefix(length, parts) if length >= SHORTEST else CachedPrefix()

    def keep(self, text: Ints, cache: KeyValueCache, slot: int) -> None:
        """Add the text of a slot; copy only the part that is not yet cached."""
        with self._lock:
            path = self._walk(text)
            n_cached = sum(common for _, common in path)
            if len(text) - n_cached < SHORTEST:
                return
            copied = cache.take(slot, n_cached, len(text))
            parent, common = path[-1] if path else (self._root, 0)
            # If the text diverges inside a node, split the node there; both continuations become its children.
            if common < len(parent.tokens):
                before = path[-2][0] if len(path) > 1 else self._root
                parent = before.children[int(parent.tokens[0])] = _split(parent, common, cache)
            added = _Stretch(text[n_cached:], copied, next(self._clock), cache.state_bytes // max(1, cache.token_bytes))
            parent.children[int(text[n_cached])] = added
            self.tokens += added.size

    def note_end(self, prompt: Ints, logits: Tensor) -> None:
        """Cache the logits after a prompt."""
        with self._lock:
            if (key := _key(prompt)) not in self._after:
                self._after[key] = logits.clone()
            self._after.move_to_end(key)
            while len(self._after) > _NOTED:
                self._after.popitem(last=False)

    def after(self, prompt: Ints) -> Tensor | None:
        """Return the logits after a prompt; None if they are not cached."""
        with self._lock:
            return self._after.get(_key(prompt))

    def shrink(self, tokens: int) -> None:
        """Evict leaves, least recently used first, until at most this many tokens are left."""
        if self.tokens <= tokens:
            return
        tokens -= tokens // 8  # evict more than needed, because the search for the oldest is slow
        with self._lock:
            parents = dict(_family(self._root))
            # The `id` breaks ties, because nodes cannot be compared.
            ends = [(stretch.used, id(stretch), stretch) for stretch in parents if not stretch.children]
            heapq.heapify(ends)
            while self.tokens > tokens and ends:
                _, _, stretch = heapq.heappop(ends)
                parent = parents.pop(stretch)
                del parent.children[int(stretch.tokens[0])]
                self.tokens -= stretch.size
                if not parent.children and parent is not self._root:
                    heapq.heappush(ends, (parent.used, id(parent), parent))

    def forget(self) -> None:
        """Clear the cache."""
        with self._lock:
            self._root.children.clear()
            self._after.clear()
            self.tokens = 0

    def _walk(self, text: Ints) -> list[tuple[_Stretch, int]]:
        """Return the nodes that a text matches, with the number of matching tokens; only the last may be partial."""
        path: list[tuple[_Stretch, int]] = []
        stretch, at, now = self._root, 0, next(self._clock)
        while at < len(text) and (child := stretch.children.get(int(text[at]))) is not None:
            child.used = now
            common = common_start(child.tokens, text[at:])
            path.append((child, common))
            if common < len(child.tokens):
                break
            stretch, at = child, at + common
        return path


def _can_end(stretch: _Stretch, common: int) -> bool:
    """Whether a text can be continued after `common` tokens of a node: recurrent layers need a state at that point."""
    states = getattr(stretch.taken, "states", {})
    return states == {} or (states is not None and common == len(stretch.tokens))


def _split(stretch: _Stretch, at: int, cache: KeyValueCache) -> _Stretch:
    """Split a node in two and return the first; both are copies, so that each can be freed separately."""
    end = len(stretch.tokens)
    first = _Stretch(stretch.tokens[:at], cache.cut(stretch.taken, 0, at), stretch.used)
    stretch.taken = cache.cut(stretch.taken, at, end)
    stretch.tokens = stretch.tokens[at:]
    first.children[int(stretch.tokens[0])] = stretch
    return first


class Beginnings:
    """Sorted texts, to find the text with the longest common prefix."""

    def __init__(self, texts: Iterable[Ints] = ()) -> None:
        self._sorted = sorted(((_key(text), text) for text in texts), key=lambda entry: entry[0])

    def add(self, text: Ints) -> None:
        bisect.insort(self._sorted, (_key(text), text), key=lambda entry: entry[0])

    def closest(self, text: Ints) -> tuple[int, Ints | None]:
        """Return the length of the longest common prefix and the text that has it; (0, None) without texts."""
        place = bisect.bisect_left(self._sorted, _key(text), key=lambda entry: entry[0])
        neighbours = [other for _, other in self._sorted[max(0, place - 1) : place + 1]]
        matches = [(common_start(other, text), number) for number, other in enumerate(neighbours)]
        if not matches:
            return 0, None
        common, number = max(matches)
        return common, neighbours[number]


def _key(text: Ints) -> bytes:
    return text.astype(">i4").tobytes()  # big-endian bytes sort like the tokens


def _family(root: _Stretch) -> Iterator[tuple[_Stretch, _Stretch]]:
    """Yield every node with its parent."""
    stack = [root]
    while stack:
        parent = stack.pop()
        for child in parent.children.values():
            yield child, parent
            stack.append(child)
