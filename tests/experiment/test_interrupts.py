"""Ctrl-C asks for a clean stop once; the second time it ends the process."""

import logging
import os
import signal
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


def test_it_is_answered_once_and_a_second_request_does_not_wait(moments: list[str]) -> None:
    with stop_on_interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    while not moments:
        time.sleep(0.01)
    assert moments == ["heard"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_is_said_where_nobody_asked(moments: list[str]) -> None:
    with stop_on_interrupt() as interrupt:
        pass
    assert not interrupt.asked
    assert moments == []
