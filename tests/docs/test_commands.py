"""Every command in the documentation runs: each page is played from top to bottom in a copy of the examples.

Only what sets up a machine is left out (`make`, `pip`); make targets are looked up by `test_pages.py`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..warm import start_evsys
from .markdown import ROOT, Fence, fences, looks_like, pages

pytestmark = [pytest.mark.docs, pytest.mark.slow]

_NOT_RUN = ("make", "pip ", "tensorboard ")
_SHELL = re.compile(r"[&|<>*$]")
_EXIT = re.compile(r"#.*\bexits (\d+)\b")


@dataclass(frozen=True, slots=True)
class Command:
    """One command line of a page, and what the page says will happen."""

    text: str
    exit_code: int = 0
    output: str | None = None
    """What it prints; None where the page does not say."""


def commands(fence: Fence) -> list[Command]:
    """The commands of a block."""
    if fence.language == "bash":
        lines = [(line, None) for line in fence.text.replace("\\\n", "").splitlines() if line.strip()]
    elif fence.language == "console":
        parts = re.split(r"^\$ ", fence.text, flags=re.MULTILINE)[1:]
        lines = [(line, output) for line, _, output in (part.partition("\n") for part in parts)]
    else:
        lines = []
    return [Command(line, _exit_code(line), output) for line, output in lines if not line.startswith(_NOT_RUN)]


def _exit_code(line: str) -> int:
    match = _EXIT.search(line)
    return int(match[1]) if match else 0


def has_something_to_run(page: Path) -> bool:
    return any(commands(fence) or "runnable" in fence.words for fence in fences(page))


PLAYED = [page for page in pages() if has_something_to_run(page)]


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PLAYED])
def test_a_page_can_be_followed_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    for fence in fences(page):
        if fence.file_name is not None:
            (tmp_path / fence.file_name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / fence.file_name).write_text(fence.text, "utf-8")
        if fence.language == "python" and "runnable" in fence.words:
            (tmp_path / "example.py").write_text(fence.text, "utf-8")
            done = run([sys.executable, "example.py"], tmp_path)
            assert done.returncode == 0, f"{fence.where}\n{done.stdout}"
        for command in commands(fence):
            play(command, fence, tmp_path)


def play(command: Command, fence: Fence, folder: Path) -> None:
    done = run(["bash", "-c", command.text], folder) if _SHELL.search(command.text) else run_words(command, folder)
    shown = f"{fence.where}: {command.text}\n{done.stdout}"
    assert done.returncode == command.exit_code, shown
    assert command.output is None or looks_like(command.output, done.stdout), shown


def run_words(command: Command, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that needs no shell."""
    program, *arguments = shlex.split(command.text, comments=True)
    if program != "evsys":
        return run([program, *arguments], folder)
    with tempfile.TemporaryFile() as file:
        started = start_evsys(
            folder, *arguments, environment=_environment(folder), out=file.fileno(), err=file.fileno()
        )
        code = started.wait()
        file.seek(0)
        return subprocess.CompletedProcess(arguments, code, file.read().decode())


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _environment(folder: Path) -> dict[str, str]:
    programs = folder / ".programs"
    if not programs.exists():
        programs.mkdir()
        code = "import sys; from evsys_sdk.cli.main import main; sys.exit(main())"
        (programs / "evsys").write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{code}' \"$@\"\n", "utf-8")
        (programs / "evsys").chmod(0o755)
        (programs / "python").write_text(f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n", "utf-8")
        (programs / "python").chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"}
