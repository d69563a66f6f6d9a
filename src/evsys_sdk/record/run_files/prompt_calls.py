"""The calls of a prompt search and their results, one line per call.

A search that continues after a kill reads them instead of calling again. It is deterministic given its seed and the
answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...files import write_json
from ..jsonl_file import JsonlFile, read_records
from ..layout import RunFiles


class PromptCalls:
    """The calls of one search, by key."""

    def __init__(self, run_dir: Path) -> None:
        files = RunFiles(run_dir)
        self._outcome = files.prompts
        self._known = {str(call["key"]): call for call in read_records(files.prompt_calls)}
        self._file = JsonlFile(files.prompt_calls)

    def find(self, key: str) -> dict[str, Any] | None:
        """The recorded result of a call; None if it was not made."""
        return self._known.get(key)

    def add(self, key: str, **result: Any) -> dict[str, Any]:
        """Record a call and return it."""
        self._known[key] = {"key": key, **result}
        self._file.append(self._known[key])
        return self._known[key]

    def conclude(self, outcome: dict[str, Any]) -> Path:
        """Write the candidates and the best of them."""
        write_json(self._outcome, outcome)
        return self._outcome

    def close(self) -> None:
        self._file.close()
