"""What was read before: keys and values of texts, kept so that a prompt which begins alike is not read from scratch.

A tree of stretches of tokens: what several texts begin with is kept once. When there is too little room, the ends that
no one has asked for the longest go first. It belongs to one frozen set of weights; others need one of their own.

    remembered.keep(text, cache, slot)                  # a text that has been read into a slot
    found = remembered.find(prompt)                     # the longest beginning that is known
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
"""Shorter stretches are sooner read than kept and copied."""
_NOTED = 64
"""Prompts of which it is known what comes after them."""


@dataclass(eq=False, slots=True)
class _Stretch:
    """Some tokens that follow those of its parent, and what attention needs of them."""

    tokens: Ints
    taken: Any
    """Keys and values, in the form of the cache."""
    used: int
    """When it was last asked for."""
    state_tokens: int = 0
    """As many tokens' keys take the memory that the states at its end take."""
    children: dict[int, _Stretch] = field(default_factory=dict["int", "_Stretch"])
    """By their first token. There is no way back to the parent, so that memory is free as soon as it is released."""

    @property
    def size(self) -> int:
        """Tokens that it counts for."""
        return len(self.tokens) + self.state_tokens


@dataclass(frozen=True, slots=True)
class Found:
    """The beginning of a text that is known. It stays usable when it is forgotten meanwhile."""

    length: int = 0
    parts: tuple[tuple[Any, int], ...] = ()
    """What to copy one after another, and how many positions of each."""

    def copy_to(self, cache: KeyValueCache, slot: int) -> None:
        """Fill the first positions of a slot."""
        start = 0
        for taken, length in self.parts:
            cache.put(slot, start, taken, length)
            start += length


class PrefixCache:
    """Texts that were read with one set of weights. Any thread may make it forget them."""

    def __init__(self) -> None:
        self._root = _Stretch(np.empty(0, np.int64), {}, 0)
        self._clock = itertools.count(1)
        self._lock = threading.Lock()
        self.tokens = 0
        """How many positions are kept."""
        self._after: OrderedDict[bytes, Tensor] = OrderedDict()
        """Logits after prompts: one that is asked for again need not even read its last token."""
        memory.evict_when_short(self)

    def find(self, text: Ints) -> Found:
        """The longest beginning of a text that is known."""
        with self._lock:
            path = self._walk(text)
            while path and not _can_end(*path[-1]):
                path.pop()
            parts = tuple((stretch.taken, common) for stretch, common in path)
        length = sum(common for _, common in parts)
        return Found(length, parts) if length >= SHORTEST else Found()

    def keep(self, text: Ints, cache: KeyValueCache, slot: int) -> None:
        """Remember a text that has been read into a slot; only what is new of it is copied."""
        with self._lock:
            path = self._walk(text)
            known = sum(common for _, common in path)
            if len(text) - known < SHORTEST:
                return
            taken = cache.take(slot, known, len(text))
            parent, common = path[-1] if path else (self._root, 0)
            # A text that leaves a stretch in its middle: the stretch ends there, and both ways on begin at its end.
            if common < len(parent.tokens):
                before = path[-2][0] if len(path) > 1 else self._root
                parent = before.children[int(parent.tokens[0])] = _split(parent, common, cache)
            added = _Stretch(text[known:], taken, next(self._clock), cache.state_bytes // max(1, cache.token_bytes))
            parent.children[int(text[known])] = added
            self.tokens += added.size

    def note_end(self, prompt: Ints, logits: Tensor) -> None:
        """Remember what comes after a prompt."""
        with self._lock:
            if (key := _key(prompt)) not in self._after:
                self._after[key] = logits.clone()
            self._after.move_to_end(key)
            while len(self._after) > _NOTED:
                self._after.popitem(last=False)

    def after(self, prompt: Ints) -> Tensor | None:
        """The logits after a prompt, if they are known."""
        with self._lock:
            return self._after.get(_key(prompt))

    def shrink(self, tokens: int) -> None:
        """Forget the ends of texts, the least recently used first, until no more than this many tokens are left."""
        if self.tokens <= tokens:
            return
        tokens -= tokens // 8  # a few more than needed: to look for the oldest at every new text would take long
        with self._lock:
            parents = dict(_family(self._root))
            # The `id` decides between those of one moment, because stretches themselves cannot be compared.
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
        """Forget everything."""
        with self._lock:
            self._root.children.clear()
            self._after.clear()
            self.tokens = 0

    def _walk(self, text: Ints) -> list[tuple[_Stretch, int]]:
        """The stretches that a text begins with, and how many tokens of each; all but the last one are whole."""
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
    """Whether a text can be continued after so many tokens of a stretch: recurrent layers need a state from there."""
    states = getattr(stretch.taken, "states", {})
    return states == {} or (states is not None and common == len(stretch.tokens))


def _split(stretch: _Stretch, at: int, cache: KeyValueCache) -> _Stretch:
    """Divide a stretch in two; the first of them. Both are copies: memory of one must not live on with the other."""
    end = len(stretch.tokens)
    first = _Stretch(stretch.tokens[:at], cache.cut(stretch.taken, 0, at), stretch.used)
    stretch.taken = cache.cut(stretch.taken, at, end)
    stretch.tokens = stretch.tokens[at:]
    first.children[int(stretch.tokens[0])] = stretch
    return first


class Beginnings:
    """Texts in the order of their tokens, to find the one that has most in common with another at its beginning."""

    def __init__(self, texts: Iterable[Ints] = ()) -> None:
        self._sorted = sorted(((_key(text), text) for text in texts), key=lambda entry: entry[0])

    def add(self, text: Ints) -> None:
        bisect.insort(self._sorted, (_key(text), text), key=lambda entry: entry[0])

    def closest(self, text: Ints) -> tuple[int, Ints | None]:
        """How much is in common with the closest text, and which one that is."""
        place = bisect.bisect_left(self._sorted, _key(text), key=lambda entry: entry[0])
        neighbours = [other for _, other in self._sorted[max(0, place - 1) : place + 1]]
        found = [(common_start(other, text), number) for number, other in enumerate(neighbours)]
        if not found:
            return 0, None
        common, number = max(found)
        return common, neighbours[number]


def _key(text: Ints) -> bytes:
    return text.astype(">i4").tobytes()  # big-endian bytes sort as the tokens do


def _family(root: _Stretch) -> Iterator[tuple[_Stretch, _Stretch]]:
    """Every stretch and its parent."""
    stack = [root]
    while stack:
        parent = stack.pop()
        for child in parent.children.values():
            yield child, parent
            stack.append(child)
