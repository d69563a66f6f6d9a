"""A scoring in the background is recorded at fixed moments, once, and nothing about it is lost or waited for twice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import ModelSpec, SamplingClient, TrainingClient
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.record.run_files.checkpoints import Checkpoint, CheckpointLog
from evsys_sdk.training.callback import Callback, EvalRecord, Observers
from evsys_sdk.training.scoring import BackgroundScoring, StepScores


class Heard(Callback):
    """Keeps what was recorded."""

    def __init__(self) -> None:
        self.records: list[EvalRecord] = []

    def on_eval(self, record: EvalRecord) -> None:
        self.records.append(record)


@pytest.fixture
def client(tmp_path: Path) -> Any:
    handles = MockBackend().prepare(model=ModelSpec("tiny"), run_dir=tmp_path)
    yield handles["training_client"]
    MockBackend().teardown(handles)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def scoring_of(heard: Heard, folder: Path, score: Any) -> BackgroundScoring:
    return BackgroundScoring(score, lambda step: step % 5 == 0, Observers([heard]), CheckpointLog.in_dir(folder))


def passes(step: int, sampler: SamplingClient, everything: bool) -> list[StepScores]:
    record = EvalRecord("set", "val", step, {"pass@1": step / 10, "tasks": 1.0})
    return [StepScores(record, record.named_metrics)]


async def test_nothing_is_recorded_before_it_is_collected(heard: Heard, client: TrainingClient, tmp_path: Path) -> None:
    done = threading.Event()

    def score(step: int, sampler: SamplingClient, everything: bool) -> list[StepScores]:
        done.set()
        return passes(step, sampler, everything)

    scoring = scoring_of(heard, tmp_path, score)
    scoring.start(5, await client.sampler("five"))
    assert done.wait(60)
    assert heard.records == []
    assert scoring.pending is not None
    assert scoring.pending["step"] == 5
    await scoring.collect()
    await scoring.collect()
    assert [record.step for record in heard.records] == [5]
    assert scoring.pending is None
    scoring.close()


async def test_scores_reach_the_checkpoint_that_was_written_before_them(
    heard: Heard, client: TrainingClient, tmp_path: Path
) -> None:
    scoring = scoring_of(heard, tmp_path, passes)
    scoring.checkpoints.append(Checkpoint("five", 5, "state", "sampler", metrics={"loss": 1.0}))
    scoring.checkpoints.append(Checkpoint("six", 6, "state6", "sampler6", metrics={"loss": 0.5}))
    scoring.start(5, await client.sampler())
    await scoring.collect()
    scoring.close()
    best = scoring.checkpoints.best("val/set/pass@1", "max")
    assert best is not None
    assert best.name == "five"
    assert best.metrics == {"loss": 1.0, "val/set/pass@1": 0.5, "val/set/tasks": 1.0}
    last = scoring.checkpoints.last()
    assert last is not None
    assert last.metrics == {"loss": 0.5}


async def test_the_live_model_is_scored_once_for_a_step(heard: Heard, client: TrainingClient, tmp_path: Path) -> None:
    calls: list[bool] = []

    def score(step: int, sampler: SamplingClient, everything: bool) -> list[StepScores]:
        calls.append(everything)
        return passes(step, sampler, everything)

    scoring = scoring_of(heard, tmp_path, score)
    assert await scoring.score_now(10, client) == {"val/set/pass@1": 1.0, "val/set/tasks": 1.0}
    assert await scoring.score_now(10, client) == {"val/set/pass@1": 1.0, "val/set/tasks": 1.0}
    assert calls == [True]
    scoring.close()


async def test_a_failure_is_kept_and_the_next_scoring_goes_well(
    heard: Heard, client: TrainingClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def score(step: int, sampler: SamplingClient, everything: bool) -> list[StepScores]:
        if step == 5:
            raise RuntimeError("no luck")
        return passes(step, sampler, everything)

    scoring = scoring_of(heard, tmp_path, score)
    scoring.start(5, await client.sampler())
    await scoring.collect()
    assert scoring.failures == {5: "RuntimeError: no luck"}
    assert "after step 5 failed" in caplog.text
    assert await scoring.score_now(10, client) == {"val/set/pass@1": 1.0, "val/set/tasks": 1.0}
    scoring.close()


async def test_what_was_running_is_scored_again_for_the_same_step(
    heard: Heard, client: TrainingClient, tmp_path: Path
) -> None:
    ref = (await client.sampler("five")).ref
    scoring = scoring_of(heard, tmp_path, passes)
    await scoring.start_again({"step": 5, "sampler": ref}, client)
    await scoring.collect()
    assert [record.step for record in heard.records] == [5]
    scoring.close()


async def test_a_sampler_that_is_gone_is_a_failure_of_the_scoring_only(
    heard: Heard, client: TrainingClient, tmp_path: Path
) -> None:
    scoring = scoring_of(heard, tmp_path, passes)
    await scoring.start_again({"step": 5, "sampler": str(tmp_path / "gone")}, client)
    await scoring.collect()
    assert list(scoring.failures) == [5]
    assert heard.records == []
    scoring.close()
