"""The tests of a folder from the agent's side: whatever it leaves behind, the reward is what the tests say."""

# ruff: noqa: E501  # commands are easier to read on their own lines

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask

pytest.importorskip("harbor", reason="needs the extra harbor; run make test-harbor")
pytestmark = pytest.mark.harbor
type Make = Callable[..., HarborTask]

FORGERIES = {
    "the reward file": "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "the text file": "echo 1 > /logs/verifier/reward.txt",
    "a process that goes on writing": "(while :; do echo '{\"reward\": 1}' > /logs/verifier/reward.json; done) >/dev/null 2>&1 &",
    "a process of another session that goes on writing": "setsid -f sh -c 'trap \"\" HUP TERM; while :; do echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1",
    "a process that kills everything else": "setsid -f sh -c 'while :; do kill -9 -1; echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1",
    "many processes that write": "for i in $(seq 40); do setsid -f sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1; done",
    "a process that waits for the tests": "setsid -f sh -c 'until [ -e /tests/test.sh ]; do :; done; echo \"echo 1 > /logs/verifier/reward.txt\" > /tests/test.sh' >/dev/null 2>&1",
    "an open descriptor on the reward": "exec 9> /logs/verifier/reward.txt; setsid -f sh -c 'sleep 0.5; while :; do echo 1 >&9; done' >/dev/null 2>&1",
    "a folder elsewhere": "mkdir /app/x && echo '{\"reward\": 1}' > /app/x/reward.json && rm -rf /logs/verifier && ln -s /app/x /logs/verifier",
    "a link to itself": "rm -rf /logs/verifier; ln -s verifier /logs/verifier",
    "a file instead of a folder": "rm -rf /logs/verifier; echo 1 > /logs/verifier",
    "a pipe instead of a folder": "rm -rf /logs/verifier; mkfifo /logs/verifier",
    "a pipe instead of the reward": "mkfifo /logs/verifier/reward.txt /logs/verifier/reward.json",
    "a reward that leads elsewhere": "echo 1 > /app/one; ln -s /app/one /logs/verifier/reward.txt; ln -s /app/one /logs/verifier/reward.json",
    "a reward that leads to a device": "ln -s /dev/zero /logs/verifier/reward.json",
    "a reward that leads to a process": "ln -s /proc/self/environ /logs/verifier/reward.txt",
    "a test of its own": "printf 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 555 /tests/test.sh",
    "tests that lead elsewhere": "mkdir /app/t; printf 'echo 1 > /logs/verifier/reward.txt' > /app/t/test.sh; ln -s /app/t/test.sh /tests/test.sh",
    "tests that cannot be replaced": "printf 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 555 /tests",
    "a folder with the name of the test": "mkdir -p /tests/test.sh/x; chmod 000 /tests/test.sh",
    "a file in the way": "mkdir -p /logs/verifier/reward.txt/x; chmod 000 /logs/verifier/reward.txt",
    "logs that cannot be written": "echo 1 > /logs/verifier/reward.txt; chmod 555 /logs/verifier /logs",
    "start-up files of the shell": "echo 'echo 1 > /logs/verifier/reward.txt; exit' | tee ~/.bashrc ~/.profile ~/.bash_profile ~/.bash_login ~/.kshrc ~/.zshrc",
    "start-up files of Python": 'for v in 3.9 3.10 3.11 3.12 3.13; do d=~/.local/lib/python$v/site-packages; mkdir -p $d; echo \'open("/logs/verifier/reward.txt","w").write("1"); import os; os._exit(0)\' | tee $d/usercustomize.py $d/sitecustomize.py > $d/x.pth; done',
    "programs in the way": "mkdir -p ~/bin ~/.local/bin; for n in cmp echo python3 sh bash test; do printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt; exit 0' > ~/bin/$n; cp ~/bin/$n ~/.local/bin; cp ~/bin/$n /app; done; chmod +x ~/bin/* ~/.local/bin/* /app/cmp; export PATH=~/bin:$PATH",
    "modules in the way": "echo 'import os; os._exit(0)' | tee /app/filecmp.py /app/sitecustomize.py /app/os.py /app/pathlib.py >/dev/null",
    "modules beside the tests": "echo 'def cmp(*a, **k): return True' | tee /tests/filecmp.py >/dev/null",
    "variables": "export BASH_ENV=/app/env LD_PRELOAD=/app/x.so PYTHONPATH=/app; echo 'echo 1 > /logs/verifier/reward.txt; exit' > /app/env; echo 'BASH_ENV=/app/env' > /etc/environment",
    "functions of the shell": "cmp() { true; }; export -f cmp; alias cmp=true",
    "a huge reward": "truncate -s 400M /logs/verifier/reward.txt",
    "a full disk": "head -c 2G /dev/zero > /app/full; echo 1 > /logs/verifier/reward.txt",
    "many files": "cd /logs/verifier; for i in $(seq 2000); do : > $i; done; echo 1 > reward.txt",
    "a deep folder": "cd /logs/verifier; for i in $(seq 300); do mkdir d; cd d; done; echo 1 > reward.txt",
    "a name with a line break": 'touch "/logs/verifier/$(printf \'a\\nreward.txt\')"; echo 1 > "/logs/verifier/reward.txt "',
    "the mount of the reward": "mount --bind /app /logs/verifier; unshare -rm mount --bind /app /logs/verifier; echo 1 > /app/reward.txt",
    "a job for later": "echo 'echo 1 > /logs/verifier/reward.txt' | at now; (crontab -l; echo '* * * * * echo 1 > /logs/verifier/reward.txt') | crontab -; nohup sh -c 'sleep 0.3; echo 1 > /logs/verifier/reward.txt' >/dev/null 2>&1 &",
    "a terminal session": "tmux new-session -d 'while :; do echo 1 > /logs/verifier/reward.txt; done'",
}

IN_PYTHON = """#!/bin/bash
cd /app
cat > /tests/check.py <<'PY'
import filecmp, os, pathlib
same = os.path.exists("/app/output.txt") and filecmp.cmp("/app/input.txt", "/app/output.txt", shallow=False)
pathlib.Path("/logs/verifier/reward.txt").write_text(str(int(same)))
PY
python3 /tests/check.py
"""


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forging_a_reward_gains_nothing(make_folder: Make, in_sandbox: Any, say: Any, forgery: str) -> None:
    rollout = in_sandbox(make_folder(), say.scripted(say.shell(FORGERIES[forgery]), "done"))
    assert rollout.reward in (0.0, None), rollout
    assert rollout.turns


@pytest.mark.parametrize(
    "forgery", [name for name in FORGERIES if "ython" in name or "modules" in name or "programs" in name]
)
def test_forging_a_reward_gains_nothing_with_tests_in_python(
    make_folder: Make, in_sandbox: Any, say: Any, forgery: str
) -> None:
    rollout = in_sandbox(make_folder(test=IN_PYTHON), say.scripted(say.shell(FORGERIES[forgery]), "done"))
    assert rollout.reward == 0.0, rollout


@pytest.mark.parametrize(
    "forgery",
    [
        "a process that kills everything else",
        "a process that goes on writing",
        "logs that cannot be written",
        "tests that cannot be replaced",
        "start-up files of Python",
        "a file in the way",
        "many files",
    ],
)
@pytest.mark.parametrize("test", ["shell", "python"])
def test_what_was_left_behind_takes_no_reward_from_work_that_was_done(
    make_folder: Make, in_sandbox: Any, say: Any, forgery: str, test: str
) -> None:
    task = make_folder(**({"test": IN_PYTHON} if test == "python" else {}))
    work = f"cp input.txt output.txt; {FORGERIES[forgery]}"
    assert in_sandbox(task, say.scripted(say.shell(work), "done")).reward == 1.0
