"""`make words` finds the phrases of the writing guide, with their lines."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_phrases_are_found_with_their_lines(tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "scripts" / "count_words.py"
    spec = importlib.util.spec_from_file_location("count_words", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = tmp_path / "page.md"
    page.write_text("A worker that does not exit.\nThe run goes on for ever.\n", "utf-8")
    assert [(line, phrase) for line, phrase, _ in module.find_phrases(page)] == [(2, "goes on"), (2, "for ever")]
    assert module.list_files(tmp_path) == [page]
    assert module.count_page_words()["README.md"] > 100
