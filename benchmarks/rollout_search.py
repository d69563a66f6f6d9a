"""How long a text search among the rollouts of one experiment takes, on a disk and on a server. Aim: below 1 s.

    python benchmarks/rollout_search.py --rollouts 50000

Needs what constraints/dashboard.in names. Processor seconds, which say the same on a busy machine.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import machine

sys.path.insert(0, str(Path(__file__).parents[1]))
WORDS = "the quick brown fox reads a long answer about routing tickets to billing, legal or nobody at all "


def rows(count: int) -> list[dict[str, Any]]:
    text = WORDS * 10
    return [
        {
            "task_id": f"t{at % 5000:05}",
            "sample": at // 5000,
            "reward": at % 11 / 10,
            "text": f"{text} needle{at % 997}",
        }
        for at in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=50_000)
    count = parser.parse_args().rollouts
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        search_disk(Path(folder), count)
        search_server(Path(folder), count)


def search_disk(folder: Path, count: int) -> None:
    from evsys_sdk.dashboard.local.records import LocalRecords
    from tests.history.recorded import write_experiment

    made = write_experiment(folder / "outputs", "one", seeds=(42,), runs={"only": 0.5})
    arm = (
        next(path.parent for path in made.glob("*/config.json")) if list(made.glob("*/config.json")) else made / "only"
    )
    place = arm / "logs" / "training"
    place.mkdir(parents=True)
    with (place / "rollouts.jsonl").open("w", encoding="utf-8") as out:
        out.writelines(json.dumps({"step": 1, **row}) + "\n" for row in rows(count))
    records = LocalRecords([folder / "outputs"], folder)
    [one] = records.list_experiments(_all()).items
    ask("disk", lambda query: records.rollouts(one.id, query))


def search_server(folder: Path, count: int) -> None:
    from tests.dashboard.serving import ServerThread

    server = ServerThread(str(folder / "d.sqlite3"))
    project = server.new_project()
    about = {"kind": "run", "id": "r", "experiment": "one", "set": {"name": "r", "status": "completed"}}
    project.send({"kind": "experiment", "id": "one", "set": {"status": "completed"}}, about)
    made = rows(count)
    for begin in range(0, count, 1000):
        sent = {"kind": "rollouts", "run": "r", "split": "train", "name": "", "step": begin // 1000}
        project.send({**sent, "rows": made[begin : begin + 1000]})
    ask("server", lambda query: project.http.read("/experiments/one/rollouts", q=query.search, limit=query.limit))
    project.close()
    server.stop()


def ask(where: str, read: Any) -> None:
    from evsys_sdk.dashboard.views.source import RolloutQuery

    for what, words in (("first page", ""), ("search", "needle77"), ("search, no match", "nothing has this")):
        began, wall = time.process_time(), time.perf_counter()
        found = read(RolloutQuery(search=words, limit=100))
        total = found["total"] if isinstance(found, dict) else found.total
        took = time.process_time() - began
        print(
            f"{where:<8} {what:<18} {took:6.2f} s processor {time.perf_counter() - wall:6.2f} s wall   {total:,} found"
        )


def _all() -> Any:
    from evsys_sdk.dashboard.views.source import ExperimentQuery

    return ExperimentQuery()


if __name__ == "__main__":
    main()
