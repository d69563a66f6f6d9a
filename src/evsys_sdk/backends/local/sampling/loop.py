"""The thread that samples: requests join the running batch between two steps and leave it when they are done.

All running samples of one snapshot grow together, a token per step, as a `Batch`. The batches of the last few snapshots
are kept when nothing runs, with what they remember. Between two steps the base is free for training and for other runs.
Requests to score texts are answered in between, many at a time.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ....errors import BackendError
from ...worker import start_thread
from ..base.loading import Base
from .batch import Batch
from .lanes import PromptTokens, Request, SamplingLimits
from .scoring import ScoreRequest, score
from .snapshot import Snapshot

_GRACE_S = 0.001
"""How long an idle thread waits for more requests to start together with the first."""

_ROWS_AT_ONCE = 4
"""Texts are scored as many at a time as would fill so many rows."""

_KEPT_SNAPSHOTS = 2
"""How many snapshots keep what makes their next request faster; each may take as much memory as the model."""


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
        self.prompt_tokens = PromptTokens()
        """How much of all prompts so far was read."""
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
                raise BackendError("the model was asked through a client that is closed. Prepare the backend again.")
            append()
            if self._thread is None:
                # Not self: a loop that is dropped unclosed must be let go of, and then end its thread.
                queue = self._queue
                serving = _Serving(self._base, self._limits, queue, self.prompt_tokens)
                self._thread = start_thread(serving.run, name=self._name, give_up=lambda: _close(queue))
            self._queue.changed.notify()


def _close(queue: _Queue) -> None:
    with queue.changed:
        queue.closed = True
        queue.changed.notify_all()


class _Serving:
    """What the thread does."""

    def __init__(self, base: Base, limits: SamplingLimits, queue: _Queue, count: PromptTokens) -> None:
        self._base, self._limits, self._queue, self._count = base, limits, queue, count
        self._batches: dict[Snapshot, Batch] = {}
        self._used: list[Snapshot] = []
        """The last few snapshots, the latest last. Their batches are kept, and so are merged weights."""

    def run(self) -> None:
        while self._wait():
            try:
                self._serve_once()
            except BaseException as error:  # whoever waits must hear of it, and later requests must find a thread
                self._give_up(error)
        self._give_up(BackendError("the client was closed while it was sampling. Prepare the backend again."))
        for snapshot in self._used:  # whoever still holds a sampler should not hold a copy of the model with it
            snapshot.forget_merged()

    def _serve_once(self) -> None:
        self._score()
        self._admit()
        for batch in self._batches.values():
            if not batch.is_idle:
                batch.advance()
        self._tidy()

    def _wait(self) -> bool:
        """Until there is something to do; False when the loop is closed."""
        queue = self._queue
        idle = all(batch.is_idle for batch in self._batches.values())
        with queue.changed:
            if idle and not queue.sampling and not queue.scoring and not queue.closed:
                queue.changed.wait()
                queue.changed.wait(_GRACE_S)  # a group of samples arrives one by one, and should start as one batch
            return not queue.closed

    def _admit(self) -> None:
        with self._queue.changed:
            arrived = list(self._queue.sampling)
            self._queue.sampling.clear()
        for snapshot, request in arrived:
            self._note_use(snapshot)
            if snapshot not in self._batches:
                self._batches[snapshot] = Batch(self._base, snapshot, self._limits, self._count)
            try:
                self._batches[snapshot].add(request)
            except Exception as error:  # the others that have come with it are no worse for it
                request.fail(error)

    def _note_use(self, snapshot: Snapshot) -> None:
        """Keep the merged weights and the batches of the last few snapshots only."""
        self._used = [*(one for one in self._used if one is not snapshot), snapshot]
        for old in self._used[:-_KEPT_SNAPSHOTS]:
            old.forget_merged()
        self._used = self._used[-_KEPT_SNAPSHOTS:]
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Before the next decoder is made, so that it can have the place of an old one."""
        for snapshot in [one for one, batch in self._batches.items() if batch.is_idle and one not in self._used]:
            del self._batches[snapshot]

    def _tidy(self) -> None:
        """Let go of what is no longer used; what all batches remember shares the room that running samples leave."""
        self._drop_unused()
        if len(self._batches) < 2:
            return
        left = self._limits.cached_tokens - sum(batch.needed_tokens for batch in self._batches.values())
        for snapshot in reversed(self._used):
            if (batch := self._batches.get(snapshot)) is not None:
                batch.remember_at_most(left)
                left -= batch.remembered_tokens

    def _score(self) -> None:
        """Score a few of the texts that wait: samples and whoever wants to close should not wait for all of them."""
        arrived: list[tuple[Snapshot, ScoreRequest]] = []
        with self._queue.changed:
            tokens = 0
            while self._queue.scoring and tokens < _ROWS_AT_ONCE * self._limits.tokens_at_once:
                arrived.append(self._queue.scoring.popleft())
                tokens += len(arrived[-1][1].tokens)
        for snapshot in dict.fromkeys(snapshot for snapshot, _ in arrived):
            requests = [request for of, request in arrived if of is snapshot]
            score(self._base, snapshot, requests, tokens_at_once=self._limits.tokens_at_once)

    def _give_up(self, error: BaseException) -> None:
        with self._queue.changed:
            left: list[Any] = [request for _, request in (*self._queue.sampling, *self._queue.scoring)]
            self._queue.sampling.clear()
            self._queue.scoring.clear()
        left += [lane.request for batch in self._batches.values() for lane in (*batch.running, *batch.waiting)]
        self._batches.clear()
        for request in left:
            request.fail(error)
