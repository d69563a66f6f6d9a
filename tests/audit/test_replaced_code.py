"""What an honest process holds of other libraries is no replaced code of ours."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import evsys_sdk
from evsys_sdk.experiment import runner
from evsys_sdk.experiment.audit.replaced_code import LIBRARIES, find_replaced_code

SOURCE = Path(evsys_sdk.__file__).parent


def imported_libraries(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def test_every_library_that_the_package_imports_is_known() -> None:
    """One that is not would stand in the audit of every honest run that has loaded it."""
    ours = {*sys.stdlib_module_names, "evsys_sdk"}
    imported = {name for file in SOURCE.rglob("*.py") for name in imported_libraries(file)} - ours
    assert imported - {*LIBRARIES} == set()


def test_what_was_assigned_from_elsewhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = find_replaced_code()

    def do_nothing() -> None: ...

    monkeypatch.setattr(runner, "run_arm", do_nothing)
    [found] = [line for line in find_replaced_code() if line not in before]
    assert found.startswith("evsys_sdk.experiment.runner.run_arm by ")
    assert found.endswith(Path(__file__).name)
