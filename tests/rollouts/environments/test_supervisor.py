"""The parts of the supervisor that can be looked at without a sandbox."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.rollouts.environments import supervisor
from evsys_sdk.rollouts.environments.supervisor.capture import Capture
from evsys_sdk.rollouts.environments.supervisor.wire import Decoder, encode

MESSAGES = st.dictionaries(st.text(), st.binary() | st.text() | st.integers() | st.lists(st.booleans()))


@given(st.lists(MESSAGES), st.integers(1, 50))
def test_messages_arrive_whole_however_they_are_cut(messages: list[dict[str, object]], size: int) -> None:
    stream = b"".join(encode(message) for message in messages)
    decoder = Decoder()
    arrived = [message for at in range(0, len(stream), size) for message in decoder.feed(stream[at : at + size])]
    assert arrived == messages


@given(st.lists(st.binary(max_size=40)), st.integers(1, 60))
def test_a_capture_keeps_everything_or_says_exactly_what_it_left_out(parts: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for part in parts:
        capture.add(part)
    whole = b"".join(parts)
    if len(whole) <= limit:
        assert capture.value() == whole
    else:
        head, tail = (limit + 1) // 2, limit // 2
        note = f"\n[... {len(whole) - limit} bytes of output left out ...]\n".encode()
        assert capture.value() == whole[:head] + note + whole[len(whole) - tail :]


def test_the_supervisor_imports_nothing_that_is_slow_to_import() -> None:
    folder = str(Path(supervisor.__file__).parents[1])
    code = "import sys; sys.path.insert(0, sys.argv[1]); import supervisor.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, folder], capture_output=True, text=True, check=True)
    slow = {"typing", "re", "enum", "dataclasses", "json", "socket", "signal", "subprocess", "collections", "evsys_sdk"}
    assert slow.isdisjoint(done.stdout.split())


class Machine:
    """Runs a filter as the kernel does."""

    def __init__(self, code: bytes) -> None:
        self.instructions = list(struct.iter_unpack("HBBI", code))

    def answer(self, number: int, architecture: int, first_argument: int = 0) -> int:
        words = {0: number, 4: architecture, 16: first_argument}
        accumulator, at = 0, 0
        while True:
            code, if_true, if_false, value = self.instructions[at]
            at += 1
            match code:
                case 0x20:
                    accumulator = words[value]
                case 0x06:
                    return value
                case _:
                    holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
                    at += if_true if holds[code] else if_false


@pytest.mark.skipif(sys.platform != "linux", reason="system call filters exist only on Linux")
def test_the_filter_refuses_what_it_should_and_nothing_else() -> None:
    from evsys_sdk.rollouts.environments.supervisor import seccomp

    allow, not_there, refused = 0x7FFF0000, 0x00050000 | 38, 0x00050000 | 1
    for architecture, numbers in seccomp._MACHINES.values():
        machine = Machine(seccomp.program(architecture, numbers))
        assert machine.answer(numbers["memfd_create"], architecture) == not_there
        assert machine.answer(numbers["clone3"], architecture) == not_there
        assert machine.answer(numbers["setns"], architecture) == refused
        for name in ("clone", "unshare"):
            assert machine.answer(numbers[name], architecture, 0x10000000 | 0x11) == refused
            assert machine.answer(numbers[name], architecture, 0x11) == allow
        assert machine.answer(numbers["clone"], architecture + 1) == not_there
        assert machine.answer(numbers["clone"] | 0x40000000, architecture) == not_there
        others = set(range(500)) - set(numbers.values())
        assert {machine.answer(number, architecture) for number in others} == {allow}
