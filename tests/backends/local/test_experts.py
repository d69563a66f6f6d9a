"""Adapters on the experts of a mixture: compared with transformers and PEFT, stored, loaded and sampled from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import AdamParams, SamplingParams  # noqa: E402
from evsys_sdk.errors import BackendError  # noqa: E402

from .test_architectures import FAMILIES, Reference, adapted, assert_greedy, assert_like, build, some_data  # noqa: E402

type MakeClient = Callable[..., Any]

ADAPTED = ["Mixtral", "Qwen2-MoE", "Qwen3-MoE", "OLMoE", "DeepSeek V3", "GLM-4-MoE", "Qwen3.5-MoE"]


def build_family(family: str, folder: Path) -> str:
    arch, config = FAMILIES[family]
    return build(folder / "model", arch, **config)


@pytest.mark.parametrize("family", ADAPTED)
def test_adapted_experts_compute_learn_and_sample_as_weights_with_the_adapter_added(
    family: str, tmp_path: Path, make_client: MakeClient
) -> None:
    folder = build_family(family, tmp_path)
    client = make_client(name=folder, params={"lora_targets": ["*"]})
    reference = Reference(folder, adapted(client))
    assert any("experts" in name for name in client._state.adapter.weights)
    data = some_data()
    assert_like(reference, client, data, gradient_error=3e-5)
    assert_greedy(client, reference, [data[0].tokens[:5], data[1].tokens[:22]])


@pytest.mark.parametrize("targets", [["*"], ["q_proj", "experts.down_proj"], ["experts.gate_up_proj"]])
def test_peft_loads_adapted_experts_and_we_load_what_peft_has_saved(
    targets: list[str], tmp_path: Path, make_client: MakeClient
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    folder = build_family("Qwen3-MoE", tmp_path)
    client = make_client(name=folder, params={"lora_targets": targets})
    adapted(client)
    ref = client.save_state("a").result()
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), ref)
    model.save_pretrained(tmp_path / "theirs")
    again = make_client(
        name=folder,
        run_dir=tmp_path / "other",
        init_from_checkpoint=str(tmp_path / "theirs"),
        params={"lora_targets": targets},
    )
    for datum in some_data():
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
        expected = logits.log_softmax(-1).gather(1, torch.from_numpy(datum.target_tokens)[:, None])[:, 0]
        for one in (client, again):
            np.testing.assert_allclose(one.forward([datum]).result().logprobs[0], expected.numpy(), atol=1e-4)


def test_a_state_with_experts_continues_as_without_the_break(tmp_path: Path, make_client: MakeClient) -> None:
    folder = build_family("Qwen3-MoE", tmp_path)
    losses: list[list[float]] = []
    for broken in (False, True):
        client = make_client(name=folder, run_dir=tmp_path / str(broken), params={"lora_targets": ["*"]})
        found: list[float] = []
        for step in range(4):
            if broken and step == 2:
                ref = client.save_state("here").result()
                client = make_client(name=folder, run_dir=tmp_path / "next", params={"lora_targets": ["*"]})
                client.load_state(ref).result()
            found.append(client.forward_backward(some_data(), "cross_entropy").result().loss)
            client.optim_step(AdamParams(3e-3)).result()
        losses.append(found)
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_by_default_experts_are_left_as_they_are_and_a_merged_sampler_agrees(
    tmp_path: Path, make_client: MakeClient
) -> None:
    folder = build_family("Qwen3-MoE", tmp_path)
    plain = make_client(name=folder)
    assert not [name for name in plain._state.adapter.weights if "experts" in name]
    samples: list[Any] = []
    for merge in (True, False):
        client = make_client(name=folder, params={"lora_targets": ["*"], "merge_samplers": merge})
        adapted(client)
        samples += client.sampler().result().sample([1, 2, 3], 1, SamplingParams(12, seed=1, stop=[])).result()
    assert samples[0].tokens == samples[1].tokens
    np.testing.assert_allclose(samples[0].logprobs, samples[1].logprobs, atol=1e-4)


def test_an_adapter_of_experts_for_another_model_is_refused(tmp_path: Path, make_client: MakeClient) -> None:
    folder = build_family("Qwen3-MoE", tmp_path)
    ref = Path(make_client(name=folder, params={"lora_targets": ["*"]}).sampler("a").result().ref)
    (ref / "manifest.json").unlink()  # as PEFT would have saved it
    config = json.loads((ref / "adapter_config.json").read_text())
    config["target_parameters"] = None
    (ref / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(BackendError, match="no counterpart of the same shape"):
        make_client(name=folder, run_dir=tmp_path / "other", init_from_checkpoint=str(ref))
