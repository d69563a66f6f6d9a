"""The sampling thread: requests join the running batch between two steps and leave it when they are done.

All running samples of one snapshot form a `Batch` and grow by a token per step. The batches of the last few snapshots
are kept with their prefix caches. Between two steps the base is free for training and other runs. Scoring requests are
computed between steps, many at a time.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ....errors import BackendError
from ...worker import start_thread
from ..base.loading import Base
from .batch import Batch
from .decoding import TokenDecoder
from .fused_decoding import make_decoder
from .joint_decoding import make_joint_decoder
from .lanes import PromptTokens, SampleCall, SamplingLimits
from .scoring import ScoreRequest, score
from .snapshot import Snapshot

_GRACE_S = 0.001
"""How long an idle thread waits for more requests after the first, to start them as one batch."""

_JOINT_GRACE_S = 0.02
"""How long an idle thread waits for other runs that share the base."""

_ROWS_AT_ONCE = 4
"""Maximum number of full rows that are scored between two steps."""

_KEPT_SNAPSHOTS = 2
"""Number of snapshots with cached merged weights and batches; each may take as much memory as the model."""


@dataclass(slots=True)
class _Queue:
    sampling: deque[tuple[Snapshot, SampleCall]] = field(default_factory=deque[tuple[Snapshot, SampleCall]])
    scoring: deque[tuple[Snapshot, ScoreRequest]] = field(default_factory=deque[tuple[Snapshot, ScoreRequest]])
    changed: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False


class SamplingLoop:
    """Serves the requests of one client's samplers on a thread, which starts with the first request.

    With `shared`, clients on the same base with the same limits share a thread, and their samples are batched.
    """

    def __init__(self, base: Base, limits: SamplingLimits, *, name: str, shared: bool = False) -> None:
        self._pending: set[Any] = set()
        """Unresolved requests."""
        with _guard:
            thread = base.loops.get(limits) if shared else None
            self._thread = thread or _Thread(base, limits, name, shared=shared)
            self._thread.users += 1
            if shared:
                base.loops[limits] = self._thread
        self.prompt_tokens = self._thread.prompt_tokens
        """Number of computed and reused prompt tokens so far."""
        self._end = weakref.finalize(self, _leave, self._thread, base.loops, limits)

    def sample(self, snapshot: Snapshot, request: SampleCall) -> None:
        """Queue a sampling request; its future receives the result."""
        request.owner = snapshot
        self._add(lambda queue: queue.sampling.append((snapshot, request)), request)

    def score(self, snapshot: Snapshot, request: ScoreRequest) -> None:
        """Queue a scoring request; its future receives the result."""
        self._add(lambda queue: queue.scoring.append((snapshot, request)), request)

    def close(self) -> None:
        """Fail all unresolved requests; end the thread if no other client uses it. Closing twice does nothing."""
        thread = self._thread
        for request in list(self._pending):
            request.fail(BackendError("the client was closed while it was sampling. Prepare the backend again."))
        self._end()
        if not thread.users:
            thread.join()

    def _add(self, append: Callable[[_Queue], None], request: Any) -> None:
        if not self._end.alive:
            raise BackendError("the model was asked through a client that is closed. Prepare the backend again.")
        pending = self._pending  # without a reference to self, so that an unclosed loop can be freed
        pending.add(request)
        request.future.add_done_callback(lambda _: pending.discard(request))
        self._thread.add(append)


_guard = threading.Lock()


def _leave(thread: _Thread, loops: dict[Any, Any], limits: SamplingLimits) -> None:
    """Remove a client from a thread; the last client ends the thread."""
    with _guard:
        thread.users -= 1
        if thread.users:
            return
        if loops.get(limits) is thread:
            del loops[limits]
    _close(thread.queue)


class _Thread:
    """A sampling thread with its queue of requests."""

    def __init__(self, base: Base, limits: SamplingLimits, name: str, *, shared: bool) -> None:
        self.queue, self.prompt_tokens, self.users = _Queue(), PromptTokens(), 0
        self._name, self._thread = name, None
        self._serving = _Serving(base, limits, self.queue, self.prompt_tokens, joins=shared)

    def add(self, append: Callable[[_Queue], None]) -> None:
        with self.queue.changed:
            append(self.queue)
            if self._thread is None:
                queue = self.queue
                self._thread = start_thread(self._serving.run, name=self._name, give_up=lambda: _close(queue))
            self.queue.changed.notify()

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _close(queue: _Queue) -> None:
    with queue.changed:
        queue.closed = True
        queue.changed.notify_all()


class _Serving:
    """The work of a sampling thread."""

    def __init__(self, base: Base, limits: SamplingLimits, queue: _Queue, count: PromptTokens, *, joins: bool) -> None:
        self._base, self._limits, self._queue, self._count, self._joins = base, limits, queue, count, joins
        self._batches: dict[Snapshot | int, Batch] = {}
        """Batches by snapshot, or by form for snapshots that are sampled from jointly."""
        self._used: list[Snapshot] = []
        """The last few snapshots, most recent last; their batches and merged weights are kept."""

    def run(self) -> None:
        while self._wait():
            try:
                self._serve_once()
            except BaseException as error:  # passed on to the callers; the thread must survive for later requests
                self._give_up(error)
        self._give_up(BackendError("the client was closed while it was sampling. Prepare the backend again."))
        for snapshot in self._used:  # a caller may still hold the sampler, which should not keep a copy of the model
            snapshot.forget_merged()
        self._used.clear()

    def _serve_once(self) -> None:
        self._score()
        self._admit()
        for batch in self._batches.values():
            if not batch.is_idle:
                batch.advance()
        self._tidy()

    def _wait(self) -> bool:
        """Wait for work; return False when the queue is closed."""
        queue = self._queue
        idle = all(batch.is_idle for batch in self._batches.values())
        with queue.changed:
            if idle and not queue.sampling and not queue.scoring and not queue.closed:
                queue.changed.wait()
                queue.changed.wait(_GRACE_S)  # the requests of a group arrive one by one; start them as one batch
                self._wait_for_others()
            return not queue.closed

    def _wait_for_others(self) -> None:
        """Wait briefly for requests of the other runs on the base, so that their prompts are computed together."""
        members, ends = getattr(self._base.joiner, "members", 0), time.monotonic() + _JOINT_GRACE_S
        queue = self._queue
        while (
            self._joins
            and not queue.closed
            and len({snapshot for snapshot, _ in queue.sampling}) in range(1, members)
            and ends > time.monotonic()
        ):
            queue.changed.wait(ends - time.monotonic())

    def _admit(self) -> None:
        with self._queue.changed:
            arrived = list(self._queue.sampling)
            self._queue.sampling.clear()
        for snapshot, request in arrived:
            batch = self._batch_for(snapshot)
            try:
                batch.add(request)
            except Exception as error:  # fail only this request
                request.fail(error)

    def _batch_for(self, snapshot: Snapshot) -> Batch:
        """Return the batch for a snapshot: its own, or a joint one while several runs share the base."""
        base, members = self._base, getattr(self._base.joiner, "members", 0)
        if not self._joins or members < 2 or snapshot.form is None:
            self._note_use(snapshot)
            if snapshot not in self._batches:
                self._batches[snapshot] = self._new_batch(lambda: make_decoder(base, snapshot))
            return self._batches[snapshot]
        self._drop_unused()
        if snapshot.form not in self._batches:
            self._batches[snapshot.form] = self._new_batch(lambda: make_joint_decoder(base, snapshot))
        return self._batches[snapshot.form]

    def _new_batch(self, make: Callable[[], TokenDecoder]) -> Batch:
        return Batch(self._base, make, self._limits, self._count)

    def _note_use(self, snapshot: Snapshot) -> None:
        """Mark a snapshot as used; drop merged weights and batches of older snapshots."""
        self._used = [*(used for used in self._used if used is not snapshot), snapshot]
        for old in self._used[:-_KEPT_SNAPSHOTS]:
            old.forget_merged()
        self._used = self._used[-_KEPT_SNAPSHOTS:]
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop idle batches that are not kept, so that a new decoder can reuse their memory."""
        shared = getattr(self._base.joiner, "members", 0) > 1
        kept = {key for key in self._batches if key in self._used or (shared and isinstance(key, int))}
        for key in [key for key, batch in self._batches.items() if batch.is_idle and key not in kept]:
            del self._batches[key]

    def _tidy(self) -> None:
        """Drop unused batches, and limit all prefix caches together to the room that running samples leave."""
        self._drop_unused()
        if len(self._batches) < 2:
            return
        room = self._limits.cached_tokens - sum(batch.needed_tokens for batch in self._batches.values())
        joint = [key for key in self._batches if isinstance(key, int)]
        for key in [*joint, *reversed(self._used)]:
            if (batch := self._batches.get(key)) is not None:
                batch.remember_at_most(room)
                room -= batch.remembered_tokens

    def _score(self) -> None:
        """Score some of the waiting texts; not all, because samples and `close` have to wait meanwhile."""
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
            unanswered: list[Any] = [request for _, request in (*self._queue.sampling, *self._queue.scoring)]
            self._queue.sampling.clear()
            self._queue.scoring.clear()
        unanswered += [lane.request for batch in self._batches.values() for lane in (*batch.running, *batch.waiting)]
        self._batches.clear()
        for request in unanswered:
            request.fail(error)
