"""What a search for a prompt asked and what came of it: one line a call, so that a search that was killed asks nothing
twice. A search is a function of its seed and of the answers; with the same answers it takes the same way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...files import write_json
from ..jsonl_file import JsonlFile, read_records
from ..layout import RunFiles


class PromptCalls:
    """The calls of one search, by what was asked."""

    def __init__(self, run_dir: Path) -> None:
        files = RunFiles(run_dir)
        self._outcome = files.prompts
        self._known = {str(one["key"]): one for one in read_records(files.prompt_calls)}
        self._file = JsonlFile(files.prompt_calls)

    def find(self, key: str) -> dict[str, Any] | None:
        """What came of a call that was made before."""
        return self._known.get(key)

    def add(self, key: str, **found: Any) -> dict[str, Any]:
        """Keep a call; it is on disk when this returns."""
        self._known[key] = {"key": key, **found}
        self._file.append(self._known[key])
        return self._known[key]

    def conclude(self, outcome: dict[str, Any]) -> Path:
        """Write down the candidates and the best of them."""
        write_json(self._outcome, outcome)
        return self._outcome

    def close(self) -> None:
        self._file.close()
