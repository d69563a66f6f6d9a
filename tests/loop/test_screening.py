"""Looking through many lines at once finds every line that looking at each would find."""

from __future__ import annotations

import random

import pytest

from evsys_sdk.loop.traces.privacy import find_perhaps_personal, find_suspicious, is_perhaps_personal
from evsys_sdk.redact import SECRET_FRAGMENTS, is_suspicious

OTHER_DIGITS = ["".join(chr(start + n) for n in range(8)) for start in (0x660, 0x966, 0xFF10, 0x1D7CE)]
PERSONAL = [
    *("a@b", "12 34 56 7", "1234567", "+49 30 901820", "(415) 555-2671", "DE89 3704", "GB82WEST", "::1", "fe80:12ab:9"),
    *("123456", "12-34", "AB1", "a:b:c:d", "10:30:00", *OTHER_DIGITS, f"12{OTHER_DIGITS[0]}3"),
]
FILLER = ["", "x", "déjà vu ", "量子力学 ", '"role":"user",', "plain words and 12 numbers; ", "ABBA 12", ":"]


def mix(chance: random.Random, pieces: list[str]) -> bytes:
    return "".join(chance.choice(FILLER) + chance.choice([*pieces, ""]) for _ in range(3)).encode()


@pytest.mark.parametrize("count", [0, 1, 2, 400])
def test_secrets(count: int) -> None:
    chance = random.Random(count)
    whole = list(SECRET_FRAGMENTS)
    cased = ["".join(chance.choice((c.upper(), c)) for c in one) for one in whole]
    nearly = [one[:-1] for one in whole] + [one[1:] for one in whole]
    strange = [one.replace("k", "\u212a") for one in whole] + ["lin_ap\u0130"]
    lines = [mix(chance, [*whole, *cased, *nearly, *strange]) for _ in range(count)]
    expected = {at for at, line in enumerate(lines) if is_suspicious(line.decode())}
    found = set(find_suspicious(lines))
    assert expected <= found
    for at in found - expected:
        text = lines[at].decode()
        assert any(one in text.lower() for one in SECRET_FRAGMENTS) or "\u212a" in text or "\u0130" in text


def test_each_fragment_alone_and_at_either_end() -> None:
    for fragment in SECRET_FRAGMENTS:
        for padding in ("", "x", "xy"):
            lines = [b"nothing", f"{padding}{fragment}".encode(), b"", f"{fragment}{padding}".encode(), b"no"]
            assert find_suspicious(lines) == [1, 3], fragment


def test_what_continues_in_the_next_line_is_not_there() -> None:
    assert find_suspicious([b"to", b"ken", b"sk", b"-"]) == []
    assert find_perhaps_personal([b"12345", b"67890", b"AB", b"12"]) == []


def test_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_KEY", "correct horse battery")
    assert find_suspicious([b"a", b"so correct horse battery it is", b"c"]) == [1]


@pytest.mark.parametrize("count", [0, 1, 400])
def test_personal_things(count: int) -> None:
    chance = random.Random(count)
    lines = [mix(chance, PERSONAL) for _ in range(count)]
    expected = {at for at, line in enumerate(lines) if is_perhaps_personal(line.decode())}
    assert expected <= set(find_perhaps_personal(lines))


def test_ordinary_text_is_not_looked_at_again() -> None:
    lines = [b'{"role":"user","content":"the 12 quick foxes, 1 at a time (or 2)"}', "naïve façade 东西".encode()]
    assert find_perhaps_personal(lines) == []
    assert find_suspicious(lines) == []
