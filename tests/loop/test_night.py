"""Deadlines of runs and campaigns at 20 random moments, with real processes, half of them killed and started again."""

from __future__ import annotations

import json
import random
import time
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from evsys_sdk.history.campaigns.campaign import Terms, load_campaign, open_campaign

from ..warm import start_evsys
from .test_portfolio import write_project

COMMANDS = {"run": ["run", "config.yaml", "--quiet"], "campaign": ["campaign", "run", "night"]}


def prepare(folder: Path, kind: str) -> None:
    """A campaign, or two runs of two seeds, with far more steps than time."""
    write_project(folder, steps=100_000)
    base = json.loads((folder / "base.yaml").read_text("utf-8"))
    base["run"]["backend"]["params"] = {"latency_ms": 10}  # waits for the deadline instead of computing until then
    if kind == "campaign":
        (folder / "base.yaml").write_text(json.dumps(base), encoding="utf-8")
        open_campaign("night", Terms("?", hours=1, portfolio="portfolio.yaml"))
        return
    run = base.pop("run")
    claim = {"claim": "b beats a", "metric": "pass@1", "baseline": "a"}
    runs = [{**run, "name": name} for name in ("a", "b")]
    config = {**base, "name": "night", "runs": runs, "n_repeats": 2}
    config["metadata"]["hypothesis"] = claim
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_deadline_leaves_scored_weights_and_a_conclusion_in_time(tmp_path: Path, seed: int) -> None:
    draw, kind, is_killed = random.Random(seed), ("run", "campaign")[seed % 2], seed % 4 > 1
    prepare(tmp_path, kind)
    seconds = draw.uniform(6.0, 14.0)
    began = time.time()
    until = began + seconds
    moment = datetime.fromtimestamp(until).astimezone().isoformat()
    with open(tmp_path / "errors", "wb") as errors:
        output = errors.fileno()
        start = partial(start_evsys, tmp_path, *COMMANDS[kind], "--until", moment, out=output, err=output)
        command = start()
        while not (steps := list(tmp_path.glob("outputs/*/*/checkpoints.jsonl"))) and not command.ended:
            time.sleep(0.02)
        started_s = time.time() - began  # how long a process takes to its first step here and now
        assert steps, (tmp_path / "errors").read_text("utf-8")
        last = until
        if is_killed:
            time.sleep(max(draw.uniform(0.2, 1.1) * seconds - started_s, 0.0))
            command.kill()
        code = command.wait()
        is_over = load_campaign("night").closed if kind == "campaign" else code == 3
        if is_killed and not is_over:  # it may have ended before the kill
            last = max(until, time.time() + started_s)
            code = start().wait()
    over_s = time.time() - last
    check_run(tmp_path / "outputs" / "night") if kind == "run" else check_campaign(tmp_path)
    assert code in ((3,) if kind == "run" else (0, 3, -9)), (tmp_path / "errors").read_text("utf-8")
    assert over_s <= max(0.05 * seconds, 5.0)


def check_run(folder: Path) -> None:
    conclusion = json.loads((folder / "conclusion.json").read_text("utf-8"))
    assert conclusion["verdict"] != "invalid"
    assert "topped by the deadline" in conclusion["summary"]
    results = [json.loads(path.read_text("utf-8")) for path in folder.glob("*/run_result.json")]
    scored = [result for result in results if "test/test/pass@1" in result["metrics"]]
    assert scored
    assert all(score["artifacts"]["final_checkpoint"] for score in scored)


def check_campaign(project: Path) -> None:
    assert load_campaign("night").closed
    assert (project / "outputs" / "night-export" / "weights.npz").is_file()
    verdicts = [
        json.loads(path.read_text("utf-8"))["verdict"] for path in project.glob("outputs/night-*/conclusion.json")
    ]
    assert verdicts
    assert "invalid" not in verdicts
