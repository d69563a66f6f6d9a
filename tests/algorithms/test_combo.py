"""Phases of a combo train one set of weights, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evsys_sdk import ExperimentConfig, register_algorithm, register_callback
from evsys_sdk.algorithms.combo import Combo
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment import Experiment
from evsys_sdk.training.callback import Callback, RunControl, RunInfo

SFT_PHASE = {"kind": "sft", "params": {"max_steps": 6, "batch_size": 6, "learning_rate": 2e-3}}


@pytest.fixture
def dpo_phase(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kind": "dpo",
        "params": {"max_steps": 4, "batch_size": 6, "learning_rate": 2e-3},
        "data": {"source_kind": "in_memory", "rows": pairs},
    }


@pytest.fixture
def weights_at_setup(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """What the model makes of one fixed text when each DPO phase sets up."""
    from evsys_sdk.algorithms.dpo import DPO
    from evsys_sdk.backends.datum import Datum

    weights: list[list[float]] = []
    setup = DPO.setup

    async def watched(self: DPO) -> None:
        weights.append(
            (await self.client.forward([Datum.supervised(list(b"shout amber"), [1] * 11)])).logprobs[0].tolist()
        )
        await setup(self)

    monkeypatch.setattr(DPO, "setup", watched)
    return weights


def test_dpo_starts_from_the_weights_of_sft(
    train: Callable[..., Any],
    chats: list[dict[str, Any]],
    dpo_phase: dict[str, Any],
    weights_at_setup: list[list[float]],
) -> None:
    """A combo's DPO phase is, number for number, a DPO run that was started from a separate SFT run."""
    combo = train("combo", chats, params={"phases": [SFT_PHASE, dpo_phase]})
    assert combo.result.status == "completed", combo.result.error
    sft = train("sft", chats, params=SFT_PHASE["params"])
    start = {"init_from_checkpoint": sft.result.artifacts["final_checkpoint"]}
    rows = dpo_phase["data"]["rows"]
    dpo = train("dpo", rows, params=dpo_phase["params"], model=start)
    cold = train("dpo", rows, params=dpo_phase["params"])
    assert combo.curve("loss") == sft.curve("loss") + dpo.curve("loss")
    assert combo.curve("grad_norm")[6:] == dpo.curve("grad_norm") != cold.curve("grad_norm")
    in_combo, after_sft, untrained = weights_at_setup
    assert in_combo == after_sft != untrained


def test_steps_and_checkpoints_count_on_over_the_phases(
    train: Callable[..., Any], chats: list[dict[str, Any]], dpo_phase: dict[str, Any]
) -> None:
    combo = train("combo", chats, params={"phases": [SFT_PHASE, dpo_phase]})
    assert [line["step"] for line in combo.steps] == list(range(1, 11))
    finals = [
        (checkpoint.name, checkpoint.stage, checkpoint.next_step, checkpoint.final) for checkpoint in combo.checkpoints
    ]
    assert finals == [("step000006-final", 0, 6, True), ("stage1-step000004-final", 1, 10, True)]
    assert combo.result.metrics["steps"] == 10
    assert combo.result.artifacts["best_checkpoint"] == combo.checkpoints[-1].state
    for phase in ("phase0_sft", "phase1_dpo"):
        assert (combo.run_dir / "stages" / phase / "rendered_examples.md").exists()


def test_a_stop_ends_the_run_and_names_the_phases_that_were_not_trained(
    train: Callable[..., Any], chats: list[dict[str, Any]], dpo_phase: dict[str, Any]
) -> None:
    stopping = {"kind": "early_stopping", "params": {"metric": "epoch", "mode": "min", "patience": 2}}
    combo = train("combo", chats, params={"phases": [SFT_PHASE, dpo_phase]}, callbacks=[stopping])
    assert combo.result.status == "completed"
    assert combo.result.notes.untrained_stages == ["phase1_dpo"]
    assert combo.result.notes.stop_reason.startswith("early_stopping: epoch")
    assert {checkpoint.stage for checkpoint in combo.checkpoints} == {0}
    assert combo.result.artifacts["final_checkpoint"] == combo.checkpoints[-1].state


@pytest.mark.parametrize("moment", ["phase 1 has just begun", "in phase 1", "phase 1 has just ended"])
def test_a_combo_that_was_stopped_resumes_to_the_same_end(
    moment: str, train: Callable[..., Any], chats: list[dict[str, Any]], dpo_phase: dict[str, Any], tmp_path: Path
) -> None:
    stop_at = {"phase 1 has just begun": 6, "in phase 1": 8, "phase 1 has just ended": 10}[moment]

    class StopOnce(Callback):
        name = "stop_once"
        armed = False

        def on_run_start(self, info: RunInfo, control: RunControl) -> None:
            self.control = control

        def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
            if step == stop_at and StopOnce.armed:
                StopOnce.armed = False
                self.control.stop("interrupted", interrupted=True)

    register_callback("stop_once")(StopOnce)
    params = {"phases": [SFT_PHASE, dpo_phase]}
    whole = train("combo", chats, params=params, callbacks=[{"kind": "stop_once"}])
    StopOnce.armed = True
    broken = train("combo", chats, params=params, callbacks=[{"kind": "stop_once"}])
    assert broken.result.status == "cancelled"
    text = (broken.run_dir.parent / "config.json").read_text(encoding="utf-8")
    [resumed] = Experiment(ExperimentConfig.model_validate_json(text)).run(resume=True).runs
    assert resumed.status == "completed"
    assert resumed.metrics == whole.result.metrics
    assert broken.curve("loss") == whole.curve("loss")
    states = [Path(found.state) / "weights.npz" for found in (whole.checkpoints[-1], broken.checkpoints[-1])]
    assert states[0].read_bytes() == states[1].read_bytes()


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([], "at least 1 item"),
        ([{"kind": "sft", "name": "a"}, {"kind": "dpo", "name": "a"}], r"taken by phases\[0\]"),
        ([{"kind": "sft", "params": {"lora_rank": 8}}], "all phases train one adapter"),
    ],
)
def test_phases_that_do_not_fit_together_are_refused(phases: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Combo(phases=phases)


@pytest.mark.parametrize("kind", ["combo", "train_only"])
def test_an_algorithm_with_its_own_train_cannot_be_a_phase(kind: str) -> None:
    @register_algorithm("train_only")
    class TrainOnly:
        def train(self, ctx: Any) -> Any: ...

    inner = {"phases": [{"kind": "sft"}]} if kind == "combo" else {}
    with pytest.raises(ConfigError, match=r"phases\[1\].kind: .* cannot be a stage .*Subclass BaseAlgorithm"):
        Combo(phases=[{"kind": "sft"}, {"kind": kind, "params": inner}])


def test_the_adapter_and_a_pinned_backend_are_those_of_the_whole_run() -> None:
    assert Combo(phases=[{"kind": "sft"}, {"kind": "mock_sft"}]).traits().pinned_backend == "mock"
    assert Combo(phases=[{"kind": "sft"}]).traits().pinned_backend is None
    assert Combo(phases=[{"kind": "sft"}], lora_rank=4).cfg.lora_rank == 4
    assert SFT().cfg.lora_rank == 32
