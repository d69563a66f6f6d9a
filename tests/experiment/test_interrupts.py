"""Ctrl-C is answered when it comes, not when the main thread has time for it."""

import hashlib
import logging
import os
import signal
import threading
import time

import pytest

from evsys_sdk.experiment.arms.interrupts import stop_on_interrupt


class Heard(logging.Handler):
    def __init__(self, moments: list[str]) -> None:
        super().__init__()
        self.moments = moments

    def emit(self, record: logging.LogRecord) -> None:
        if "stopping after the current step" in record.getMessage():
            self.moments.append("heard")


@pytest.fixture
def moments() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def listen(moments: list[str]) -> object:
    logger, handler = logging.getLogger("evsys_sdk"), Heard(moments)
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


def test_it_is_answered_while_the_main_thread_computes(moments: list[str]) -> None:
    """A long call into C runs no handler before it returns, and the answer is there before that."""
    with stop_on_interrupt() as interrupt:
        interrupt.tell = lambda reason: moments.append(reason)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 3_000_000)
        moments.append("computed")
        assert interrupt.asked
    assert moments.index("heard") < min(moments.index("interrupted"), moments.index("computed"))


def test_it_is_answered_once_and_a_second_request_does_not_wait(moments: list[str]) -> None:
    with stop_on_interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert moments == ["heard"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_requests_while_the_main_thread_computes_are_two(moments: list[str]) -> None:
    """Python calls a handler once for all signals of a kind that came since it last looked."""
    with stop_on_interrupt() as interrupt:
        for delay_s in (0.05, 0.15):
            threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT)).start()
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 3_000_000)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            time.sleep(60)
    assert moments == ["heard"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_is_said_where_nobody_asked(moments: list[str]) -> None:
    with stop_on_interrupt() as interrupt:
        pass
    assert not interrupt.asked
    assert moments == []
