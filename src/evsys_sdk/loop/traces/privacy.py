"""What is personal in a text, and what stands there instead: the same mark for the same value, and no way back.

`[EMAIL_3f9a2c]` is made with a salt that stays in the store, so that who wrote twice is still one person in the data.
Secrets are taken out by `redact.py`. Of both kinds, here is how the few lines are found that may hold one.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ...redact import SECRET_FRAGMENTS, holds_environment_secret

_HINT = re.compile(r"@|\d[\d ().+-]{5,}\d|\b[A-Z]{2}\d{2} ?[A-Z0-9]{4}|:[0-9A-Fa-f]{0,4}:")
"""What a text must have for any of the patterns to be found in it."""


def _luhn(digits: str) -> bool:
    # Every second digit from the right counts twice, and of a product of two digits the sum of them (less nine).
    doubled = [int(digit) * (1 + at % 2) for at, digit in enumerate(reversed(digits))]
    return sum(value - 9 * (value > 9) for value in doubled) % 10 == 0


def _is_card(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and _luhn(digits)


def _is_iban(text: str) -> bool:
    plain = text.replace(" ", "").upper()
    if not 15 <= len(plain) <= 34:
        return False
    # ISO 13616: country and check digits go to the end, letters count from 10, and the remainder by 97 is 1.
    turned = plain[4:] + plain[:4]
    return int("".join(str(int(letter, 36)) for letter in turned)) % 97 == 1


def _is_address(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# In this order: each works on what the one before has left, and
# a short pattern must not cut a piece out of a long number.
_PATTERNS: tuple[tuple[str, re.Pattern[str], Callable[[str], bool] | None], ...] = (
    ("EMAIL", re.compile(r"[A-Za-z0-9._%+'-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}"), None),
    ("IBAN", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), _is_iban),
    ("CARD", re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.]*\d)"), _is_card),
    ("PHONE", re.compile(r"(?<![\w.])\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){1,5}(?!\d)"), None),
    ("PHONE", re.compile(r"(?<![\w.-])(?:\(\d{3}\) ?|\d{3}[.-])\d{3}[.-]\d{4}(?![\w-])"), None),
    ("IP", re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)"), _is_address),
    ("IP", re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{1,4}(?![\w:])"), _is_address),
    ("SSN", re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])"), None),
)


def is_perhaps_personal(text: str) -> bool:
    """Whether a text may hold something personal: quick, and true for some that hold nothing."""
    return _HINT.search(text) is not None


class Pseudonyms:
    """Takes personal things out of texts."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self.counts: dict[str, int] = {}
        """Kind -> how many were taken out."""

    def mask(self, value: Any) -> Any:
        """A copy of JSON-like data without what is personal; names of fields stay."""
        if isinstance(value, str):
            return self.mask_text(value)
        if isinstance(value, list):
            return [self.mask(inner) for inner in cast(list[Any], value)]
        if isinstance(value, dict):
            return {key: self.mask(inner) for key, inner in cast(dict[Any, Any], value).items()}
        return value

    def mask_text(self, text: str) -> str:
        """A text without what is personal in it."""
        if not is_perhaps_personal(text):
            return text
        for kind, pattern, is_real in _PATTERNS:
            text = pattern.sub(lambda found, kind=kind, is_real=is_real: self._instead(kind, found[0], is_real), text)
        return text

    def _instead(self, kind: str, value: str, is_real: Callable[[str], bool] | None) -> str:
        if is_real is not None and not is_real(value):
            return value
        self.counts[kind] = self.counts.get(kind, 0) + 1
        # The same number written with other blanks is still the same person's.
        plain = re.sub(r"[\s().-]", "", value).lower() if kind != "EMAIL" else value.lower()
        return f"[{kind}_{hashlib.blake2b(plain.encode(), key=self._salt, digest_size=3).hexdigest()}]"


# Which of many lines deserve a closer look: one pass over the bytes of all instead of dozens over each.
#
# Nearly every line holds neither a secret nor anything personal. Here are necessary conditions of both, worked out
# with numpy for some thousand lines at once; a line that meets one is then judged by the patterns themselves.
# Whatever `redact.is_suspicious` or `is_perhaps_personal` says yes to is found here, too.

type Bytes = NDArray[np.uint8]
type Flags = NDArray[np.bool_]
type Places = NDArray[np.int64]

_ASCII_IN_LOWER_CASE = ("\u212a", "\u0130")
"""The letters outside of ASCII whose lower case has a letter of ASCII: the sign of Kelvin, and I with a dot."""


def find_suspicious(lines: Sequence[bytes]) -> list[int]:
    """Indexes of lines that may hold a secret."""
    whole = b"\n".join(lines)
    found: list[int] = []
    if holds_environment_secret(whole.decode("utf-8", "replace")):
        found = [at for at, line in enumerate(lines) if holds_environment_secret(line.decode("utf-8", "replace"))]
    # On bytes, lower() changes ASCII alone: letters elsewhere whose lower case is one of ASCII are needles themselves.
    places = _secret_needles().find(np.frombuffer(whole.lower(), np.uint8))
    return sorted({*found, *_lines_at(places, lines)})


def find_perhaps_personal(lines: Sequence[bytes]) -> list[int]:
    """Indexes of lines that may hold something personal."""
    whole = np.frombuffer(b"\n".join(lines), np.uint8)
    # What `_HINT` asks for, as conditions on single bytes: a digit with six more signs of numbers behind it, the
    # beginning of an IBAN, two colons close to each other, and the sign of addresses.
    digit, upper, counts = (table[whole] for table in _classes())
    started = _all_of(counts, 7) & digit[: max(0, len(whole) - 6)]
    coded = _one_after_another(upper, upper, digit, digit)
    colons = np.flatnonzero(whole == ord(":"))
    near = colons[:-1][np.diff(colons) <= 5]
    signs = np.flatnonzero(whole == ord("@"))
    other_digits = _digit_needles().find(whole)
    places = np.concatenate([signs, np.flatnonzero(started), np.flatnonzero(coded), near, other_digits])
    return _lines_at(places, lines)


def _lines_at(places: Places, lines: Sequence[bytes]) -> list[int]:
    """Which of the joined lines some places lie in."""
    ends = np.fromiter(itertools.accumulate(len(line) + 1 for line in lines), np.int64, len(lines))
    return np.unique(np.searchsorted(ends, places, side="right")).tolist()


def _all_of(flags: Flags, width: int) -> Flags:
    """Where so many neighbours in a row are set, at the first of them."""
    have = 1
    while have < width:
        # Doubles the width that is known with each step: seven in a row take three passes and not six.
        step = min(have, width - have)
        flags, have = flags[: max(0, len(flags) - step)] & flags[step:], have + step
    return flags


def _one_after_another(*flags: Flags) -> Flags:
    """Where the first is set, the second one further on, and so on."""
    length = max(0, len(flags[0]) - len(flags) + 1)
    found = flags[0][:length].copy()
    for shift, one in enumerate(flags[1:], 1):
        found &= one[shift : shift + length]
    return found


@functools.cache
def _classes() -> tuple[Flags, Flags, Flags]:
    """By byte: digits, capital letters, and what numbers are written with."""
    tables = [np.zeros(256, np.bool_) for _ in range(3)]
    for table, members in zip(tables, (b"0123456789", bytes(range(65, 91)), b"0123456789 ().+-"), strict=True):
        table[list(members)] = True
    digit, upper, counts = tables
    return digit, upper, counts


@dataclass(frozen=True, slots=True)
class _Needles:
    """Many short texts to look for at once: by their first two bytes, then by all."""

    pairs: Flags
    by_pair: dict[int, list[bytes]]

    @classmethod
    def of(cls, needles: Iterable[bytes]) -> _Needles:
        pairs, by_pair = np.zeros(1 << 16, np.bool_), dict[int, list[bytes]]()
        for needle in needles:
            pair = int.from_bytes(needle[:2], sys.byteorder)
            pairs[pair] = True
            by_pair.setdefault(pair, []).append(needle)
        return cls(pairs, by_pair)

    def find(self, data: Bytes) -> Places:
        """Where any of them begins."""
        found: list[Places] = []
        for start in (0, 1):  # pairs that begin at even places, and those at odd ones
            length = max(0, len(data) - start) // 2 * 2
            read = data[start : start + length].view(np.uint16)
            at = np.flatnonzero(self.pairs[read])
            found += self._verify(data, at * 2 + start, read[at])
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _verify(self, data: Bytes, places: Places, pairs: NDArray[np.uint16]) -> list[Places]:
        order = np.argsort(pairs, kind="stable")
        places, pairs = places[order], pairs[order]
        found: list[Places] = []
        for pair, needles in self.by_pair.items():
            low, high = np.searchsorted(pairs, [pair, pair + 1])
            for needle in needles if high > low else ():
                begins = places[low:high]
                begins = begins[begins + len(needle) <= len(data)]
                # Places get fewer with every byte that is compared; most are gone after one.
                for shift, byte in enumerate(needle[2:], 2):
                    begins = begins[data[begins + shift] == byte]
                found.append(begins)
        return found


@functools.cache
def _secret_needles() -> _Needles:
    return _Needles.of(one.encode() for one in (*SECRET_FRAGMENTS, *_ASCII_IN_LOWER_CASE))


@functools.cache
def _digit_needles() -> _Needles:
    """The digits of other scripts, which patterns take for digits."""
    points = range(0x80, 0x20000)  # there are none beyond
    return _Needles.of(chr(point).encode() for point in points if unicodedata.category(chr(point)) == "Nd")
