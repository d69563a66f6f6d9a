"""The thread that samples: requests join the running batch between two steps and leave it when they are done.

All running samples of one snapshot grow together, a token per step. Equal prompts are read once. Between two steps the
base is free for training and for other runs. Requests to score texts are answered in between, many at a time.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import BackendError
from ...log import get_logger
from . import memory
from .decoding import Decoder
from .fused_decoding import make_decoder
from .loading import Base
from .sampling import Lane, Request, Stops, advance
from .scoring import ScoreRequest, score
from .snapshot import Snapshot

_GRACE_S = 0.001
"""How long an idle thread waits for more requests to start together with the first."""

_MERGED_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """How much may run at once."""

    lanes: int = 32
    """Samples that grow together."""
    cached_tokens: int = 65536
    """Positions that all of them together may come to need."""
    tokens_at_once: int = 2048
    """Prompt tokens read in one go."""


@dataclass(slots=True)
class _Queue:
    sampling: deque[tuple[Snapshot, Request]] = field(default_factory=deque[tuple[Snapshot, Request]])
    scoring: deque[tuple[Snapshot, ScoreRequest]] = field(default_factory=deque[tuple[Snapshot, ScoreRequest]])
    changed: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False


class SamplingLoop:
    """Answers the requests of all samplers of one client on one thread, which starts with the first request."""

    def __init__(self, base: Base, limits: SamplingLimits, *, name: str) -> None:
        self._base, self._limits, self._name = base, limits, name
        self._queue = _Queue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, _close, self._queue)

    def sample(self, snapshot: Snapshot, request: Request) -> None:
        """Start sampling; the answer comes through the request's future."""
        self._add(lambda: self._queue.sampling.append((snapshot, request)))

    def score(self, snapshot: Snapshot, request: ScoreRequest) -> None:
        """Start scoring a text; the answer comes through the request's future."""
        self._add(lambda: self._queue.scoring.append((snapshot, request)))

    def close(self) -> None:
        """Give up what is running and end the thread. Closing twice does nothing."""
        _close(self._queue)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _add(self, append: Callable[[], None]) -> None:
        with self._queue.changed:
            if self._queue.closed:
                raise BackendError("a sample was asked of a client that is closed. Prepare the backend again.")
            append()
            if self._thread is None:
                serving = _Serving(self._base, self._limits, self._queue)
                self._thread = threading.Thread(target=serving.run, name=self._name, daemon=True)
                self._thread.start()
            self._queue.changed.notify()


def _close(queue: _Queue) -> None:
    with queue.changed:
        queue.closed = True
        queue.changed.notify_all()


class _Serving:
    """What the thread does."""

    def __init__(self, base: Base, limits: SamplingLimits, queue: _Queue) -> None:
        self._base, self._limits, self._queue = base, limits, queue
        self._batches: dict[Snapshot, _Batch] = {}
        self._used: list[Snapshot] = []
        """Snapshots that may hold merged weights, the latest last."""

    def run(self) -> None:
        while self._wait():
            try:
                self._serve_once()
            except Exception as error:  # whoever waits must hear of it, and later requests must find a thread
                self._give_up(error)
        self._give_up(BackendError("the client was closed while it was sampling. Prepare the backend again."))

    def _serve_once(self) -> None:
        self._score()
        self._admit()
        for snapshot, batch in list(self._batches.items()):
            batch.advance()
            if batch.is_idle:
                del self._batches[snapshot]

    def _wait(self) -> bool:
        """Until there is something to do; False when the loop is closed."""
        queue = self._queue
        with queue.changed:
            if not self._batches and not queue.sampling and not queue.scoring and not queue.closed:
                queue.changed.wait()
                queue.changed.wait(_GRACE_S)
            return not queue.closed

    def _admit(self) -> None:
        with self._queue.changed:
            arrived = list(self._queue.sampling)
            self._queue.sampling.clear()
        for snapshot, request in arrived:
            if snapshot not in self._batches:
                self._batches[snapshot] = _Batch(self._base, snapshot, self._limits)
                self._note_use(snapshot)
            self._batches[snapshot].add(request)

    def _note_use(self, snapshot: Snapshot) -> None:
        """Keep the merged weights of the last few snapshots only; each takes as much memory as the model."""
        self._used = [*(one for one in self._used if one is not snapshot), snapshot]
        for old in self._used[:-_MERGED_AT_ONCE]:
            old.forget_merged()
        self._used = self._used[-_MERGED_AT_ONCE:]

    def _score(self) -> None:
        with self._queue.changed:
            arrived = list(self._queue.scoring)
            self._queue.scoring.clear()
        for snapshot in dict.fromkeys(snapshot for snapshot, _ in arrived):
            requests = [request for of, request in arrived if of is snapshot]
            score(self._base, snapshot, requests, tokens_at_once=self._limits.tokens_at_once)

    def _give_up(self, error: Exception) -> None:
        with self._queue.changed:
            left: list[Any] = [request for _, request in (*self._queue.sampling, *self._queue.scoring)]
            self._queue.sampling.clear()
            self._queue.scoring.clear()
        left += [lane.request for batch in self._batches.values() for lane in (*batch.running, *batch.waiting)]
        self._batches.clear()
        for request in left:
            request.fail(error)


class _Batch:
    """Samples of one snapshot: those that run, lane i in slot i, and those that wait for room."""

    def __init__(self, base: Base, snapshot: Snapshot, limits: SamplingLimits) -> None:
        self._base, self._snapshot, self._limits = base, snapshot, limits
        self._lanes_at_once = limits.lanes
        self._decoder: Decoder | None = None
        self._after_prompt: dict[tuple[int, ...], Any] = {}
        """Logits after the prompts of running lanes, so that late samples of a prompt need not read it again."""
        self.running: list[Lane] = []
        self.waiting: deque[Lane] = deque()

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting

    def add(self, request: Request) -> None:
        """Queue all samples of a request."""
        stops = Stops.of(request.params, self._base.tokenizer, self._base.stop_tokens)
        self.waiting.extend(Lane.of(request, number, stops) for number in range(request.num_samples))

    def advance(self) -> None:
        """Let waiting lanes join, and every running one grow by a token."""
        joining: list[Lane] = []
        try:
            with torch.inference_mode(), self._base.turns:
                if self._decoder is None:
                    self._decoder = make_decoder(self._base, self._snapshot)
                if self.running:
                    self._step(self._decoder)
                joining = self._next_lanes()
                if joining:
                    self._join(self._decoder, joining)
        except Exception as error:
            if memory.is_out_of_memory(error):
                self._shrink(joining, error.with_traceback(None))
            else:
                self._fail([*self.running, *joining, *self.waiting], error)

    def _step(self, decoder: Decoder) -> None:
        decoder.reserve(self.running)
        decoder.grow(self.running)
        self._remove_finished(decoder)

    def _next_lanes(self) -> list[Lane]:
        """Waiting lanes for which there is room now."""
        joining: list[Lane] = []
        longest = max((lane.longest for lane in self.running), default=0)
        reading = 0
        known = set(self._after_prompt)
        while self.waiting and len(self.running) + len(joining) < self._lanes_at_once:
            lane = self.waiting[0]
            longest = max(longest, lane.longest)
            reading += 0 if lane.request.prompt in known else len(lane.request.prompt)
            count = len(self.running) + len(joining) + 1
            if count > 1 and count * longest > self._limits.cached_tokens:
                break
            if joining and reading > self._limits.tokens_at_once:
                break
            known.add(lane.request.prompt)
            joining.append(self.waiting.popleft())
        return joining

    def _join(self, decoder: Decoder, joining: Sequence[Lane]) -> None:
        """Read the prompts that are new, give every lane a slot with its prompt, and choose the first tokens."""
        first = len(self.running)
        prompts = [lane.request.prompt for lane in (*self.running, *joining)]
        decoder.reserve([*self.running, *joining])
        slot_of: dict[tuple[int, ...], int] = {}
        for slot, prompt in enumerate(prompts):
            slot_of.setdefault(prompt, slot)
        new = [prompt for prompt, slot in slot_of.items() if slot >= first]
        if new:
            logits = decoder.prefill(new, [slot_of[prompt] for prompt in new])
            self._after_prompt |= dict(zip(new, logits, strict=True))
        for prompt in {lane.request.prompt for lane in joining}:
            others = [s for s in range(first, len(prompts)) if prompts[s] == prompt and s != slot_of[prompt]]
            decoder.cache.copy(slot_of[prompt], others, len(prompt))
        advance(joining, torch.stack([self._after_prompt[lane.request.prompt] for lane in joining]))
        self.running += joining
        self._remove_finished(decoder)

    def _remove_finished(self, decoder: Decoder) -> None:
        if not any(lane.done for lane in self.running):
            return
        for slot in reversed(range(len(self.running))):
            lane = self.running[slot]
            if not lane.done:
                continue
            lane.request.finish(lane.number, lane.sample())
            last = self.running.pop()
            if last is not lane:
                self.running[slot] = last
                decoder.cache.copy(len(self.running), [slot], last.position)
        kept = {lane.request.prompt for lane in self.running}
        self._after_prompt = {prompt: row for prompt, row in self._after_prompt.items() if prompt in kept}

    def _shrink(self, joining: Sequence[Lane], error: Exception) -> None:
        """Start again with half as many at once."""
        active = [*self.running, *joining]
        if self._decoder is not None:
            self._decoder.release()
        self._decoder, self.running, self._after_prompt = None, [], {}
        memory.release_unused()
        if len(active) <= 1:
            lane = active[0] if active else self.waiting.popleft()
            self._fail([lane], memory.too_little_memory("a sample", lane.longest, self._base.device))
            return
        self._lanes_at_once = len(active) // 2
        get_logger(__name__).warning(
            "sampling %d texts at once ran out of memory (%s); going on with %d", len(active), error, len(active) // 2
        )
        for lane in reversed(active):
            lane.restart()
            self.waiting.appendleft(lane)

    def _fail(self, lanes: Sequence[Lane], error: BaseException) -> None:
        failed = {id(lane.request) for lane in lanes}
        for lane in lanes:
            lane.request.fail(error)
        self.running = [lane for lane in self.running if id(lane.request) not in failed]
        self.waiting = deque(lane for lane in self.waiting if id(lane.request) not in failed)
