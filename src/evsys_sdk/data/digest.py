"""Fingerprints of values: the same for equal JSON in any process, and small enough to keep by the million."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any


def digest(value: Any, salt: bytes = b"") -> bytes:
    """16 bytes that stand for a JSON value; the order of keys does not matter, types do (1 is not "1")."""
    if value.__class__ is str and not salt:  # what most keys are; JSON around it would take longer than the hash
        try:
            return blake2b(value.encode(), digest_size=16).digest()
        except UnicodeEncodeError:  # half of a surrogate pair, which no file holds but a transform may make
            pass
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    # `person` tells a value from a text that reads like its JSON.
    return blake2b(text.encode(), digest_size=16, salt=salt, person=b"json").digest()


def unit_interval(fingerprint: bytes) -> float:
    """A fingerprint as a number in [0, 1), evenly spread."""
    return (int.from_bytes(fingerprint[:8]) >> 11) / (1 << 53)  # as many bits as a float holds: 64 could round to 1
