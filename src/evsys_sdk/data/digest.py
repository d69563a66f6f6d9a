"""Compact fingerprints of JSON values, equal in every process."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any


def digest(value: Any, salt: bytes = b"") -> bytes:
    """A 16-byte hash of a JSON value; independent of key order, dependent on types (1 is not "1")."""
    if value.__class__ is str and not salt:  # fast path for most keys
        try:
            return blake2b(value.encode(), digest_size=16).digest()
        except UnicodeEncodeError:  # a lone surrogate, e.g. from a transform
            pass
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    # `person` distinguishes a value from the text of its JSON.
    return blake2b(text.encode(), digest_size=16, salt=salt, person=b"json").digest()


def unit_interval(fingerprint: bytes) -> float:
    """A fingerprint as an evenly distributed number in [0, 1)."""
    return (int.from_bytes(fingerprint[:8]) >> 11) / (1 << 53)  # 53 bits, the precision of a float: 64 could round to 1
