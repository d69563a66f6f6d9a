"""What a client has used: tokens trained on, read and sampled, and what they cost where prices are known."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ...files import write_json
from .config import TokenPrices


@dataclass(slots=True)
class Usage:
    """Counts that only grow; may be added to from any thread."""

    prices: TokenPrices | None = None
    train_tokens: int = 0
    """Tokens of forward and backward passes."""
    prefill_tokens: int = 0
    """Tokens of prompts that were sampled from or scored."""
    sample_tokens: int = 0
    """Tokens that were sampled."""
    requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, train: int = 0, prefill: int = 0, sample: int = 0) -> None:
        """Note one request that was answered."""
        with self._lock:
            self.train_tokens += train
            self.prefill_tokens += prefill
            self.sample_tokens += sample
            self.requests += 1

    @property
    def cost_usd(self) -> float | None:
        """What it cost so far; None without prices."""
        if self.prices is None:
            return None
        parts = (
            (self.train_tokens, self.prices.train),
            (self.prefill_tokens, self.prices.prefill),
            (self.sample_tokens, self.prices.sample),
        )
        return sum(tokens * price for tokens, price in parts) / 1_000_000

    def metrics(self) -> dict[str, float]:
        """What a step logs: its cost so far, where it is known."""
        cost = self.cost_usd
        return {} if cost is None else {"cost/usd": cost}

    def write(self, path: Path) -> None:
        """Leave the counts in a file, together with those of earlier attempts at the same run."""
        try:
            before: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = {}
        found = self.to_dict()
        known = cast("dict[str, Any]", before) if isinstance(before, dict) else {}
        for name, value in found.items():
            if isinstance(earlier := known.get(name), int | float) and value is not None:
                found[name] = value + earlier
        write_json(path, found)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form that is left in the folder of the run."""
        names = ("train_tokens", "prefill_tokens", "sample_tokens", "requests")
        return {name: getattr(self, name) for name in names} | {"cost_usd": self.cost_usd}
