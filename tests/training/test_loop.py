import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import ForwardBackwardOutput, TrainingClient
from evsys_sdk.backends.datum import Datum
from evsys_sdk.errors import BackendError, TrainingError
from evsys_sdk.record.run_files.checkpoints import CheckpointLog
from evsys_sdk.training.batch import Schedule, TrainingBatch
from evsys_sdk.training.callback import Callback, Observers, RunControl
from evsys_sdk.training.loop import LoopSettings, TrainingLoop

TOKENS = list(b"abcdefgh")


class Recorder(Callback):
    name = "recorder"

    def __init__(self) -> None:
        self.steps: dict[int, Mapping[str, float]] = {}
        self.checkpoints: list[str] = []

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps[step] = metrics

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self.checkpoints.append(checkpoint["name"])


class Builder:
    """Batches of one short sequence, with a log of when they were built."""

    builds_ahead = True

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder, self.finished_before_build = recorder, dict[int, int]()

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        if self.recorder is not None:
            self.finished_before_build[step_idx] = len(self.recorder.steps)
        return TrainingBatch([Datum.supervised(TOKENS, [1 / 8] * 8)], metrics={"marker": float(step_idx)})

    def step_metrics(self, step_idx: int, batch: TrainingBatch, output: ForwardBackwardOutput) -> Mapping[str, float]:
        return {"seen_loss": output.loss}

    def state(self) -> dict[str, Any]:
        return {"cursor": 1}

    def restore(self, state: Mapping[str, Any]) -> None: ...


def make_loop(client: TrainingClient, folder: Path, builder: Any, recorder: Recorder, **settings: Any) -> TrainingLoop:
    chosen = {"total_steps": 6, "learning_rate": 1e-3, "schedule": Schedule("constant"), **settings}
    return TrainingLoop(client, builder, LoopSettings(**chosen), CheckpointLog.in_dir(folder), Observers([recorder]))


type MakeClient = Callable[..., TrainingClient]


async def test_every_step_is_logged_once_in_order_and_the_loss_falls(make_client: MakeClient, tmp_path: Path) -> None:
    recorder = Recorder()
    loop = make_loop(make_client(), tmp_path, Builder(), recorder)
    end = await loop.run()
    assert list(recorder.steps) == [1, 2, 3, 4, 5, 6]
    assert recorder.steps[6]["loss"] < recorder.steps[1]["loss"]
    assert recorder.steps[3] | {"marker": 2.0, "tokens": 7.0, "learning_rate": 1e-3} == recorder.steps[3]
    assert recorder.steps[3]["seen_loss"] == recorder.steps[3]["loss"]
    assert (end.final, end.next_step, end.builder) == (True, 6, {"cursor": 1})


async def test_the_next_batch_is_built_while_the_last_one_is_in_flight(make_client: MakeClient, tmp_path: Path) -> None:
    recorder = Recorder()
    builder = Builder(recorder)
    await make_loop(make_client(), tmp_path, builder, recorder).run()
    assert builder.finished_before_build == {0: 0, 1: 0, 2: 1, 3: 2, 4: 3, 5: 4}


async def test_a_recipe_that_needs_fresh_weights_waits(make_client: MakeClient, tmp_path: Path) -> None:
    recorder = Recorder()
    builder = Builder(recorder)
    builder.builds_ahead = False
    await make_loop(make_client(), tmp_path, builder, recorder).run()
    assert builder.finished_before_build == {step: step for step in range(6)}


async def test_nothing_is_in_flight_when_a_checkpoint_is_written(make_client: MakeClient, tmp_path: Path) -> None:
    """Building ahead or not, checkpoints hold the same weights."""
    ends: list[list[bytes]] = []
    for ahead in (True, False):
        recorder = Recorder()
        builder = Builder()
        builder.builds_ahead = ahead
        folder = tmp_path / str(ahead)
        await make_loop(make_client(), folder, builder, recorder, save_every=2).run()
        states = [Path(checkpoint.state) for checkpoint in CheckpointLog.in_dir(folder).read()]
        ends.append([(state / "weights.npz").read_bytes() for state in states])
    assert len(ends[0]) == 3
    assert ends[0] == ends[1]


async def test_saves_happen_on_the_beat_at_fractions_and_at_the_end(make_client: MakeClient, tmp_path: Path) -> None:
    recorder = Recorder()
    loop = make_loop(make_client(), tmp_path, Builder(), recorder, save_every=4, save_at_fractions=(0.5,))
    await loop.run()
    assert recorder.checkpoints == ["step000003", "step000004", "step000006-final"]


async def test_a_resumed_loop_continues_bit_for_bit(make_client: MakeClient, tmp_path: Path) -> None:
    whole, parts = Recorder(), Recorder()
    await make_loop(make_client(), tmp_path / "whole", Builder(), whole, save_every=3).run()
    middle = CheckpointLog.in_dir(tmp_path / "whole").read()[0]
    client = make_client()
    await client.load_state(middle.state)
    await make_loop(client, tmp_path / "parts", Builder(), parts).run(start=middle.next_step)
    assert {step: metrics["loss"] for step, metrics in parts.steps.items()} == {
        step: whole.steps[step]["loss"] for step in (4, 5, 6)
    }


async def test_a_requested_stop_ends_after_what_is_in_flight_with_a_checkpoint(
    make_client: MakeClient, tmp_path: Path
) -> None:
    class StopAtTwo(Recorder):
        def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
            super().on_step(step, metrics)
            if step == 2:
                control.stop("enough", interrupted=True)

    control, recorder = RunControl(), StopAtTwo()
    loop = make_loop(make_client(), tmp_path, Builder(), recorder)
    loop.control = control
    end = await loop.run()
    assert list(recorder.steps) == [1, 2, 3]
    assert (end.next_step, end.final, end.stop_reason) == (3, False, "enough")


async def test_stopping_right_after_a_checkpoint_does_not_write_it_again(
    make_client: MakeClient, tmp_path: Path
) -> None:
    class StopAtCheckpoint(Recorder):
        def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
            super().on_checkpoint(checkpoint)
            control.stop("enough", interrupted=True)

    control, recorder = RunControl(), StopAtCheckpoint()
    loop = make_loop(make_client(), tmp_path, Builder(), recorder, save_every=2)
    loop.control = control
    end = await loop.run()
    assert recorder.checkpoints == ["step000002"]
    assert end.next_step == 2


async def test_empty_batches_are_counted_and_end_the_run_when_nothing_else_comes(
    make_client: MakeClient, tmp_path: Path
) -> None:
    class Empty(Builder):
        async def build_batch(self, step_idx: int) -> TrainingBatch:
            return TrainingBatch([])

    recorder = Recorder()
    with pytest.raises(TrainingError, match="5 batches in a row"):
        await make_loop(make_client(), tmp_path, Empty(), recorder, total_steps=20).run()
    assert [metrics["empty_batch"] for metrics in recorder.steps.values()] == [1.0] * 5


async def test_a_loss_that_is_not_finite_ends_the_run_with_the_operation_settled(
    make_client: MakeClient, tmp_path: Path
) -> None:
    def broken(data: Any, logprobs: Any) -> Any:
        return math.nan, {}, [lp * math.nan for lp in logprobs]

    broken.returns_gradients = True  # type: ignore[attr-defined]

    class Broken(Builder):
        async def build_batch(self, step_idx: int) -> TrainingBatch:
            batch = await super().build_batch(step_idx)
            batch.loss_fn = broken if step_idx == 2 else "cross_entropy"
            return batch

    client, recorder = make_client(), Recorder()
    with pytest.raises((TrainingError, BackendError)):
        await make_loop(client, tmp_path, Broken(), recorder).run()
    assert max(recorder.steps) <= 2
    assert math.isfinite((await client.forward([Datum.supervised(TOKENS, [1.0] * 8)])).loss)


async def test_the_model_is_scored_at_the_start_on_the_beat_and_at_the_end(
    make_client: MakeClient, tmp_path: Path
) -> None:
    scored: list[int] = []

    async def evaluate(step: int) -> dict[str, float]:
        scored.append(step)
        return {"eval/accuracy": step / 10}

    loop = make_loop(make_client(), tmp_path, Builder(), Recorder(), eval_every=4)
    loop.evaluate = evaluate
    end = await loop.run()
    assert scored == [0, 4, 6]
    assert end.metrics["eval/accuracy"] == 0.6
    best = loop.checkpoints.best("eval/accuracy", "max")
    assert best is not None
    assert best.next_step == 6


async def test_an_empty_batch_is_logged_in_its_turn_although_it_is_built_ahead(
    make_client: MakeClient, tmp_path: Path
) -> None:
    class Gap(Builder):
        async def build_batch(self, step_idx: int) -> TrainingBatch:
            return TrainingBatch([]) if step_idx in (2, 3) else await super().build_batch(step_idx)

    recorder = Recorder()
    await make_loop(make_client(latency_ms=5), tmp_path, Gap(), recorder).run()
    assert list(recorder.steps) == [1, 2, 3, 4, 5, 6]
    assert [step for step, metrics in recorder.steps.items() if "empty_batch" in metrics] == [3, 4]


async def test_a_step_that_fails_is_settled_before_the_error_is_raised(make_client: MakeClient, tmp_path: Path) -> None:
    """Its optimiser step and the next batch were submitted already; teardown must not race with them."""

    def broken(data: Any, logprobs: Any) -> Any:
        raise RuntimeError("no loss today")

    class Broken(Builder):
        async def build_batch(self, step_idx: int) -> TrainingBatch:
            batch = await super().build_batch(step_idx)
            batch.loss_fn = broken if step_idx == 1 else "cross_entropy"
            return batch

    client = make_client(latency_ms=20)
    submitted: list[Any] = []
    for name in ("forward_backward", "forward_backward_custom", "optim_step"):
        call = getattr(client, name)
        setattr(client, name, lambda *args, _call=call: (submitted.append(_call(*args)), submitted[-1])[1])
    recorder = Recorder()
    with pytest.raises(RuntimeError, match="no loss today"):
        await make_loop(client, tmp_path, Broken(), recorder).run()
    assert list(recorder.steps) == [1]
    assert len(submitted) == 6  # the step after it was in flight
    assert all(operation._future.done() for operation in submitted)


async def test_a_small_fraction_of_a_short_run_is_saved_after_its_first_step(
    make_client: MakeClient, tmp_path: Path
) -> None:
    recorder = Recorder()
    await make_loop(make_client(), tmp_path, Builder(), recorder, save_at_fractions=(0.01, 1.0)).run()
    assert recorder.checkpoints == ["step000001", "step000006-final"]


@pytest.mark.parametrize(("offset", "scored"), [(0, [0, 3, 6]), (10, [13, 16])])
async def test_a_later_stage_does_not_score_again_what_the_stage_before_ended_with(
    offset: int, scored: list[int], make_client: MakeClient, tmp_path: Path
) -> None:
    steps: list[int] = []

    async def evaluate(step: int) -> dict[str, float]:
        steps.append(step)
        return {"eval/accuracy": 0.5}

    loop = make_loop(make_client(), tmp_path, Builder(), Recorder(), eval_every=3)
    loop.evaluate, loop.offset = evaluate, offset
    await loop.run()
    assert steps == scored


async def test_numbers_of_other_libraries_reach_the_record_as_plain_ones(
    make_client: MakeClient, tmp_path: Path
) -> None:
    import numpy as np

    class Numpy(Builder):
        def step_metrics(self, step_idx: int, batch: TrainingBatch, output: ForwardBackwardOutput) -> Any:
            return {"fraction": np.float32(0.5), "count": np.int64(3), "odd": math.nan}

    recorder = Recorder()
    end = await make_loop(make_client(), tmp_path, Numpy(), recorder).run()
    assert recorder.steps[6]["fraction"] == 0.5
    assert math.isnan(recorder.steps[6]["odd"])
    assert (end.metrics["count"], "odd" in end.metrics) == (3.0, False)
    assert "NaN" not in (tmp_path / "checkpoints.jsonl").read_text(encoding="utf-8")
