"""Artifacts that a task folder declares are part of the record, and so is their absence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask
from evsys_sdk.errors import DataError
from evsys_sdk.eval.benchmark import Benchmark, ScoreSettings
from evsys_sdk.rollouts.engine import EngineLimits
from evsys_sdk.rollouts.harness import AgentSpec, EnvironmentSpec, build_harness

pytest.importorskip("harbor", reason="needs the extra harbor; run make test-harbor")
pytestmark = pytest.mark.harbor
type Make = Callable[..., HarborTask]

TOML = 'artifacts = ["/app/report.txt", "/app/missing.txt"]\n'
WORK = "cp input.txt output.txt; mkdir -p /logs/artifacts/deep; echo 7 > /logs/artifacts/deep/n; echo done > report.txt"


class Model:
    """A scored model whose policies are made by a function."""

    ref = "scripted"

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def policy(self, sampling: Any, task_id: str, sample: int) -> Any:
        return self._make()


def test_artifacts_are_listed_with_the_rollout(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    rollout = in_sandbox(make_folder(toml=TOML), say.scripted(say.shell(WORK), "done"))
    listed = {Path(entry["path"]).name: entry for entry in rollout.info["artifacts"]}
    assert listed["report.txt"]["text"] == "done\n"
    assert listed["report.txt"]["sha256"] == hashlib.sha256(b"done\n").hexdigest()
    assert listed["n"]["text"] == "7\n"
    assert listed["missing.txt"]["problem"] == "it could not be fetched"
    assert rollout.reward == 1.0


@pytest.mark.parametrize("trap", ["ln -s /etc/passwd", "ln -s ../../../../../../etc/passwd", "mkfifo"])
def test_an_artifact_that_leads_elsewhere_is_not_followed(
    make_folder: Make, in_sandbox: Any, say: Any, trap: str
) -> None:
    work = f"cp input.txt output.txt; mkdir -p /logs/artifacts; {trap} /logs/artifacts/trap; {trap} report.txt"
    rollout = in_sandbox(make_folder(toml=TOML), say.scripted(say.shell(work), "done"))
    assert "root:" not in json.dumps(rollout.info)
    assert rollout.reward == 1.0


def test_a_scoring_keeps_them_beside_its_predictions(make_folder: Make, tmp_path: Path, say: Any) -> None:
    task = make_folder(toml=TOML, name="with artifacts")
    settings = ScoreSettings(
        samples=2,
        harness=build_harness(AgentSpec(kind="bash"), EnvironmentSpec(kind="bwrap")),
        engine="harbor",
        limits=EngineLimits(attempts=1),
    )
    model = Model(lambda: say.scripted(say.shell(WORK), "done"))
    journal = tmp_path / "run" / "predictions.jsonl"
    Benchmark.of([task], name="b").score(model, settings, journal=journal)
    lines = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    predictions = [line for line in lines if "task_id" in line]
    assert len(predictions) == 2
    for prediction in predictions:
        [report] = [entry for entry in prediction["info"]["artifacts"] if entry["path"].endswith("report.txt")]
        assert (journal.parent / report["kept_at"]).read_text("utf-8") == "done\n"
        assert "text" not in report


def test_a_scoring_that_could_only_fail_is_refused(make_folder: Make, tmp_path: Path, say: Any) -> None:
    task = make_folder(dockerfile="FROM debian\n")
    settings = ScoreSettings(harness=build_harness(None, EnvironmentSpec(kind="bwrap")), engine="harbor")
    asked: list[Any] = []
    model = Model(lambda: asked.append("asked"))
    with pytest.raises(DataError, match=r"needs a container \(Dockerfile\)"):
        Benchmark.of([task], name="b").score(model, settings, journal=tmp_path / "p.jsonl")
    assert asked == []
    assert not (tmp_path / "p.jsonl").exists()
