"""`evsys doctor` finds out what SkyRL does, and recipes that it would corrupt are refused with the reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.backends.probes.facts import AS_DOCUMENTED
from evsys_sdk.experiment import Experiment

from ..backends.tinker.recipes import CHATS, PAIRS, TASKS, rows
from .running import SkyRLServer

pytestmark = pytest.mark.skyrl
RL: dict[str, Any] = {"max_steps": 2, "batch_size": 2, "group_size": 2, "sampling": {"max_tokens": 4}}


@pytest.fixture(scope="module")
def answer(server: SkyRLServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    command = [sys.executable, "-m", "evsys_sdk", "doctor", "--backend", "skyrl", "--base-url", server.url, "--json"]
    done = subprocess.run(
        [*command, "--quiet"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path_factory.mktemp("doctor"),
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_doctor_finds_what_skyrl_does(answer: dict[str, Any], server: SkyRLServer) -> None:
    assert answer["problems"] == {}
    assert answer["model"] == str(server.model)
    facts = dict(answer["facts"])
    assert facts.pop("step_latency_s") > 0
    checks = facts.pop("loss_checks")
    assert checks["cross_entropy"] == AS_DOCUMENTED
    assert checks["dro"].startswith("refused")
    assert checks["cispo"].startswith("gradient ")
    assert facts == {
        "loss_reduction": "normalised",
        "snapshot_samplers": False,
        "aligned_logprobs": True,
        "losses": ["cispo", "cross_entropy", "importance_sampling", "ppo"],
        "custom_loss": False,
        "soft_targets": False,
        "seeds": True,
        "top_k_logprobs": 0,
        "clips_gradients": False,
        "exact_resume": True,
        "rejects_unknown_model": False,
    }


def test_doctor_says_what_follows(answer: dict[str, Any]) -> None:
    text = "\n".join(answer["consequences"])
    assert "Refused: dpo, rl" in text
    assert "max_staleness" in text
    assert "takes any model name" in text


def test_what_is_assumed_of_skyrl_is_what_doctor_finds(answer: dict[str, Any]) -> None:
    from evsys_sdk.backends.tinker.quirks import SKYRL

    assumed = {name: value for name, value in SKYRL.to_dict().items() if value is not None}
    facts = {name: answer["facts"][name] for name in assumed}
    assert {**facts, "losses": set(facts["losses"])} == {**assumed, "losses": set(assumed["losses"])}


@pytest.mark.parametrize("known", [True, False], ids=["after doctor", "without doctor"])
@pytest.mark.parametrize(
    ("kind", "params", "data", "reason"),
    [
        ("dpo", {"max_steps": 2}, PAIRS, "averages losses"),
        ("rl", RL, TASKS, "averages losses"),
        ("rl", {**RL, "max_staleness": 1}, TASKS, "averages losses|follow the live weights"),
        ("sdft", {"max_steps": 2, "batch_size": 2, "divergence": "sampled"}, CHATS, "averages losses"),
    ],
    ids=["dpo", "rl", "asynchronous rl", "sdft"],
)
def test_a_recipe_that_would_be_corrupted_is_refused(
    kind: str,
    params: dict[str, Any],
    data: list[Any],
    reason: str,
    known: bool,
    answer: dict[str, Any],
    server: SkyRLServer,
    tmp_path: Path,
) -> None:
    if known:
        stored = tmp_path / ".evsys" / "doctor" / Path(answer["path"]).name
        stored.parent.mkdir(parents=True)
        shutil.copyfile(answer["path"], stored)
    run = {
        "name": "r",
        "data": rows(data),
        "model": {"name": str(server.model)},
        "algorithm": {"kind": kind, "params": {**params, "lora_rank": 8}},
        "backend": {"kind": "skyrl", "params": {"base_url": server.url}},
    }
    config = ExperimentConfig.model_validate({"name": "refused", "output_dir": str(tmp_path / "out"), "run": run})
    [done] = Experiment(config).run().runs
    assert done.status == "failed"
    assert any(part in (done.error or "") for part in reason.split("|")), done.error
    assert "evsys doctor" in (done.error or "")
    assert not list(tmp_path.glob("**/metrics.jsonl")), "a step was taken"
