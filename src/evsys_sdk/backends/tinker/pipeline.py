"""Submits operations in order, gives up overdue ones, and refuses all others once one is lost.

The SDK answers with its own futures and retries some failures forever. Here each becomes an `Operation` that ends:

- Training operations start one after another on one thread, so that what was asked first is sent first, also when an
  earlier one has to wait for an answer before it can be sent (a loss computed on our side).
- A deadline is about progress: its clock starts again whenever an operation of the same lane ends, so that a long
  queue on the server is no failure.
- A training operation that was given up may still happen on the server. It is never sent again; the pipeline breaks,
  and everything asked of it afterwards is refused.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ...errors import BackendError
from ..future import Operation
from . import errors

type LaneName = Literal["connect", "train", "sample"]

_CLOSING_S = 30.0
"""How long closing waits for what is under way."""


@dataclass(slots=True, eq=False)
class _Pending:
    what: str
    start: Callable[[], Any]
    convert: Callable[[Any], Any]
    lane: _Lane
    changes_weights: bool
    out: Future[Any]
    sent: Future[Any] | None = None


@dataclass(slots=True)
class _Lane:
    limit_s: float
    pending: dict[int, _Pending] = field(default_factory=dict[int, _Pending])
    progress: float = 0.0
    """When an operation of this lane last ended, or was the first to be added."""

    def expires(self) -> float:
        return self.progress + self.limit_s


@dataclass(slots=True)
class _Shared:
    where: str
    lanes: dict[str, _Lane]
    queue: deque[_Pending] = field(default_factory=deque[_Pending])
    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    closed: bool = False
    broken: str | None = None
    pid: int = field(default_factory=os.getpid)
    starting: _Pending | None = None
    """What the serving thread is starting."""


class Pipeline:
    """The operations of one client on one server."""

    def __init__(self, where: str, limits: dict[LaneName, float]) -> None:
        self._shared = _Shared(where, {name: _Lane(limit) for name, limit in limits.items()})
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _close, self._shared)  # a client that is dropped unclosed leaves no thread behind

    @property
    def broken(self) -> str | None:
        """Why this client can no longer be used; None while it can."""
        return self._shared.broken

    def submit[T](
        self,
        what: str,
        start: Callable[[], Any],
        convert: Callable[[Any], T],
        *,
        lane: LaneName = "train",
        changes_weights: bool = False,
    ) -> Operation[T]:
        """Start something after everything submitted before it; `start` gives a future of the SDK, or a value."""
        self._refuse_if_forked(what)
        with self._shared.changed:
            pending = self._add(what, start, convert, lane, changes_weights)
            self._shared.queue.append(pending)
            self._shared.changed.notify_all()
        return Operation(pending.out, what)

    def submit_now[T](self, what: str, start: Callable[[], Any], convert: Callable[[Any], T]) -> Operation[T]:
        """Start something at once, next to whatever else is under way; `start` must not wait."""
        self._refuse_if_forked(what)
        with self._shared.changed:
            pending = self._add(what, start, convert, "sample", False)
            self._shared.changed.notify_all()
        _start(self._shared, pending)
        return Operation(pending.out, what)

    def wait(self, started: Any) -> Any:
        """The result of a future of the SDK, inside of a `start`; ends when the operation is given up."""
        future: Future[Any] = started.future()
        with self._shared.changed:
            pending = self._shared.starting
            assert pending is not None  # only a `start` may wait
            # From here on it can be given up; if that has happened already, it is cancelled below.
            pending.sent = future
        if pending.out.done():
            future.cancel()
        return future.result()

    def close(self, *, wait_s: float = _CLOSING_S) -> None:
        """Wait a while for running operations, then give up. Closing twice does nothing, nor does a forked process."""
        if os.getpid() != self._shared.pid:
            return
        with self._shared.changed:
            left = [] if self._shared.closed else [p.out for lane in self._shared.lanes.values() for p in _all(lane)]
        wait(left, timeout=wait_s)
        _close(self._shared)

    def _refuse_if_forked(self, what: str) -> None:
        """Before any lock is taken: a thread that is not there any more may have held it at the fork."""
        if os.getpid() != self._shared.pid:
            raise BackendError(
                f"{what} was asked in a process that was forked from the one that made this client; its connection "
                "does not survive a fork. Start processes with the method 'spawn' and prepare the backend in them."
            )

    def _add(
        self, what: str, start: Callable[[], Any], convert: Callable[[Any], Any], lane: LaneName, changes_weights: bool
    ) -> _Pending:
        shared = self._shared
        if shared.closed:
            raise BackendError(f"{what} was asked of a client that is closed. Prepare the backend again.")
        if shared.broken is not None:
            raise errors.no_longer_trusted(what, shared.broken)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a cancelled task must not drop an optimiser step unnoticed
        place = shared.lanes[lane]
        # The clock of a lane stands still while nothing is on it.
        if not place.pending:
            place.progress = time.monotonic()
        pending = _Pending(what, start, convert, place, changes_weights, future)
        # By identity: two operations may be alike in everything.
        place.pending[id(pending)] = pending
        if not self._threads:
            for target in (_serve, _watch):
                name = f"evsys-tinker{target.__name__}"
                self._threads.append(threading.Thread(target=target, args=(shared,), name=name, daemon=True))
                self._threads[-1].start()
        return pending


def _serve(shared: _Shared) -> None:
    """Start queued operations, one after another."""
    while True:
        with shared.changed:
            while not shared.queue:
                if shared.closed:
                    return
                shared.changed.wait()
            pending = shared.queue.popleft()
            shared.starting = pending
        # Given up while it stood in the queue, it must not be sent any more.
        if not pending.out.done():
            _start(shared, pending)
        shared.starting = None
        del pending  # an idle thread must not keep the last batch alive


def _start(shared: _Shared, pending: _Pending) -> None:
    try:
        started = pending.start()
    except BaseException as error:
        _fail(shared, pending, error)
        return
    answer: Any = started.future() if hasattr(started, "future") else started
    if not isinstance(answer, Future):
        _finish(shared, pending, started)
        return
    future = cast("Future[Any]", answer)
    pending.sent = future
    future.add_done_callback(lambda done: _end(shared, pending, done))
    if pending.out.done():  # given up while it was being sent
        future.cancel()


def _end(shared: _Shared, pending: _Pending, done: Future[Any]) -> None:
    try:
        value = done.result()
    except BaseException as error:
        _fail(shared, pending, error)
    else:
        _finish(shared, pending, value)


def _finish(shared: _Shared, pending: _Pending, value: Any) -> None:
    try:
        converted = pending.convert(value)
    except BaseException as error:
        _fail(shared, pending, error)
        return
    if _leave(shared, pending):
        pending.out.set_result(converted)


def _fail(shared: _Shared, pending: _Pending, error: BaseException) -> None:
    if isinstance(error, errors.LossFunctionError):
        _set_error(shared, pending, error.original)
        return
    if isinstance(error, CancelledError) and pending.out.done():
        return
    sentence = errors.explain(error, pending.what, shared.where)
    sentence.__cause__ = error if error is not sentence else error.__cause__
    # What the server refused did not happen. Anything else may have: whether the weights moved is not known any more.
    is_lost = pending.changes_weights and not errors.is_refusal(error)
    behind = _break(shared, str(sentence)) if is_lost else []
    _set_error(shared, pending, sentence)
    _give_up_behind(shared, behind)


def _set_error(shared: _Shared, pending: _Pending, error: BaseException) -> None:
    if _leave(shared, pending):
        pending.out.set_exception(error)


def _leave(shared: _Shared, pending: _Pending) -> bool:
    """Take an operation off its lane; only who does that may say how it ended."""
    with shared.changed:
        mine = pending.lane.pending.pop(id(pending), None) is not None
        if mine:
            pending.lane.progress = time.monotonic()
            shared.changed.notify_all()
    return mine


def _break(shared: _Shared, reason: str) -> list[_Pending]:
    """Refuse everything from here on; returns what waits behind the lost operation and cannot be trusted either."""
    with shared.changed:
        shared.broken = shared.broken or reason
        shared.queue.clear()
        return _all(shared.lanes["train"])


def _give_up_behind(shared: _Shared, behind: list[_Pending]) -> None:
    for pending in reversed(behind):  # the last one first: none must be sent because the one before it has gone
        _give_up(shared, pending, errors.no_longer_trusted(pending.what, shared.broken or ""))


def _give_up(shared: _Shared, pending: _Pending, error: BaseException) -> None:
    _set_error(shared, pending, error)
    if pending.sent is not None:
        pending.sent.cancel()


def _watch(shared: _Shared) -> None:
    """End what makes no progress."""
    while True:
        with shared.changed:
            if shared.closed:
                return
            busy = [(name, lane) for name, lane in shared.lanes.items() if lane.pending]
            now = time.monotonic()
            late = next(((name, lane) for name, lane in busy if lane.expires() <= now), None)
            if late is None:
                next_look = min((lane.expires() for _, lane in busy), default=None)
                shared.changed.wait(None if next_look is None else next_look - now)
                continue
        _expire(shared, *late)
        del busy, late


def _expire(shared: _Shared, name: str, lane: _Lane) -> None:
    with shared.changed:
        given_up = _all(lane)
    if not given_up:
        return
    first = errors.too_late(given_up[0].what, shared.where, lane.limit_s)
    behind = _break(shared, str(first)) if name != "sample" else []
    # The last one first, as below: ending one must not let the one behind it be sent.
    for pending in reversed(given_up):
        _give_up(shared, pending, errors.too_late(pending.what, shared.where, lane.limit_s))
    _give_up_behind(shared, behind)


def _all(lane: _Lane) -> list[_Pending]:
    return list(lane.pending.values())


def _close(shared: _Shared) -> None:
    if os.getpid() != shared.pid:
        return
    with shared.changed:
        shared.closed = True
        shared.queue.clear()
        left = [pending for lane in shared.lanes.values() for pending in _all(lane)]
        shared.changed.notify_all()
    for pending in reversed(left):
        _give_up(shared, pending, BackendError(f"{pending.what} was aborted because the client was closed."))
