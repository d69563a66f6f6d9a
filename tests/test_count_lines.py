"""`make lines` counts code, and neither blank lines, comments nor docstrings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

MODULE = '''"""A docstring
of two lines."""

# a comment
LIMIT = 3
"""What it limits."""


class Thing:
    """Another."""

    text = """one

    three"""  # and a comment


call(
    1,
    # why
    f"{LIMIT} and"
    " more",
)
'''


@pytest.fixture
def script() -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / "count_lines.py"
    spec = importlib.util.spec_from_file_location("count_lines", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_code_is_counted(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE, "utf-8")
    assert script.count_code_lines(tmp_path / "module.py") == 9


def test_a_class_name_of_two_modules_is_found(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "PACKAGE", tmp_path)
    for name, text in {"a": "class Run: ...\nclass _Own: ...", "b": "class Run: ...\nclass _Own: ..."}.items():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    assert script.repeated_classes(sorted(tmp_path.glob("*.py"))) == {"Run": ["a.py", "b.py"]}
