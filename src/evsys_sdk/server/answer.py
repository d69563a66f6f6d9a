"""What a handler gives back, and how a request is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

JSON = "application/json"
PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, ready to be sent."""

    body: bytes
    content_type: str = JSON
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
        return cls(json.dumps(value, separators=(",", ":")).encode(), JSON, status, headers or {})

    @classmethod
    def failed(cls, message: str, category: str) -> Answer:
        """The result of an operation that failed; the request for it succeeded, hence the status 200."""
        return cls.json({"error": message, "category": category})


class Refusal(Exception):
    """A request that is not served; the client is told why."""

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after_s = status, message, retry_after_s

    def answer(self) -> Answer:
        headers = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        category = "user" if self.status < 500 else "server"
        return Answer.json({"error": self.message, "category": category}, self.status, headers)
