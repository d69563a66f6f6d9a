"""Operations: submitted at once, finished later. Await one in async code, or call `.result()` anywhere else.

backward = client.forward_backward(data, "cross_entropy")
step = client.optim_step(adam)          # submitted before the first one is awaited
output, _ = await backward, await step
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator

from ..errors import BackendError


class Operation[T]:
    """The future result of something a backend was asked to do."""

    __slots__ = ("_future", "_what")

    def __init__(self, future: concurrent.futures.Future[T], what: str = "the operation") -> None:
        self._future, self._what = future, what

    @classmethod
    def done(cls, value: T) -> Operation[T]:
        """An operation that has already finished."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_result(value)
        return cls(future)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, or raise what went wrong."""
        try:
            return self._future.result(timeout)
        except concurrent.futures.TimeoutError:
            if self._future.done():
                raise
            raise BackendError(
                f"{self._what} did not finish within {timeout:g} s. Wait longer, or check that the backend still works."
            ) from None

    def wait(self) -> None:
        """Wait until it has ended, well or badly, and forget which."""
        concurrent.futures.wait([self._future])

    def then[U](self, convert: Callable[[T], U]) -> Operation[U]:
        """The same operation with its result converted."""
        converted: concurrent.futures.Future[U] = concurrent.futures.Future()
        converted.set_running_or_notify_cancel()  # from here on a cancelled task cannot cancel the operation

        def finish(future: concurrent.futures.Future[T]) -> None:
            try:
                converted.set_result(convert(future.result()))
            except BaseException as error:
                converted.set_exception(error)

        self._future.add_done_callback(finish)
        return Operation(converted, self._what)

    def __await__(self) -> Generator[None, None, T]:
        return asyncio.wrap_future(self._future).__await__()
