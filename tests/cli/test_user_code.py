"""Code of a project runs in a child of the command: it cannot end it with exit code 0, hang it, or print results."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..warm import run_evsys
from .test_user_code_faults import CONFIG as FAULTS_CONFIG
from .test_user_code_faults import write_rows

pytestmark = pytest.mark.e2e

MODULE = """
{at_import}
from evsys_sdk import register_transform, register_verifier
@register_transform("mine")
class Mine:
    def __call__(self, rows):
        {body}
        return list(rows)
@register_verifier("judge")
def judge(model_output, expected, params):
    {body}
    return 1.0
"""
CONFIG = FAULTS_CONFIG.replace("exact_match", "judge").replace("[*chat]", "[{kind: mine}, *chat]")


def evsys(
    folder: Path, *arguments: str, body: str = "pass", at_import: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command on a project whose transform, or module, does something."""
    (folder / "own.py").write_text(MODULE.format(body=body, at_import=at_import), encoding="utf-8")
    (folder / "c.yaml").write_text(CONFIG, encoding="utf-8")
    write_rows(folder)
    return run_evsys(folder, *arguments, "--import", "own.py", environment=environment)


def test_the_reason_is_part_of_the_json(tmp_path: Path) -> None:
    done = evsys(tmp_path, "validate", "c.yaml", "--deep", "--json", body="import os; os._exit(0)")
    assert done.returncode == 1
    assert "ended with exit code 0" in json.loads(done.stdout)["message"]


NOISE = {
    "prints": "print('noise')",
    "writes past Python": "import os; os.write(1, b'noise')",
    "starts a program that prints": "import subprocess; subprocess.run(['echo', 'noise'])",
    # Once: called for every task, it would be two processes to the power of the tasks.
    "forks": "import os; os.path.exists('forked') or (open('forked', 'w').close(), os.fork())",
    "leaves a thread": "import threading, time; threading.Thread(target=time.sleep, args=(100,)).start()",
    "registers an exit handler": "import atexit, time; atexit.register(time.sleep, 100)",
}
RUNS = NOISE.keys() - {"forks"}
"""Two processes cannot share the event loop that verifiers run in; such a run ends at its limit."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "noise"), [*(("validate", noise) for noise in NOISE), *(("run", noise) for noise in sorted(RUNS))]
)
def test_results_are_whole_whatever_user_code_does_next_to_its_work(tmp_path: Path, verb: str, noise: str) -> None:
    done = evsys(tmp_path, verb, "c.yaml", *(["--deep"] if verb == "validate" else []), "--json", body=NOISE[noise])
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)


@pytest.mark.slow
def test_output_of_user_code_is_limited(tmp_path: Path) -> None:
    done = evsys(tmp_path, "validate", "c.yaml", "--deep", at_import="print('x' * 30_000_000)")
    assert done.returncode == 0
    assert len(done.stderr) < 1_100_000
    assert "printed more than 1000000 bytes; the rest is not shown" in done.stderr


@pytest.mark.slow
def test_what_user_code_leaves_running_is_ended(tmp_path: Path) -> None:
    leave = "import subprocess; subprocess.Popen(['sh', '-c', 'sleep 3; touch left'], start_new_session=True)"
    done = evsys(tmp_path, "validate", "c.yaml", "--deep", at_import=leave)
    assert done.returncode == 0
    survivors = subprocess.run(["pgrep", "-f", "sleep 3; touch left"], capture_output=True, check=False).stdout
    assert survivors == b""


def test_commands_without_user_code_start_no_process(tmp_path: Path) -> None:
    trace = "import os, sys\nos.register_at_fork(before=lambda: print('forked'))\n"
    run = "from evsys_sdk.cli.main import main\nsys.argv[1:] = ['list', 'transform']\nsys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", trace + run], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "forked" not in done.stdout


@pytest.mark.slow
def test_user_code_cannot_report_that_the_command_is_done(tmp_path: Path) -> None:
    body = "import os; from evsys_sdk.user_code import report_exit; report_exit(0); os._exit(0)"
    assert evsys(tmp_path, "validate", "c.yaml", "--deep", body=body).returncode == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("after", "code"), [("pass", 0), ("os._exit(0)", 1)])
def test_a_command_whose_parent_was_stopped_ends_rightly_once_it_is_continued(
    tmp_path: Path, after: str, code: int
) -> None:
    """SIGSTOP cannot be refused: docs/isolation.md promises no more than this."""
    assert evsys(tmp_path, "list", "transform").returncode == 0  # writes the files
    body = f"import os, signal; os.kill(os.getppid(), signal.SIGSTOP); {after}"
    (tmp_path / "own.py").write_text(MODULE.format(body=body, at_import=""), encoding="utf-8")
    command = [sys.executable, "-m", "evsys_sdk", "validate", "c.yaml", "--deep", "--import", "own.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        deadline = time.monotonic() + 300
        while parent.poll() is None and time.monotonic() < deadline:
            if Path(f"/proc/{parent.pid}/stat").read_text("ascii").rpartition(") ")[2].startswith("T"):
                parent.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        assert parent.poll() == code
