"""Several processes, and processes that are killed, at the moments that matter."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.data.workspace.workspace import Workspace

from .workspace_project import dataset_file

PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

STOP_AFTER_ONE_ROW = """
from evsys_sdk.data.workspace.local_folder import LocalFolder

class Stuck(LocalFolder):
    def rows(self, entry):
        lines = super().rows(entry)
        yield next(lines)
        stop()
        yield from lines

Workspace(root, source=Stuck(root)).pull_dataset(name="sft")
"""

STOP_BEFORE_THE_MANIFEST = """
from evsys_sdk.data.workspace import row_cache

class Stuck(row_cache.Manifest):
    def __init__(self, **fields):
        stop()

row_cache.Manifest = Stuck
Workspace(root).pull_dataset(name="sft")
"""

PRELUDE = """
import sys, time
from pathlib import Path
from evsys_sdk.data.workspace.workspace import Workspace

root = Path(sys.argv[1])

def stop():
    print("ready", flush=True)
    time.sleep(600)
"""


def kill_in_the_middle(code: str, root: Path) -> None:
    """Run `code` in a process and kill it, beyond any cleaning up, where it calls `stop()`."""
    with subprocess.Popen([sys.executable, "-c", PRELUDE + code, str(root)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert line == b"ready\n"


def files_in(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".evsys" / "datasets").iterdir())


def test_a_process_killed_while_copying_leaves_nothing_that_counts(tmp_path: Path) -> None:
    source = dataset_file(tmp_path)
    kill_in_the_middle(STOP_AFTER_ONE_ROW, tmp_path)
    workspace = Workspace(tmp_path)
    assert any(name.endswith(".tmp") for name in files_in(tmp_path))
    assert workspace.verify("dataset") == []

    assert workspace.pull_dataset(name="sft").path.read_bytes() == source.read_bytes()
    assert not any(name.endswith(".tmp") for name in files_in(tmp_path))


def test_a_process_killed_before_the_manifest_leaves_rows_that_do_not_count(tmp_path: Path) -> None:
    source = dataset_file(tmp_path)
    kill_in_the_middle(STOP_BEFORE_THE_MANIFEST, tmp_path)
    workspace = Workspace(tmp_path)
    (verdict,) = workspace.verify("dataset")
    assert "it has no manifest, so the process that wrote it did not finish" in str(verdict.problem)

    pulled = workspace.pull_dataset(id=verdict.id)

    assert pulled.path.read_bytes() == source.read_bytes()
    assert [verdict.problem for verdict in workspace.verify("dataset")] == [None]


PULL_WHEN_TOLD = """
workspace = Workspace(root)
print("ready", flush=True)
sys.stdin.readline()
pulled = workspace.pull_dataset(name="sft")
print(pulled.id, sum(1 for _ in pulled.rows()))
"""


def test_processes_that_pull_the_same_id_at_once_all_get_it_whole(tmp_path: Path) -> None:
    dataset_file(tmp_path, rows=20_000)
    with ExitStack() as stack:
        command = [sys.executable, "-c", PRELUDE + PULL_WHEN_TOLD, str(tmp_path)]
        processes = [stack.enter_context(subprocess.Popen(command, **PIPES)) for _ in range(4)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        outputs = {process.communicate()[0] for process in processes}

    assert [process.returncode for process in processes] == [0] * 4
    pulled = Workspace(tmp_path).pull_dataset(name="sft")
    assert outputs == {f"{pulled.id} 20000\n".encode()}
    assert [verdict.problem for verdict in Workspace(tmp_path).verify("dataset")] == [None]
    assert not any(name.endswith(".tmp") for name in files_in(tmp_path))


COUNTING = """
import json
from evsys_sdk.config import TransformSpec
from evsys_sdk.registry import register_transform

@register_transform("stamped")
class Stamped:
    def __call__(self, rows):
        if len(sys.argv) > 2:
            print("making", flush=True)
            sys.stdin.readline()
        for row in rows:
            yield {**row, "stamp": time.time_ns()}

workspace = Workspace(root)
made = workspace.materialise(workspace.pull_dataset(name="sft"), [TransformSpec(kind="stamped")])
print(json.dumps([made.id, [row["stamp"] for row in made.rows()]]))
"""


def test_rows_that_no_two_processes_would_make_alike_are_made_by_one_of_them(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    script = tmp_path / "stamp.py"
    script.write_text(PRELUDE + COUNTING, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen([*command, "slowly"], **PIPES) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"making\n"  # from here on it holds the lock
        with subprocess.Popen(command, **PIPES) as second:
            outputs = [process.communicate(b"go on\n")[0] for process in (first, second)]
    reports = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert reports[0] == reports[1]


def test_the_workspace_of_a_killed_process_is_not_locked(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    kill_in_the_middle(STOP_AFTER_ONE_ROW, tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + 'Workspace(root).pull_dataset(name="sft")', str(tmp_path)]
    ) as process:
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("name", ["sft", "sft@v1:train"])
def test_a_hit_takes_no_lock(tmp_path: Path, name: str) -> None:
    dataset_file(tmp_path)
    pulled = Workspace(tmp_path).pull_dataset(name="sft")
    for lock in pulled.path.parent.glob(".*.lock"):
        lock.unlink()
    assert Workspace(tmp_path).pull_dataset(name=name) == pulled
    assert not list(pulled.path.parent.glob(".*.lock"))
