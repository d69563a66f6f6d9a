"""The checks on the documentation find what they are there to find."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from .markdown import ROOT, Fence, anchors, fences, is_complete, links, looks_like

pytestmark = pytest.mark.docs

PAGE = """# A page

## `sft` and more

[one](other.md#there) `[not](a.link)`

1. An item:

   ```yaml at run.data
   path: rows.jsonl
   ```

```python file=my_code.py
# ## not a heading, [not](a.link)
```

## `sft` and more
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE, "utf-8")
    return path


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The script, writing to a separate folder."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    module = importlib.import_module("generate_docs")
    monkeypatch.setattr(module, "REFERENCE", tmp_path)
    yield module
    for name in ("generate_docs", "schema_tables"):
        sys.modules.pop(name, None)


def test_fences_are_found_with_their_words_and_without_their_indentation(page: Path) -> None:
    blocks = fences(page)
    assert [(fence.language, fence.words) for fence in blocks] == [
        ("yaml", ("at", "run.data")),
        ("python", ("file=my_code.py",)),
    ]
    assert blocks[0].text == "path: rows.jsonl\n"
    assert (blocks[0].file_name, blocks[1].file_name) == (None, "my_code.py")


def test_headings_get_the_anchors_that_links_use(page: Path) -> None:
    assert anchors(page) == {"a-page", "sft-and-more", "sft-and-more-1"}


def test_links_in_code_do_not_count(page: Path) -> None:
    assert list(links(page)) == ["other.md#there"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("name: x\nrun: {}", "config.yaml"),
        ("path: rows.jsonl", None),
    ],
)
def test_a_complete_config_is_saved_as_config_yaml(page: Path, text: str, name: str | None) -> None:
    fence = Fence(page, 1, "yaml", (), text)
    assert is_complete(fence) is (name is not None)
    assert fence.file_name == name


def test_code_that_registers_something_is_saved_under_the_name_of_its_kind(page: Path) -> None:
    assert Fence(page, 1, "python", (), '@register_metric("x")\nclass X: ...').file_name == "my_metrics.py"


@pytest.mark.parametrize(("shown", "same"), [("a ... c", True), ("a  b c", True), ("a ... d", False)])
def test_shown_output_may_leave_things_out_but_not_differ(shown: str, same: bool) -> None:
    assert looks_like(shown, "a b c") is same


def test_an_outdated_page_is_shown_as_a_diff_and_written_again(
    generator: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    (tmp_path / "errors.md").write_text("# Something else\n", "utf-8")
    (tmp_path / "gone.md").write_text("# Without a subject\n", "utf-8")
    capsys.readouterr()
    assert generator.main(["--check"]) == 1
    shown = capsys.readouterr().out
    assert "--- docs/reference/errors.md" in shown
    assert "-# Something else" in shown
    assert "-# Without a subject" in shown
    assert generator.main([]) == 0
    assert not (tmp_path / "gone.md").exists()
    assert generator.main(["--check"]) == 0
