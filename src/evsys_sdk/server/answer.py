"""What a handler gives back, and how a request is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

JSON = "application/json"
PROTOBUF = "application/x-protobuf"


def answer_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON; Starlette's own refuses NaN, which the metrics of a diverged model hold."""
    return Response(json.dumps(value, separators=(",", ":")).encode(), status, headers, JSON)


def answer_failure(message: str, category: str) -> Response:
    """The result of an operation that failed; the request for it succeeded, hence the status 200."""
    return answer_json({"error": message, "category": category})


class Refusal(Exception):
    """A request that is not served; the client is told why."""

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after_s = status, message, retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}

    def answer(self) -> Response:
        category = "user" if self.status < 500 else "server"
        return answer_json({"error": self.message, "category": category}, self.status, self.headers)
