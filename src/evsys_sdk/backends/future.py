"""Operations: submitted at once, finished later. Await one in async code, or call `.result()` anywhere else.

backward = client.forward_backward(data, "cross_entropy")
step = client.optim_step(adam)          # submitted before the first one is awaited
output, _ = await backward, await step
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator, Sequence
from itertools import count
from typing import Any

from ..errors import BackendError


class Operation[T]:
    """The future result of a backend operation."""

    __slots__ = ("_future", "_what")

    def __init__(self, future: concurrent.futures.Future[T], what: str = "the operation") -> None:
        self._future, self._what = future, what

    @classmethod
    def done(cls, value: T) -> Operation[T]:
        """A finished operation."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_result(value)
        return cls(future)

    @classmethod
    def failed(cls, error: BaseException) -> Operation[T]:
        """A failed operation."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_exception(error)
        return cls(future)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, or raise the error."""
        try:
            return self._future.result(timeout)
        except concurrent.futures.TimeoutError:
            if self._future.done():
                raise
            raise BackendError(
                f"{self._what} did not finish within {timeout:g} s. Wait longer, or check that the backend still works."
            ) from None

    def wait(self) -> None:
        """Wait for the end, ignoring the outcome."""
        concurrent.futures.wait([self._future])

    def on_end(self, note: Callable[[Operation[T]], object]) -> None:
        """Call a function at the end, for any outcome."""
        self._future.add_done_callback(lambda _: note(self))

    def then[U](self, convert: Callable[[T], U]) -> Operation[U]:
        """The operation with its result converted."""
        return self.follow(lambda value: Operation[U].done(convert(value)))

    def follow[U](self, start: Callable[[T], Operation[U]]) -> Operation[U]:
        """The operation that `start` submits with this one's result."""
        following: concurrent.futures.Future[U] = _begin()

        def begin(future: concurrent.futures.Future[T]) -> None:
            try:
                start(future.result())._future.add_done_callback(lambda ended: _settle(following, ended.result))
            except BaseException as error:
                following.set_exception(error)

        self._future.add_done_callback(begin)
        return Operation(following, self._what)

    def __await__(self) -> Generator[None, None, T]:
        return asyncio.wrap_future(self._future).__await__()


def gather[T](operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """All results in order, after every operation has ended; or the first error."""
    ended = count(1)
    joined: concurrent.futures.Future[list[T]] = _begin()

    def note(_: object = None) -> None:
        if next(ended) >= len(operations):
            _settle(joined, lambda: [operation.result() for operation in operations])

    for operation in operations:
        operation.on_end(note)
    if not operations:
        note()
    return Operation(joined)


def _begin() -> concurrent.futures.Future[Any]:
    """A future that a cancelled task cannot cancel any more."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()
    return future


def _settle[T](future: concurrent.futures.Future[T], find: Callable[[], T]) -> None:
    try:
        future.set_result(find())
    except BaseException as error:
        future.set_exception(error)
