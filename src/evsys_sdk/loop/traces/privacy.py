"""Pseudonyms for personal data in texts: the same pseudonym for the same value.

`[EMAIL_3f9a2c]` is a keyed hash; the salt is stored with the traces, so that a person has the same pseudonym in all
traces of a store. `redact.py` removes secrets.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, cast

_HINT = re.compile(r"@|\d[\d ().+-]{5,}\d|[A-Z]{2}\d{2} ?[A-Z0-9]{4}|:[0-9A-Fa-f]{0,4}:")
"""A quick test: every text that matches a pattern matches this too, also as JSON."""


def _luhn(digits: str) -> bool:
    # Every second digit from the right is doubled, minus nine if above nine.
    doubled = [int(digit) * (1 + at % 2) for at, digit in enumerate(reversed(digits))]
    return sum(value - 9 * (value > 9) for value in doubled) % 10 == 0


def _is_card(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and _luhn(digits)


def _is_iban(text: str) -> bool:
    plain = text.replace(" ", "").upper()
    if not 15 <= len(plain) <= 34:
        return False
    # ISO 13616: move country and check digits to the end, letters count from 10; the remainder by 97 is 1.
    turned = plain[4:] + plain[:4]
    return int("".join(str(int(letter, 36)) for letter in turned)) % 97 == 1


def _is_address(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# In this order, because a short pattern must not match inside a long number.
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
    """Whether a text may hold personal data; quick, with false positives."""
    return _HINT.search(text) is not None


class Pseudonyms:
    """Replaces personal data in texts by pseudonyms."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self.counts: dict[str, int] = {}
        """Kind -> number of replacements."""

    def mask(self, value: Any) -> Any:
        """A copy of JSON-like data with personal data masked; field names stay."""
        if isinstance(value, str):
            return self.mask_text(value)
        if isinstance(value, list):
            return [self.mask(inner) for inner in cast(list[Any], value)]
        if isinstance(value, dict):
            return {key: self.mask(inner) for key, inner in cast(dict[Any, Any], value).items()}
        return value

    def mask_text(self, text: str) -> str:
        """A text with personal data masked."""
        if not is_perhaps_personal(text):
            return text
        for kind, pattern, is_real in _PATTERNS:
            text = pattern.sub(lambda match, kind=kind, is_real=is_real: self._instead(kind, match[0], is_real), text)
        return text

    def _instead(self, kind: str, value: str, is_real: Callable[[str], bool] | None) -> str:
        if is_real is not None and not is_real(value):
            return value
        self.counts[kind] = self.counts.get(kind, 0) + 1
        # Spaces and punctuation do not change the pseudonym of a number.
        plain = re.sub(r"[\s().-]", "", value).lower() if kind != "EMAIL" else value.lower()
        return f"[{kind}_{hashlib.blake2b(plain.encode(), key=self._salt, digest_size=3).hexdigest()}]"
