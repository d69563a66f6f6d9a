"""What an audit of a large experiment costs, and what an event costs while one is written. Aims: 10 s and 1 ms.

python benchmarks/audit.py --arms 1000
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from measure import machine

from evsys_sdk.config import Metadata
from evsys_sdk.experiment.audit.audit import audit_experiment
from evsys_sdk.experiment.hypothesis import hypothesis_sha256, normalise_hypothesis
from evsys_sdk.record.events import Journal, Kind
from evsys_sdk.record.evidence import seal_run
from evsys_sdk.record.layout import ExperimentFiles, RunFiles
from evsys_sdk.record.run_files.scores import hash_line

AIM_S, AIM_MS = 10.0, 1.0
TASKS, STEPS = 50, 100
CLAIM = {"hypothesis": {"claim": "more steps help", "metric": "test/tools/pass@1", "baseline": "run0"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, default=1000)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outputs/large"
        appended = write_experiment(path, options.arms)
        began, used = time.perf_counter(), time.process_time()
        report = audit_experiment(path)
        took, used = time.perf_counter() - began, time.process_time() - used
    flagged = [check.name for check in report.flags if check.name != "conclusion"]
    assert not flagged, [check.evidence[0] for check in report.flags]
    lines = TASKS * options.arms
    what = f"{options.arms:,} arms of {STEPS} steps, {lines:,} answers"
    print(f"{what}: {took:.1f} s, {used:.1f} s of CPU (aim: {AIM_S:g} s)")
    late = sorted(appended)[int(len(appended) * 0.99)]
    print(f"an event: median {statistics.median(appended):.3f} ms, 99 % below {late:.3f} ms (aim: {AIM_MS:g} ms)")


def write_experiment(path: Path, arms: int) -> list[float]:
    """A record as `evsys run` leaves it, without training; milliseconds of each event."""
    files, metadata = ExperimentFiles(path), Metadata.model_validate(CLAIM)
    names = [f"run{number // 4}__seed{number % 4}" for number in range(arms)]
    write_json(
        files.config, {"name": "large", "metadata": CLAIM, "runs": [{"name": f"run{at}"} for at in range(arms // 4)]}
    )
    times: list[float] = []
    with Journal.of(path) as journal:

        def append(kind: Kind, **payload: object) -> None:
            began = time.perf_counter()
            journal.append(kind, **payload)
            times.append((time.perf_counter() - began) * 1000)

        announced = [{"arm": name, "run": name.partition("__")[0], "seed": int(name[-1])} for name in names]
        claim = {"hypothesis": normalise_hypothesis(metadata), "hypothesis_sha256": hypothesis_sha256(metadata)}
        append(Kind.STARTED, experiment_id="large-1", name="large", arms=announced, **claim)
        for name in names:
            append(Kind.ARM_STARTED, arm=name)
            line = write_arm(path / name)
            append(Kind.SCORED, arm=name, line=hash_line(line))
            metrics = {"test/tools/pass@1": 0.5}
            write_json(RunFiles(path / name).result, {"status": "completed", "metrics": metrics})
            append(Kind.ARM_ENDED, arm=name, status="completed", metrics=metrics, sealed=seal_run(path / name))
        append(Kind.ENDED, status="completed")
    return times


def write_arm(folder: Path) -> dict[str, object]:
    """The files of an arm; returns its scoring."""
    files, tasks = RunFiles(folder), [f"task{number}" for number in range(TASKS)]
    rewards = [float(number % 2) for number in range(TASKS)]
    write_json(files.config, {"name": folder.name})
    judged = {"test/tools": {"verifiers": {"contains": "0"}}}
    write_json(files.identity, {"weights": {"model": "tiny"}, "benchmarks": judged})
    answers = files.predictions("test-tools", STEPS)
    given = [
        {"task_id": task, "sample": 0, "reward": reward, "text": f"{folder.name} {task}"}
        for task, reward in zip(tasks, rewards, strict=True)
    ]
    write_lines(answers, given)
    luck = random.random()  # seeds that made no difference are flagged, so that these make one
    write_lines(files.logs.metrics, [{"step": step, "loss": luck + 1 / step} for step in range(1, STEPS + 1)])
    score = {"value": 0.5, "per_task": rewards}
    line = {"split": "test", "name": "tools", "step": STEPS, "tasks": tasks, "samples": [[one] for one in rewards]}
    line |= {"metrics": {"pass@1": score}}
    write_lines(files.scores, [line])
    return line


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_lines(path: Path, lines: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
