"""What the page is made of: a lock file for every platform without addresses, one bundle, the types of the API."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evsys_sdk.dashboard.export import PAGE
from tests.history.recorded import write_experiment

ROOT = Path(__file__).parents[3]
WEB = ROOT / "web"
LARGEST_SCRIPT = 170_000
"""Bytes, compressed."""


@pytest.fixture
def hook() -> ModuleType:
    return load(ROOT / "hatch_build.py")


@pytest.fixture
def built() -> Path:
    if not (PAGE / "index.html").is_file():
        pytest.skip("the page is not built: run make page")
    return PAGE


def test_the_lock_file_names_no_address_and_the_bundler_of_every_platform() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text("utf-8"))
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert [name for name, entry in packages.items() if "resolved" in entry] == []
    assert [name for name, entry in packages.items() if not entry.get("integrity")] == []
    assert sum(name.startswith("node_modules/@rolldown/binding-") for name in packages) == 15


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_types_of_the_page_are_those_of_the_api() -> None:
    types = load(ROOT / "scripts" / "generate_types.py")
    assert types.TYPES.read_text("utf-8") == types.write_types(), "run: make types-web"


def test_a_new_field_of_the_view_is_in_the_command_the_api_and_the_types_without_another_change(tmp_path: Path) -> None:
    """In a copy of the package whose model has one line more."""
    source = tmp_path / "src" / "evsys_sdk"
    shutil.copytree(ROOT / "src" / "evsys_sdk", source, ignore=shutil.ignore_patterns("page", "__pycache__"))
    model = source / "record" / "view" / "model.py"
    before = '    config_sha256: str = ""\n'
    text = model.read_text("utf-8")
    assert text.count(before) == 1
    model.write_text(text.replace(before, f'{before}    planted: str = "a new field"\n'), "utf-8")
    write_experiment(tmp_path / "outputs", "routing")
    done = subprocess.run(
        [sys.executable, "-c", READERS, str(ROOT / "scripts" / "generate_types.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    shown, listed, detailed, types = json.loads(done.stdout.splitlines()[-1])
    assert shown["planted"] == listed["planted"] == detailed["planted"] == "a new field"
    assert "  planted: string;" in types


READERS = """
import importlib.util, json, sys
from pathlib import Path
from click.testing import CliRunner
import evsys_sdk
from evsys_sdk.cli.main import evsys
from evsys_sdk.dashboard.local.records import LocalRecords
from evsys_sdk.dashboard.shapes.experiment import ExperimentDetail, Experiments
from evsys_sdk.dashboard.views.answers import describe_experiment
from evsys_sdk.dashboard.views.source import ExperimentQuery
assert Path(evsys_sdk.__file__).is_relative_to(Path.cwd())
shown = CliRunner().invoke(evsys, ["show", "outputs/routing", "--json"], catch_exceptions=False)
records = LocalRecords([Path("outputs").resolve()], Path.cwd())
listed = json.loads(records.list_experiments(ExperimentQuery()).model_dump_json())["items"][0]
detail = json.loads(describe_experiment(records, listed["id"]).model_dump_json())["experiment"]
spec = importlib.util.spec_from_file_location("types_of_the_page", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps([json.loads(shown.stdout), listed, detail, module.write_types()]))
"""


class _Parts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            self.inline += data.strip()


def test_the_built_page_keeps_to_the_policy_and_to_its_size(built: Path) -> None:
    parts = _Parts()
    parts.feed((built / "index.html").read_text("utf-8"))
    assert parts.inline == ""
    scripts = [attrs for tag, attrs in parts.tags if tag == "script"]
    assert [set(attrs) for attrs in scripts] == [{"defer", "src"}]  # a module could not be opened as a file
    named = [attrs.get("src") or attrs.get("href") for tag, attrs in parts.tags if tag in ("script", "link")]
    assert all(name and name.startswith("./") and (built / name).is_file() for name in named)
    size = sum(len(gzip.compress(path.read_bytes())) for path in built.rglob("*.js"))
    assert size < LARGEST_SCRIPT, f"{size} bytes of script"


def test_pure_functions_of_the_page(hook: ModuleType) -> None:
    if not (WEB / "node_modules").is_dir():
        pytest.skip("what the page is made of is not installed: run make page")
    node, _ = hook.find_node()
    command = [node, "node_modules/vitest/vitest.mjs", "run"]
    done = subprocess.run(command, cwd=WEB, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def make_hook(module: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """The hook as the build tool would make it, and what it warned of."""
    warned: list[str] = []

    class App:
        def display_warning(self, message: str) -> None:
            warned.append(message)

    hook = object.__new__(module.PageBuildHook)
    for name, value in (("root", str(root)), ("app", App())):
        monkeypatch.setattr(module.PageBuildHook, name, value, raising=False)
    monkeypatch.delenv("EVSYS_NO_PAGE", raising=False)
    return hook, warned


@pytest.fixture
def source_tree(tmp_path: Path) -> Path:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "package.json").write_text("{}", "utf-8")
    return tmp_path


def test_node_is_requested_only_when_there_is_a_page_to_build(
    hook: ModuleType, source_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_hook, _ = make_hook(hook, source_tree, monkeypatch)
    assert build_hook.dependencies() == [hook.NODE]
    monkeypatch.setenv("EVSYS_NO_PAGE", "1")
    assert build_hook.dependencies() == []
    monkeypatch.delenv("EVSYS_NO_PAGE")
    (source_tree / hook.PAGE).mkdir(parents=True)
    (source_tree / hook.PAGE / "index.html").write_text("", "utf-8")
    assert build_hook.dependencies() == []


def test_an_editable_install_builds_nothing(
    hook: ModuleType, source_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_hook, warned = make_hook(hook, source_tree, monkeypatch)
    monkeypatch.setattr(hook, "build_page", lambda root: pytest.fail("it was built"))
    build_hook.initialize("editable", {})
    assert warned == []


def test_a_wheel_without_the_registry_is_built_without_the_page_and_reports_it(
    hook: ModuleType, source_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_hook, warned = make_hook(hook, source_tree, monkeypatch)

    def fail(root: Path) -> None:
        (root / hook.PAGE).mkdir(parents=True)
        (root / hook.PAGE / "half.js").write_text("", "utf-8")
        raise subprocess.SubprocessError("npm ci failed: no network")

    monkeypatch.setattr(hook, "build_page", fail)
    build_hook.initialize("standard", {})
    assert warned == ["the dashboard's page was not built, and is left out: npm ci failed: no network"]
    assert not (source_tree / hook.PAGE).exists()
