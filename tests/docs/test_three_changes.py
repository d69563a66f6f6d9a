"""The patches on the page about changing the SDK apply to this version, touch few files, and do what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .markdown import ROOT, fences

pytestmark = [pytest.mark.docs, pytest.mark.slow]

PATCHES = [fence.text for fence in fences(ROOT / "docs" / "extending" / "three-changes.md") if fence.language == "diff"]
PINNED = """
from pathlib import Path
from evsys_sdk.dashboard.local.records import LocalRecords
from evsys_sdk.history.detail import read_detail
from evsys_sdk.history.notes import pin
from evsys_sdk.history.views.show import show_page

folder = next(Path("outputs").iterdir())
pin(folder, "the best start so far")
assert "pinned: the best start so far" in show_page(read_detail(folder))
records, name = LocalRecords([Path("outputs")], Path()), read_detail(folder).view.id
kinds = [event.kind for event in records.events(name, "", 100).items]
assert kinds[-1] == "pinned", kinds
"""


@pytest.fixture
def patched(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the package with a patch applied."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "page"))
    patch = tmp_path / "change.diff"
    patch.write_text(request.param, "utf-8")
    done = subprocess.run(["git", "apply", patch.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the page is out of date:\n{done.stderr}"
    return tmp_path


def run(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_three_and_none_touches_more_than_four_files() -> None:
    assert [len(re.findall("^diff --git", patch, re.MULTILINE)) for patch in PATCHES] == [3, 4, 3]


@pytest.mark.parametrize("patched", [PATCHES[0], PATCHES[2]], indirect=True, ids=["launcher", "recipe"])
def test_a_new_built_in_passes_its_own_test(patched: Path) -> None:
    run(
        patched,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        ".",
        "tests",
    )


@pytest.mark.parametrize("patched", [PATCHES[1]], indirect=True, ids=["event"])
def test_a_new_event_is_shown_by_history_and_dashboard(patched: Path) -> None:
    config = patched / "config.yaml"
    rows = "[{ messages: [{ role: user, content: a }, { role: assistant, content: b }] }]"
    config.write_text(
        f"""
name: e
output_dir: outputs
run:
  name: sft
  data: {{ source_kind: in_memory, rows: {rows} }}
  model: {{ name: tiny }}
  algorithm: {{ kind: sft, params: {{ max_steps: 1 }} }}
  backend: {{ kind: mock }}
""",
        "utf-8",
    )
    run(patched, "-m", "evsys_sdk", "run", "config.yaml", "--quiet")
    run(patched, "-c", PINNED)
