"""The parts of the supervisor that can be looked at without a sandbox."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.rollouts.sandbox import supervisor
from evsys_sdk.rollouts.sandbox.client import SupervisorClient
from evsys_sdk.rollouts.sandbox.supervisor.capture import Capture
from evsys_sdk.rollouts.sandbox.supervisor.wire import Decoder, WireError, encode

LONGEST = 1 << 16
NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NUMBERS = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.booleans()
VALUES = st.binary(max_size=99) | TEXTS | NUMBERS | st.lists(TEXTS.filter(lambda text: "\0" not in text), max_size=5)
MESSAGES = st.dictionaries(NAMES, VALUES, max_size=8)


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 50))
def test_messages_arrive_whole_however_they_are_cut(messages: list[dict[str, Any]], size: int) -> None:
    stream = b"".join(encode(message) for message in messages)
    decoder = Decoder(LONGEST)
    arrived = [message for at in range(0, len(stream), size) for message in decoder.feed(stream[at : at + size])]
    assert arrived == messages
    types = [[type(value) for value in message.values()] for message in messages]
    assert [[type(value) for value in message.values()] for message in arrived] == types


@given(st.binary(max_size=200))
def test_what_is_no_message_is_refused_and_does_nothing_else(body: bytes) -> None:
    try:
        messages = Decoder(LONGEST).feed(len(body).to_bytes(8) + body)
    except WireError:
        return
    assert encode(messages[0]) == len(body).to_bytes(8) + body or all(isinstance(key, str) for key in messages[0])


@pytest.mark.parametrize(
    "stream",
    [
        (LONGEST + 1).to_bytes(8),
        b"\xff" * 8,
        (4).to_bytes(8) + b"\xff" * 4,
        (11).to_bytes(8) + b"\x01a" + b"x" + (0).to_bytes(8),
        (12).to_bytes(8) + b"\x01a" + b"b" + (2**63).to_bytes(8) + b"x",
        (44).to_bytes(8) + b"\x01a" + b"i" + (33).to_bytes(8) + b"9" * 33,
        (13).to_bytes(8) + b"\x01a" + b"i" + (2).to_bytes(8) + b"zz",
        (12).to_bytes(8) + b"\x01a" + b"s" + (1).to_bytes(8) + b"x" + b"",
    ],
    ids=["too long", "endless", "garbage", "unknown type", "beyond the end", "long number", "no number", "fine"],
)
def test_a_message_that_breaks_the_rules_is_refused_before_it_takes_memory(
    stream: bytes, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.id == "fine":
        assert Decoder(LONGEST).feed(stream) == [{"a": "x"}]
        return
    with pytest.raises(WireError):
        Decoder(LONGEST).feed(stream)


@pytest.mark.parametrize("sent", [b"\xff" * 64, encode({"id": 1, "stdout": "not bytes"}), encode({"id": b"1"})])
async def test_garbage_from_the_supervisor_ends_that_sandbox_in_one_sentence(sent: bytes) -> None:
    client = SupervisorClient(longest_answer=LONGEST)
    client.data_received(sent)
    assert not client._pending
    assert client._explain_end().startswith("The sandbox has ended: its supervisor sent something that is no answer (")
    assert client._explain_end().count(". ") == 1


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

    def answer(self, number: int, architecture: int, *arguments: int) -> int:
        words = {0: number, 4: architecture, 16: 0, **{16 + 8 * at: value for at, value in enumerate(arguments)}}
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
@pytest.mark.parametrize("name", ["x86_64", "aarch64", "riscv64"])
def test_the_filter_refuses_what_it_should_and_nothing_else(name: str) -> None:
    from evsys_sdk.rollouts.sandbox.supervisor import seccomp

    allow, not_there, refused, no_family = 0x7FFF0000, 0x00050000 | 38, 0x00050000 | 1, 0x00050000 | 97
    architecture = seccomp.MACHINES[name][0]
    machine = Machine(seccomp.program(name))
    for table, answer in ((seccomp._REFUSED, refused), (seccomp._NOT_THERE, not_there)):
        assert {machine.answer(number, architecture) for number in seccomp.numbers(table, name).values()} == {answer}
    by_argument = seccomp.numbers(seccomp._BY_ARGUMENT, name)
    for call in ("clone", "unshare"):
        for flag in (0x20000, *(1 << bit for bit in range(25, 31))):
            assert machine.answer(by_argument[call], architecture, flag | 0x11) == refused
        assert machine.answer(by_argument[call], architecture, 0x11) == allow
    assert machine.answer(by_argument["unshare"], architecture, 0x80) == refused
    assert machine.answer(by_argument["clone"], architecture, 0x8011) == refused
    for call in ("socket", "socketpair"):
        allowed = {family for family in range(64) if machine.answer(by_argument[call], architecture, family) == allow}
        assert allowed == {1, 2, 10}
        assert machine.answer(by_argument[call], architecture, 40) == no_family
    ignored = {
        option
        for option in range(99)
        if machine.answer(by_argument["setsockopt"], architecture, 3, 1, option) == 0x00050000
    }
    assert ignored == {7, 8, 32, 33}
    assert {machine.answer(by_argument["setsockopt"], architecture, 3, 6, option) for option in range(99)} == {allow}
    assert machine.answer(by_argument["prlimit64"], architecture, 0) == allow
    assert machine.answer(by_argument["prlimit64"], architecture, 1) == refused
    assert machine.answer(by_argument["clone"], architecture + 1) == not_there
    assert machine.answer(by_argument["clone"] | 0x40000000, architecture) == not_there
    tables = (seccomp._REFUSED, seccomp._NOT_THERE, seccomp._BY_ARGUMENT)
    known = {number for table in tables for number in seccomp.numbers(table, name).values()}
    assert {machine.answer(number, architecture) for number in set(range(600)) - known} == {allow}
