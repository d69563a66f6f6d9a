"""Continuous batching: running samples grow by a token per step, and finished texts stay in a prefix cache.

A waiting sample joins when the cache has room for it. A prefix of its prompt that is in a slot or in the prefix cache
is copied; only the rest is computed, and what several new prompts share is computed once. A finished sample leaves its
slot, and its text moves to the prefix cache if the running samples leave room.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ....log import get_logger
from .. import memory
from ..base.loading import Base
from .decoding import TokenDecoder
from .lanes import Lane, PromptTokens, SampleCall, SamplingLimits, Stops, advance
from .prefix_cache import SHORTEST, Beginnings, CachedPrefix, PrefixCache

type _Prompt = tuple[Any, tuple[int, ...]]
"""A snapshot and a prompt; the keys and values of a prompt depend on the weights."""

_SHARE_OF_MEMORY = 8
"""Prefix caches take at most 1 / `_SHARE_OF_MEMORY` of the memory that would be free without them."""
_KEPT_OWNERS = 8
"""Number of snapshots per batch with a prefix cache, the most recently used ones."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The known prefix of a new prompt, in the slot of another prompt or in a prefix cache."""

    length: int = 0
    prompt: _Prompt | None = None
    remembered: CachedPrefix = field(default_factory=CachedPrefix)
    after: Tensor | None = None
    """The logits after the prompt, if the whole prompt is known."""


class Batch:
    """The running lanes, lane i in slot i, and the waiting lanes. Not thread-safe: one thread owns it."""

    def __init__(
        self, base: Base, make: Callable[[], TokenDecoder], limits: SamplingLimits, count: PromptTokens
    ) -> None:
        self._base, self._make, self._limits, self._count = base, make, limits, count
        self._lanes_at_once = limits.lanes
        self._decoder: TokenDecoder | None = None
        self._after_prompt: dict[_Prompt, Any] = {}
        """Logits after the prompts of running lanes, so that later samples of a prompt need no prefill."""
        self._running_prompts: dict[Any, Beginnings] | None = None
        """Prompts of the running lanes by snapshot; None until needed."""
        self._remembered: dict[Any, PrefixCache] | None = {}
        """Prefix caches by snapshot, most recently used last; None after memory ran out."""
        self._spare_bytes: int | None = None
        """Maximum bytes of the prefix caches; None if unknown."""
        self._token_bytes = 0
        self._retried: Lane | None = None
        """The last lane that was retried alone, after releasing all caches."""
        self._finished: list[Lane] = []
        """Finished lanes that are not yet reported to their requests."""
        self.running: list[Lane] = []
        self.waiting: deque[Lane] = deque()

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def needed_tokens(self) -> int:
        """Maximum number of cache positions that the running lanes may need."""
        return len(self.running) * max((lane.longest for lane in self.running), default=0)

    @property
    def remembered_tokens(self) -> int:
        return sum(cache.tokens for cache in (self._remembered or {}).values())

    def remember_at_most(self, tokens: int) -> None:
        """Shrink the prefix caches to this many tokens in total, least recently used first."""
        for cache in reversed(list((self._remembered or {}).values())):
            cache.shrink(max(0, tokens))
            tokens -= cache.tokens

    def add(self, request: SampleCall) -> None:
        """Queue all samples of a request."""
        stops = Stops.of(request.params, self._base.tokenizer, self._base.stop_tokens)
        self.waiting.extend(Lane.of(request, number, stops) for number in range(request.num_samples))

    def advance(self) -> None:
        """Grow every running lane by a token, then let waiting lanes join."""
        try:
            self._advance()
        finally:
            # Report after releasing the base, because the waiting caller may need it at once.
            finished, self._finished = self._finished, []
            for lane in finished:
                lane.request.finish(lane.number, lane.sample())

    def _advance(self) -> None:
        joining: list[Lane] = []
        try:
            with torch.inference_mode(), self._base.turns:
                if self._decoder is None:
                    self._decoder = self._make()
                if self.running:
                    self._step(self._decoder)
                known = self._next_lanes(joining)
                if joining:
                    self._join(self._decoder, joining, known)
                if self.is_idle:
                    self._rest(self._decoder)
        except Exception as error:
            if memory.is_out_of_memory(error):
                self._shrink(joining, memory.forget_frames(error))
            else:
                lanes = [*self.running, *joining, *self.waiting]
                self._forget()
                self._fail(lanes, error)
        except BaseException:  # cleanup looks for requests only among running and waiting lanes
            self.waiting.extendleft(reversed(joining))
            raise

    def _step(self, decoder: TokenDecoder) -> None:
        decoder.reserve(self.running)
        decoder.grow(self.running)
        self._remove_finished(decoder)

    def _next_lanes(self, joining: list[Lane]) -> dict[_Prompt, _Known]:
        """Move waiting lanes that fit to `joining`; return the known prefixes of their new prompts."""
        known: dict[_Prompt, _Known] = {}
        if not self.waiting:
            return known
        longest = max((lane.longest for lane in self.running), default=0)
        new: dict[Any, Beginnings] = {}
        owners = {lane.request.owner for lane in self.running}
        reading = 0
        while self.waiting and len(self.running) + len(joining) < self._lanes_at_once:
            lane = self.waiting[0]
            if lane.done:  # its client was closed
                self.waiting.popleft()
                continue
            prompt, text = lane.request.key, lane.request.text
            longest = max(longest, lane.longest)
            count = len(self.running) + len(joining) + 1
            # A lane that exceeds the limit runs alone.
            if count > 1 and count * longest > self._limits.cached_tokens:
                break
            owners.add(lane.request.owner)
            if self._decoder is not None and len(owners) > self._decoder.most_owners:
                break
            # A running lane's recurrent states are past the end of its prompt, so the prompt is computed again.
            if prompt not in known and (prompt not in self._after_prompt or self._base.recurrent):
                prefix = self._find_known(lane)
                beginnings = new.setdefault(lane.request.owner, Beginnings())
                reading += len(text) - max(prefix.length, beginnings.closest(text)[0])
                if joining and reading > self._limits.tokens_at_once:
                    break
                known[prompt] = prefix
                beginnings.add(text)
            joining.append(self.waiting.popleft())
        return known

    def _find_known(self, lane: Lane) -> _Known:
        text, owner = lane.request.text, lane.request.owner
        cache = None if self._remembered is None else self._remembered.get(owner)
        remembered = CachedPrefix() if cache is None else cache.find(text)
        if cache is not None and remembered.length == len(text):
            if (after := cache.after(text)) is not None:
                return _Known(len(text), None, remembered, after)
            remembered = cache.find(text[:-1])  # the last token must be computed for its logits
        if self._running_prompts is None:
            self._running_prompts = {}
            for request in {lane.request.key: lane.request for lane in self.running}.values():
                self._running_prompts.setdefault(request.owner, Beginnings()).add(request.text)
        common, other = self._running_prompts.get(owner, Beginnings()).closest(text[:-1])
        if self._base.recurrent:
            other = None
        if other is not None and common >= max(SHORTEST, remembered.length):
            return _Known(common, (owner, tuple(other.tolist())))
        return _Known(remembered.length, None, remembered)

    def _join(self, decoder: TokenDecoder, joining: Sequence[Lane], known: dict[_Prompt, _Known]) -> None:
        """Fill a slot for every joining lane, compute the unknown parts of prompts, and choose the first tokens."""
        first = len(self.running)
        lanes = [*self.running, *joining]
        prompts = [lane.request.key for lane in lanes]
        # Reversed, so that the first of several slots with the same prompt is used.
        source = first if self._base.recurrent else 0
        slot_of = {prompt: slot for slot, prompt in reversed(list(enumerate(prompts))) if slot >= source}
        if known and (free := memory.available_bytes(self._base.device)) is not None:
            self._spare_bytes = (free + self.remembered_tokens * self._token_bytes) // _SHARE_OF_MEMORY
        # Keep the prefixes that are copied below; shrink the prefix caches fully after the copy.
        self.remember_at_most(max(self._room_beside(lanes), sum(prefix.remembered.length for prefix in known.values())))
        decoder.reserve(lanes)
        for prompt, beginning in known.items():
            if beginning.prompt is not None:
                decoder.cache.copy(slot_of[beginning.prompt], [slot_of[prompt]], beginning.length)
            else:
                beginning.remembered.copy_to(decoder.cache, slot_of[prompt])
        self.remember_at_most(self._room_beside(lanes))
        read = decoder.tokens_read
        self._after_prompt |= {prompt: prefix.after for prompt, prefix in known.items() if prefix.after is not None}
        unread = {prompt: prefix.length for prompt, prefix in known.items() if prefix.after is None}
        if unread:
            slots = [slot_of[prompt] for prompt in unread]
            logits = decoder.prefill([tokens for _, tokens in unread], slots, list(unread.values()))
            self._after_prompt |= dict(zip(unread, logits, strict=True))
        for prompt in {lane.request.key for lane in joining}:
            others = [s for s in range(first, len(prompts)) if prompts[s] == prompt and s != slot_of[prompt]]
            decoder.cache.copy(slot_of[prompt], others, len(prompt[1]))
        advance(joining, torch.stack([self._after_prompt[lane.request.key] for lane in joining]))
        read = decoder.tokens_read - read
        self._count.read += read
        self._count.reused += sum(len(lane.request.prompt) for lane in joining) - read
        self.running += joining
        self._running_prompts = None
        self._remove_finished(decoder)

    def _remove_finished(self, decoder: TokenDecoder) -> None:
        if not any(lane.done for lane in self.running):
            return
        self._running_prompts = None
        self._token_bytes = self._token_bytes or decoder.cache.token_bytes
        room = self._room_beside([lane for lane in self.running if not lane.done])
        # From the last slot to the first, so that a lane that is moved into a free slot is already checked.
        for slot in reversed(range(len(self.running))):
            lane = self.running[slot]
            if not lane.done:
                continue
            self._remember(decoder, lane, slot, room)
            self._finished.append(lane)
            last = self.running.pop()
            if last is not lane:
                self.running[slot] = last
                decoder.cache.copy(len(self.running), [slot], last.position)
        prompts = {lane.request.key for lane in self.running}
        self._after_prompt = {prompt: row for prompt, row in self._after_prompt.items() if prompt in prompts}

    def _remember(self, decoder: TokenDecoder, lane: Lane, slot: int, room: int) -> None:
        """Add the text of a finished lane to the prefix cache, if it fits."""
        if self._remembered is None or not SHORTEST <= lane.position <= room:
            return
        owner = lane.request.owner
        try:
            self._remembered[owner] = cache = self._remembered.pop(owner, None) or PrefixCache()
            for old in list(self._remembered)[:-_KEPT_OWNERS]:
                del self._remembered[old]
            cache.keep(lane.read, decoder.cache, slot)
            cache.note_end(lane.request.text, self._after_prompt[lane.request.key])
            self.remember_at_most(room)
        except Exception as error:
            if not memory.is_out_of_memory(error):
                raise
            self._stop_remembering()

    def _room_beside(self, lanes: Sequence[Lane]) -> int:
        """Return how many tokens the prefix caches may hold while these lanes run."""
        left = self._limits.cached_tokens - len(lanes) * max((lane.longest for lane in lanes), default=0)
        if self._token_bytes and self._spare_bytes is not None:
            left = min(left, self._spare_bytes // self._token_bytes)
        return max(0, left)

    def _rest(self, decoder: TokenDecoder) -> None:
        """Release the memory that only running lanes need."""
        decoder.rest()
        self._lanes_at_once = self._limits.lanes
        get_logger(__name__).debug(
            "prompt tokens so far: %d read, %d reused; %d remembered",
            self._count.read,
            self._count.reused,
            self.remembered_tokens,
        )

    def _forget(self) -> None:
        """Drop all slots and prefix caches; after an error the slots may be incomplete."""
        self._decoder, self.running, self._after_prompt, self._running_prompts = None, [], {}, None
        for cache in (self._remembered or {}).values():
            cache.forget()

    def _stop_remembering(self) -> None:
        get_logger(__name__).warning("there is too little memory to remember what was read; prompts are read anew")
        self._remembered = None
        memory.release_unused()

    def _shrink(self, joining: Sequence[Lane], error: Exception) -> None:
        """Restart after running out of memory: without prefix caches, or with half as many lanes at once."""
        # A lane is in both lists if memory ran out in between.
        active = list(dict.fromkeys([*self.running, *joining]))
        remembered = self.remembered_tokens
        freed = bool(self._base.spaces) or (self._decoder is not None and self._decoder.holds_more_than(active))
        self._base.spaces.clear()
        if self._decoder is not None:
            self._decoder.release()
        self._forget()
        if remembered:
            self._stop_remembering()
        elif len(active) <= 1:
            lane = active[0] if active else self.waiting[0]
            freed = memory.release_unused() or freed
            if not freed or lane is self._retried:
                self.waiting = deque(other for other in self.waiting if other is not lane)
                self._fail([lane], memory.too_little_memory("a sample", lane.longest, self._base.device))
                return
            self._retried = lane
        else:
            memory.release_unused()
            self._lanes_at_once = len(active) // 2
            get_logger(__name__).warning(
                "sampling %d texts at once ran out of memory (%s); continuing with %d",
                len(active),
                error,
                len(active) // 2,
            )
        # Back to the front of the queue, in order.
        for lane in reversed(active):
            lane.restart()
            self.waiting.appendleft(lane)

    def _fail(self, lanes: Sequence[Lane], error: BaseException) -> None:
        failed = {id(lane.request) for lane in lanes}
        for lane in lanes:
            lane.request.fail(error)
        self.running = [lane for lane in self.running if id(lane.request) not in failed]
        self.waiting = deque(lane for lane in self.waiting if id(lane.request) not in failed)
