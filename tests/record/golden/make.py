"""Write the records of this folder anew, with the code of the version that they are to be records of.

    python tests/record/golden/make.py PYTHON_PATH_OF_THAT_VERSION tests/record/golden/v1

Every experiment of `project/` is run there, some are stopped in the middle, and what the command line says about
each is kept in `answers/`. Weights are kept only where a run can still go on, predictions as well.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FINISHED = ("sweep", "rl", "continual", "search", "failed", "again", "plain")
STOPPED = ("killed", "budget")
UNREAD = ("rendered_examples.md", "datasets.json", "hyperparams.json", "artifacts.jsonl", "timing.jsonl")
"""Files that no answer is made of."""


def main(source: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary).resolve() / "project"
        shutil.copytree(folder / "project", project)
        evsys = Evsys(source, project)
        for name in ("sweep", "rl", "continual", "search", "failed", "budget", "plain"):
            evsys.call("run", f"{name}.yaml", "--quiet")
        evsys.kill("killed.yaml", "outputs/killed")
        evsys.kill("again.yaml", "outputs/again")
        evsys.call("run", "again.yaml", "--quiet")
        evsys.call("note", "sweep", "The larger rate is not stable.", "--author", "somebody")
        evsys.call("invalidate", "rl", "--reason", "wrong verifier")
        evsys.call("invalidate", "continual", "--reason", "a mistake")
        evsys.call("invalidate", "continual", "--undo")
        answers = {
            "history": evsys.ask("history", "--sort", "name"),
            **{f"show-{name}": evsys.ask("show", f"outputs/{name}") for name in (*FINISHED, *STOPPED)},
            **{f"status-{name}": evsys.ask("status", f"outputs/{name}") for name in (*FINISHED, *STOPPED)},
            "compare-again-sweep": evsys.ask("compare", "outputs/again", "outputs/sweep"),
        }
        keep(project, folder, answers)


class Evsys:
    """The command line of the version, in the project."""

    def __init__(self, source: str, project: Path) -> None:
        self.project = project
        self.environment = {**os.environ, "PYTHONPATH": str(Path(source).resolve()), "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "evsys_sdk", *arguments]
        return subprocess.Popen(command, cwd=self.project, env=self.environment, text=True, stdout=subprocess.PIPE)

    def call(self, *arguments: str) -> str:
        answer, _ = self.start(*arguments).communicate()
        return answer

    def ask(self, *arguments: str) -> object:
        return json.loads(self.call(*arguments, "--json").replace(f"{self.project}/", ""))

    def kill(self, config: str, experiment: str) -> None:
        """Kill a run once an arm has ended and the next has a checkpoint."""
        process = self.start("run", config, "--quiet")
        folder = self.project / experiment
        while not (list(folder.glob("*/run_result.json")) and len(list(folder.glob("*/checkpoints.jsonl"))) > 1):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()


def keep(project: Path, folder: Path, answers: dict[str, object]) -> None:
    for old in ("record", "answers"):
        shutil.rmtree(folder / old, ignore_errors=True)
    for path in sorted(project.glob("outputs/**/.lock")):
        path.unlink()  # names the machine
    for run in sorted(path.parent for path in project.glob("outputs/*/*/checkpoints.jsonl")):
        last = json.loads((run / "checkpoints.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        goes_on = run.parent.name in STOPPED and not last["final"]
        for saved in sorted((run / "checkpoints").glob("*/*")):
            if not (goes_on and (saved == project / last["state"] or saved.name == "sampler")):
                shutil.rmtree(saved)
    for name in FINISHED:
        for path in sorted((project / "outputs" / name).rglob("*")):
            if path.name in UNREAD or path.name.startswith("benchmarks"):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.copytree(project / "outputs", folder / "record", ignore=shutil.ignore_patterns("*.sqlite3"))
    (folder / "answers").mkdir()
    for name, answer in answers.items():
        text = json.dumps(answer, indent=1, ensure_ascii=False) + "\n"
        (folder / "answers" / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
