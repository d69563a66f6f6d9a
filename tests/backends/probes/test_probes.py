"""Every fact is found out on clients that break the protocol on purpose."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import ModelSpec
from evsys_sdk.backends.mock.client import MockTrainingClient
from evsys_sdk.backends.probes.facts import (
    MEANING,
    Facts,
    ProbedServer,
    consequences,
    list_operations,
    read_facts,
    write_answer,
)
from evsys_sdk.backends.probes.probe import PROBES, probe
from evsys_sdk.errors import BackendError

from . import wrong

GOOD: dict[str, Any] = {
    "loss_reduction": "sum",
    "snapshot_samplers": True,
    "aligned_logprobs": True,
    "custom_loss": True,
    "soft_targets": True,
    "seeds": True,
    "top_k_logprobs": 50,
    "clips_gradients": True,
    "exact_resume": True,
}


def asked(client: type[MockTrainingClient], fact: str, folder: Path) -> Any:
    backend = type("Backend", (wrong.WrongBackend,), {"client": client})()
    handles = backend.prepare(model=ModelSpec("tiny"), run_dir=folder)
    try:
        return PROBES[fact](handles["training_client"])
    finally:
        backend.teardown(handles)


@pytest.mark.parametrize(
    ("client", "fact", "found"),
    [
        (wrong.Averages, "loss_reduction", "mean_data"),
        (wrong.AveragesTokens, "loss_reduction", "mean_tokens"),
        (wrong.Normalises, "loss_reduction", "normalised"),
        (wrong.ReportsNoNorm, "loss_reduction", "sum"),
        (wrong.NormalisesSilently, "loss_reduction", "normalised"),
        (wrong.LiveSamplers, "snapshot_samplers", False),
        (wrong.UndoesTraining, "snapshot_samplers", False),
        (wrong.IgnoresSeeds, "seeds", False),
        (wrong.ShiftedLogprobs, "aligned_logprobs", False),
        (wrong.NoTopK, "top_k_logprobs", 0),
        (wrong.ForgetsToClip, "clips_gradients", False),
        (wrong.ForgetsOptimizer, "exact_resume", False),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_a_client_that_breaks_the_protocol_is_seen_through(
    client: type[MockTrainingClient], fact: str, found: Any, tmp_path: Path
) -> None:
    assert asked(client, fact, tmp_path) == found


def test_losses_are_compared_with_their_formulas(tmp_path: Path) -> None:
    class Differs(MockTrainingClient):
        def forward_backward(self, data: Any, loss_fn: str, loss_fn_config: Any = None) -> Any:
            if loss_fn == "dro":
                raise BackendError("dro is not known here. Use ppo.")
            if loss_fn == "ppo":  # a policy gradient without a clip, and twice as large
                data = [dataclasses.replace(datum, advantages=2 * datum.advantages) for datum in data]
                return super().forward_backward(data, "importance_sampling")
            return super().forward_backward(data, loss_fn, loss_fn_config)

    checks = asked(Differs, "loss_checks", tmp_path)
    rows = {row["operation"]: row for row in list_operations(Facts(loss_checks=checks, seeds=False), {})}
    assert checks["dro"] == "refused: dro is not known here"
    assert checks["ppo"].startswith(("value", "gradient 2 times"))
    assert [name for name, said in checks.items() if said == "as documented"] == [
        "cispo", "cross_entropy", "gspo", "importance_sampling"
    ]  # fmt: skip
    assert (rows["loss gspo"]["as_documented"], rows["seeded sampling"]["as_documented"]) == (True, False)
    assert rows["exact resume"]["as_documented"] is None


def test_a_client_that_keeps_the_protocol_passes(tmp_path: Path) -> None:
    backend = wrong.WrongBackend()
    facts, problems = probe(
        lambda name: backend.prepare(model=ModelSpec(name), run_dir=tmp_path), "tiny", backend.teardown
    )
    assert problems == {}
    assert {key: getattr(facts, key) for key in GOOD} == GOOD
    assert facts.rejects_unknown_model is False  # the mock takes any name
    assert facts.step_latency_s is not None


def test_a_fact_that_cannot_be_found_out_does_not_hide_the_others(tmp_path: Path) -> None:
    class Breaks(MockTrainingClient):
        def save_state(self, name: str) -> Any:
            raise BackendError("the disk of the server is full. Make room.")

    backend = type("Backend", (wrong.WrongBackend,), {"client": Breaks})()
    facts, problems = probe(
        lambda name: backend.prepare(model=ModelSpec(name), run_dir=tmp_path), "tiny", backend.teardown
    )
    assert problems == {"exact_resume": "the disk of the server is full. Make room."}
    assert facts.exact_resume is None
    assert facts.snapshot_samplers is True


def test_facts_survive_being_stored(tmp_path: Path) -> None:
    server = ProbedServer("tinker", "http://127.0.0.1:1", "tiny")
    facts = Facts(loss_reduction="sum", losses=("cross_entropy",), top_k_logprobs=5, seeds=False)
    assert read_facts(server, tmp_path) is None
    write_answer(server, facts, {}, tmp_path)
    assert read_facts(server, tmp_path) == facts
    assert read_facts(ProbedServer("tinker", "http://127.0.0.1:2", "tiny"), tmp_path) is None
    server.path(tmp_path).write_text("{", encoding="utf-8")
    assert read_facts(server, tmp_path) is None


def test_what_is_not_known_is_taken_from_what_is_assumed() -> None:
    merged = Facts(seeds=False).over(Facts(seeds=True, top_k_logprobs=20))
    assert (merged.seeds, merged.top_k_logprobs, merged.exact_resume) == (False, 20, None)


def test_every_fact_has_a_meaning_and_traps_have_consequences() -> None:
    assert set(MEANING) == set(Facts().to_dict())
    assert consequences(Facts(**GOOD)) == []
    text = " ".join(consequences(Facts(loss_reduction="normalised", snapshot_samplers=False)))
    assert "dpo" in text
    assert "max_staleness" in text
