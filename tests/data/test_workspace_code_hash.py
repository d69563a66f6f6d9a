"""The hash of a transform's code changes with everything its rows could depend on, and with nothing else."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.data.code_hash import code_hash

MODULE = '''
import re
from .helpers import clean
from . import words

LIMIT = 3
UNUSED = 1


def shorten(text):
    return clean(text)[:LIMIT]


class Base:
    strict = True


class Shorten(Base):
    """Shortens."""

    def __call__(self, rows):
        from .late import finish

        return [finish(shorten(row["text"]) + words.END) for row in rows]


class Other:
    pass
'''
HELPERS = """
PATTERN = "a+"


def clean(text):
    return text.replace(PATTERN, "")


def unrelated():
    return 1
"""
WORDS = 'END = "."\n'
LATE = "def finish(text):\n    return text.strip()\n"


@pytest.fixture
def hash_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes a package with changed sources, imports it freshly, and hashes its transform."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    numbers = itertools.count()

    def hashed(change: tuple[str, str] = ("", ""), target: str = "Shorten") -> str:
        folder = tmp_path / "project_code"
        folder.mkdir(exist_ok=True)
        sources = {"__init__": "", "transforms": MODULE, "helpers": HELPERS, "words": WORDS, "late": LATE}
        assert any(change[0] in source for source in sources.values())
        for name, source in sources.items():
            changed = source.replace(*change) if change[0] else source
            (folder / f"{name}.py").write_text(changed + f"\n# {next(numbers)}\n", encoding="utf-8")
        for name in [name for name in sys.modules if name.partition(".")[0] == "project_code"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        module: Any = importlib.import_module("project_code.transforms")
        return code_hash(getattr(module, target))

    yield hashed
    for name in [name for name in sys.modules if name.partition(".")[0] == "project_code"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "change",
    [
        ('row["text"]', 'row["body"]'),
        ("LIMIT = 3", "LIMIT = 4"),
        ("clean(text)[:LIMIT]", "clean(text)[LIMIT:]"),
        ("strict = True", "strict = False"),
        ('replace(PATTERN, "")', 'replace(PATTERN, " ")'),
        ('PATTERN = "a+"', 'PATTERN = "b+"'),
        ('END = "."', 'END = "?"'),
        ("text.strip()", "text.lstrip()"),
    ],
    ids=["method", "constant", "function", "base class", "imported function", "its constant", "module", "late import"],
)
def test_the_hash_changes_with_the_code_and_what_it_uses(hash_of: Callable[..., str], change: tuple[str, str]) -> None:
    assert hash_of(change) != hash_of()


@pytest.mark.parametrize(
    "change",
    [("UNUSED = 1", "UNUSED = 2"), ("class Other:", "class Another:"), ("return 1", "return 2")],
    ids=["unused constant", "other class", "unused helper"],
)
def test_the_hash_does_not_change_with_unrelated_code(hash_of: Callable[..., str], change: tuple[str, str]) -> None:
    assert hash_of(change) == hash_of()


def test_the_hash_does_not_depend_on_what_is_imported_already(hash_of: Callable[..., str]) -> None:
    before = hash_of()
    transforms = sys.modules["project_code.transforms"]
    assert "project_code.late" not in sys.modules
    transforms.Shorten()([{"text": "abc"}])
    assert "project_code.late" in sys.modules
    assert code_hash(transforms.Shorten) == before


def test_functions_have_a_hash_too(hash_of: Callable[..., str]) -> None:
    assert hash_of(("LIMIT = 3", "LIMIT = 4"), "shorten") != hash_of(target="shorten")
    assert hash_of(target="shorten") == hash_of(target="shorten")


def test_code_without_source_is_hashed_by_what_it_does() -> None:
    def made(number: int) -> type:
        namespace: dict[str, Any] = {"__name__": "nowhere"}
        exec(f"class T:\n    def __call__(self, rows):\n        return rows[:{number}]", namespace)
        return namespace["T"]

    assert code_hash(made(1)) == code_hash(made(1))
    assert code_hash(made(1)) != code_hash(made(2))


def test_every_built_in_transform_has_its_own_hash() -> None:
    from evsys_sdk.registry import get_transform, list_transforms

    names = list_transforms()
    assert len({code_hash(get_transform(name)) for name in names}) == len(names) > 0


@pytest.mark.parametrize("mark", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_a_helper_behind_a_mark_that_ends_no_line_of_code_still_counts(hash_of: Callable[..., str], mark: str) -> None:
    old = 'def clean(text):\n    return text.replace(PATTERN, "")'
    marked = f"# {mark * 3}\n{old}"
    assert hash_of((old, marked)) != hash_of((old, marked.replace('""', '"x"')))
