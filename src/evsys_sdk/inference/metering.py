"""Who pays for the answers of inference clients.

A judge, a hosted baseline and `eval.inference` are asked deep inside a run. Whoever pays for the run hears of every
answer as it comes, so that none escapes the bill, whatever becomes of it afterwards:

    with paying(meter):
        ...                      # here, and in everything that is started from here
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Protocol

from ..config.prices import Prices, TokenUsage


class Payer(Protocol):
    """Knows prices, and is told what was used."""

    @property
    def prices(self) -> Prices:
        """Prices of its own; they come before those that are built in."""
        ...

    def pay(self, usage: TokenUsage, cost: Decimal | None) -> None:
        """Note one answer; its cost is None where it is not known. May be called from any thread."""
        ...


_payer: ContextVar[Payer | None] = ContextVar("payer", default=None)
_open: list[Payer] = []


@contextmanager
def paying(payer: Payer) -> Generator[None]:
    """Send the bill for everything that is asked in this block to `payer`."""
    token = _payer.set(payer)
    _open.append(payer)
    try:
        yield
    finally:
        _open.remove(payer)
        _payer.reset(token)


def current_payer() -> Payer | None:
    """Who pays here. A thread that somebody's code started knows nobody: the one who began last pays for it."""
    return _payer.get() or next(iter(_open[-1:]), None)
