"""How long a dashboard server takes to list 10,000 reported experiments, in this checkout and in an earlier one.

    git worktree add ../before REVISION
    python benchmarks/server_lists.py --against ../before --experiments 10000

Each side is a process of its own with a database of its own; they take turns, and the least of all repeats is the cost.
Needs what constraints/dashboard.in names.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import machine

HERE = Path(__file__).parents[1]
QUESTIONS = {
    "overview": ("/overview", {}),
    "list, newest 100": ("/experiments", {"limit": 100}),
    "list, best score 100": ("/experiments", {"limit": 100, "sort": "score"}),
    "list, filtered": ("/experiments", {"limit": 100, "verdict": "supported", "tag": "t3"}),
    "list, searched": ("/experiments", {"limit": 100, "q": "claim 77"}),
    "list, from 5,000 on": ("/experiments", {"limit": 100, "offset": 5000}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.experiments)
    sides = {"before": options.against.resolve(), "after": HERE} if options.against else {"after": HERE}
    started = {name: start(checkout, options.experiments) for name, checkout in sides.items()}
    costs: dict[str, dict[str, float]] = {name: {} for name in sides}
    for _ in range(options.repeats):
        for name, process in started.items():
            for what, took in ask(process).items():
                first = f"{what}, the first time"
                costs[name].setdefault(first, took)
                costs[name][what] = min(costs[name].get(what, took), took)
    for process in started.values():
        process.stdin.close()
        process.wait()
    print(machine())
    print(f"{options.experiments:,} experiments; least of {options.repeats}; load {os.getloadavg()[0]:.1f}")
    print(f"{'':34} {'  '.join(f'{name:>10}' for name in sides)}   ms")
    for what in costs["after"]:
        print(f"{what:34} {'  '.join(f'{costs[name][what] * 1000:10.1f}' for name in sides)}")


def start(checkout: Path, experiments: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--serve", "--experiments", str(experiments)]
    path = os.pathsep.join([str(checkout / "src"), str(checkout)])
    environment = {**os.environ, "PYTHONPATH": path}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=checkout, env=environment, text=True, **pipes)
    process.stdout.readline()  # it is filled
    return process


def ask(process: subprocess.Popen[str]) -> dict[str, float]:
    process.stdin.write("ask\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def serve(experiments: int) -> None:
    from tests.dashboard.serving import ServerThread

    verdicts = ("supported", "refuted", "inconclusive", "")
    with tempfile.TemporaryDirectory() as folder:
        server = ServerThread(str(Path(folder) / "d.sqlite3"))
        project = server.new_project()
        for begin in range(0, experiments, 500):
            project.send(*(one for at in range(begin, min(begin + 500, experiments)) for one in report(at, verdicts)))
        print("ready", flush=True)
        for _ in sys.stdin:
            took: dict[str, float] = {}
            for what, (path, query) in QUESTIONS.items():
                began = time.perf_counter()
                project.http.read(path, **query)
                took[what] = time.perf_counter() - began
            print(json.dumps(took), flush=True)
        project.close()
        server.stop()


def report(at: int, verdicts: tuple[str, ...]) -> list[dict[str, object]]:
    fields = {"name": f"e{at}", "hypothesis": f"claim {at} holds", "status": "completed", "tags": [f"t{at % 7}"]}
    fields |= {"verdict": verdicts[at % 4], "started": float(at), "best_score": at % 100 / 100, "models": ["M/one"]}
    run = {"name": "r", "run": "r", "status": "completed", "metrics": {"test/b/pass@1": at % 100 / 100}}
    return [
        {"kind": "experiment", "id": f"e{at}", "set": fields},
        {"kind": "run", "id": f"r{at}", "experiment": f"e{at}", "set": run},
    ]


if __name__ == "__main__":
    main()
