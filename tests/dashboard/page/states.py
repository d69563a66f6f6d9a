"""A project that is in every state at once: what waits, failed, was killed or stopped, is nearly spent, is flagged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import Any

from evsys_sdk.dashboard import DashboardClient, ExperimentRun
from evsys_sdk.history.campaigns.campaign import Terms, open_campaign, propose
from evsys_sdk.record.approvals import request_approval
from evsys_sdk.record.events import Kind
from evsys_sdk.record.lock import folder_lock
from evsys_sdk.record.project_files.journals import campaign_dir, change_campaign
from tests.history.recorded import write_experiment

RL = ("reward/mean", "kl", "length/mean", "entropy", "loss")


@contextmanager
def make_states(root: Path) -> Generator[dict[str, str]]:
    """Name -> id; what waits and what runs does so until the end."""
    outputs, now = root / "outputs", time.time()
    (root / ".evsys").mkdir(parents=True)
    audited = {"id": "a1", "time": now, "kind": Kind.AUDITED, "flags": ["contamination"]}
    tag: dict[str, Any] = {"metadata": {"tags": ["campaign:night"]}}
    write_experiment(outputs, "good", started=now - 7200, verdict="supported", **tag)
    write_experiment(outputs, "flagged", started=now - 7000, events=[audited])
    write_experiment(outputs, "failed", started=now - 6000, verdict=None, status="failed", failed=_failures())
    killed = write_experiment(outputs, "killed", started=now - 5000, verdict=None, status=None)
    for path in (killed, *killed.rglob("*")):
        os.utime(path, (now - 5000, now - 5000))
    write_experiment(outputs, "interrupted", started=now - 4000, verdict=None, status="interrupted")
    write_experiment(outputs, "spent", started=now - 3000, verdict=None, status="budget", **tag)
    waiting = write_experiment(outputs, "waiting", started=now - 60, verdict=None, status=None, **tag)
    near = write_experiment(outputs, "near", started=now - 100, verdict=None, status=None, budget={"tokens": 100})
    spent = {
        "arm": "base__seed42",
        "at": now,
        "what": "train",
        "tokens_trained": 95,
        "tokens_sampled": 0,
        "wall_s": 9.0,
    }
    (near / "spend.jsonl").write_text(json.dumps(spent) + "\n", "utf-8")
    _log_rl(near / "base__seed42" / "logs" / "metrics.jsonl")
    with chdir(root), ExitStack() as stack:
        for folder in (waiting, near):
            stack.enter_context(folder_lock(folder, what="a test"))
        request_approval(waiting, about="3 arms, at most $4.20")
        open_campaign("night", Terms("Does a longer warm-up route better?", experiments=4, tokens=50_000, goal=0.9))
        propose("night", "warm up for 40 steps", by="agent-1")
        request_approval(campaign_dir("night"), "p1a2b3", about="a plan of 80,000 tokens")
        with change_campaign("night") as (_, journal):
            for action, family, reason in (("start", "", "3,600 s"), ("probe", "sft", "every family gets a probe")):
                about = {"action": action, "family": family, "amount": 180.0, "reason": reason}
                journal.append(Kind.CAMPAIGN_DECIDED, **about, unit="wall_s", budget=3600.0, deadline=now + 3600)
        with DashboardClient(offline=True, log_dir=root / ".evsys") as client:
            for rate in (0.1, 0.2):
                with ExperimentRun(client, experiment_name="script", run_config={"lr": rate}) as run:
                    for step in range(20):
                        run.log_step(step, loss=rate / (step + 1))
        names = ("good", "flagged", "failed", "killed", "interrupted", "spent", "waiting", "near")
        yield {name: f"{name}-0a1b2c3d" for name in names} | {"script": run.experiment_id}


def _failures() -> dict[str, str]:
    return {"changed__seed42": "TrainingError: the loss is NaN at step 12. Lower learning_rate."}


def _log_rl(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    system = ("system/cpu_percent", "system/memory_gib")
    with path.open("w", encoding="utf-8") as out:
        for step in range(1, 61):
            values = {name: (at + 1) * (1 - 0.9**step) for at, name in enumerate((*RL, *system))}
            out.write(json.dumps({"step": step, **values}) + "\n")
