"""A budget that ends in the middle of a sweep: at most one step too far, and nothing that was paid for is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ConfigError, ExperimentConfig, dump_yaml
from evsys_sdk.experiment import Experiment, ExperimentResult
from evsys_sdk.record.ledger import read_tally
from evsys_sdk.spend.ledger import SpendLedger

type Config = Callable[..., ExperimentConfig]

SWEEP = [{"name": name} for name in ("a", "b", "c", "d")]
EQUAL_STEPS = {"max_steps": 6, "batch_size": 6, "save_every": None}
"""All rows in every step."""


def sweep(config: Config, **more: Any) -> ExperimentConfig:
    return config(params=EQUAL_STEPS, runs=SWEEP, **more)


def spent(result: ExperimentResult) -> int:
    return SpendLedger(result.path / "spend.jsonl").total().tokens


def losses(result: ExperimentResult, arm: str) -> dict[int, float]:
    lines = (result.path / arm / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def test_a_sweep_overruns_by_less_than_one_step_and_keeps_every_number(config: Config, tmp_path: Path) -> None:
    whole = Experiment(sweep(config, name="whole")).run()
    step = spent(whole) // 24
    limit = int(15.5 * step)
    cut = Experiment(sweep(config, name="cut", budget={"tokens": limit})).run()
    assert (cut.status, cut.exit_code) == ("budget", 3)
    assert limit <= spent(cut) < limit + step
    assert [(arm.name, arm.status, arm.metrics["steps"]) for arm in cut.arms] == [
        ("a", "completed", 6.0),
        ("b", "completed", 6.0),
        ("c", "cancelled", 4.0),
    ]
    for arm in ("a", "b"):
        assert losses(cut, arm) == losses(whole, arm)
    assert losses(cut, "c") == {step: loss for step, loss in losses(whole, "c").items() if step <= 4}


def test_a_higher_budget_finishes_the_sweep_as_if_nothing_had_happened(config: Config) -> None:
    whole = Experiment(sweep(config, name="whole")).run()
    step = spent(whole) // 24
    Experiment(sweep(config, name="cut", budget={"tokens": 9 * step})).run()
    done = Experiment(sweep(config, name="cut", budget={"tokens": 24 * step + 1})).run()
    assert (done.status, spent(done)) == ("completed", 24 * step)
    for arm in ("a", "b", "c", "d"):
        assert losses(done, arm) == losses(whole, arm)
    assert done.arms[0].result.notes.spend["tokens_trained"] == 6 * step


def test_arms_at_the_same_time_share_the_budget(config: Config) -> None:
    step = spent(Experiment(sweep(config, name="whole")).run()) // 24
    cut = Experiment(sweep(config, name="cut", budget={"tokens": 10 * step}, max_concurrent_arms=2)).run()
    assert cut.exit_code == 3
    assert 10 * step <= spent(cut) <= 12 * step  # each of the two finishes the step it is in


def test_a_limit_in_dollars_without_a_price_stops_nothing_because_nothing_starts(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("evsys_sdk.config.prices.FREE_BACKENDS", ())
    with pytest.raises(ConfigError, match=r"budget\.usd: no price is known for"):
        Experiment(sweep(config, budget={"usd": 1.0})).run()
    assert not (tmp_path / "outputs").exists()


@pytest.mark.e2e
def test_what_a_killed_process_spent_is_not_forgotten(config: Config, tmp_path: Path) -> None:
    run = {"backend": {"kind": "mock", "params": {"latency_ms": 15}}}
    endless = {"max_steps": 10_000, "batch_size": 6, "save_every": 1}
    file = tmp_path / "config.yaml"
    dump_yaml(config(run=run, params=endless, name="killed", budget={"tokens": 10**9}), file)
    command = [sys.executable, "-m", "evsys_sdk", "run", str(file), "--quiet"]
    ledger = SpendLedger(tmp_path / "outputs" / "killed" / "spend.jsonl")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while ledger.total().tokens == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    before = ledger.total()
    assert before.tokens > 0
    dump_yaml(config(run=run, params=endless, name="killed", budget={"tokens": before.tokens + 1}), file)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    after = ledger.total()
    assert before.tokens < after.tokens
    tally = read_tally(ledger.path.parent)
    assert (tally.total(), tally.of("r")) == (after, ledger.of("r"))
    ended = json.loads((ledger.path.parent / "journal.jsonl").read_text("utf-8").splitlines()[-1])
    assert ended["spend"]["tokens_trained"] == after.tokens_trained
    assert after.tokens_trained - before.tokens_trained <= 2 * 200  # one or two small steps
