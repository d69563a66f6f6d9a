"""Weights in four bits: what is stored, and that training and sampling are those of the weights that are stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import AdamParams  # noqa: E402
from evsys_sdk.backends.local.base.four_bit import BLOCK, LEVELS, FourBit  # noqa: E402
from evsys_sdk.backends.local.memory_plan import Estimate, Needs, Sizes  # noqa: E402

from .test_architectures import EXPERTS, FAMILIES, Reference, adapted, assert_greedy, assert_like, build, some_data  # noqa: E402

type MakeClient = Callable[..., Any]

WIDE = {"intermediate_size": 128}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", WIDE),
    "GPT-2, weights of the other orientation": ("gpt2", {"n_inner": 128}),
    "Qwen3-MoE with its experts": ("qwen3_moe", {**EXPERTS, "moe_intermediate_size": 64}),
    "Qwen3.5": (FAMILIES["Qwen3.5"][0], {**FAMILIES["Qwen3.5"][1], **WIDE, "linear_value_head_dim": 16}),
}


def test_each_weight_becomes_the_nearest_level_of_its_block() -> None:
    weight = torch.randn(24, 3 * BLOCK, generator=torch.Generator().manual_seed(0))
    weight[3, :BLOCK] = 0.0
    small = FourBit.quantize(weight)
    assert small.packed.nbytes == weight.numel() // 2
    scales = weight.unflatten(-1, (-1, BLOCK)).abs().amax(-1)
    unit = weight.unflatten(-1, (-1, BLOCK)) / scales.clamp_min(1e-30)[..., None]
    nearest = (unit[..., None] - torch.tensor(LEVELS)).abs().argmin(-1)
    expected = (torch.tensor(LEVELS)[nearest] * scales[..., None]).flatten(-2)
    assert torch.allclose(small.dense(), expected)
    again = FourBit.quantize(small.dense())
    assert torch.equal(again.dense(), small.dense())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_base_in_four_bits_trains_and_samples_as_a_model_with_the_stored_weights(
    shape: str, tmp_path: Path, make_client: MakeClient
) -> None:
    from transformers import AutoModelForCausalLM

    arch, config = SHAPES[shape]
    folder = build(tmp_path / "model", arch, **config)
    client = make_client(name=folder, params={"dtype": "nf4", "lora_targets": ["*"]})
    layers = client._base.switch.layers
    assert all(isinstance(linear.weight, FourBit) for linear in layers.values())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, linear in layers.items():
        weight = linear.weight.dense()
        parameter = model.get_parameter(name if linear.experts else f"{name}.weight").detach()
        assert float((parameter.T if linear.transposed else parameter).sub(weight).abs().max()) > 0
        parameter.copy_(weight.T if linear.transposed else weight)
    model.save_pretrained(tmp_path / "stored")
    reference = Reference(str(tmp_path / "stored"), adapted(client))
    data = some_data()
    assert_like(reference, client, data, gradient_error=3e-5)
    assert_greedy(client, reference, [data[0].tokens[:5], data[1].tokens[:22]])


def test_an_adapter_trained_on_four_bits_is_loaded_onto_the_whole_base(tmp_path: Path, make_client: MakeClient) -> None:
    folder = build(tmp_path / "model", "llama", **WIDE)
    client = make_client(name=folder, params={"dtype": "nf4"})
    losses: list[float] = []
    for _ in range(3):
        losses.append(client.forward_backward(some_data(), "cross_entropy").result().loss)
        client.optim_step(AdamParams(3e-3)).result()
    assert losses[-1] < losses[0]
    ref = client.save_state("a").result()
    whole = make_client(name=folder, run_dir=tmp_path / "whole")
    whole.load_state(ref).result()
    for (a, b), (c, d) in zip(
        client._state.adapter.weights.values(), whole._state.adapter.weights.values(), strict=True
    ):
        assert torch.equal(a, c)
        assert torch.equal(b, d)


def test_the_memory_plan_counts_four_bits() -> None:
    from transformers import AutoConfig

    mixture = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "vocab_size": 151936}
    shape = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4}
    sizes = Sizes.of(AutoConfig.for_model("qwen3_moe", **mixture, **shape, head_dim=128))
    assert sizes.parameters == pytest.approx(30.5e9, rel=0.01)
    needs = Needs(torch.device("cuda"), torch.bfloat16, 32, None, 8192, 0, merge=False, recompute=False)
    small = Needs(torch.device("cuda"), torch.bfloat16, 32, None, 8192, 0, merge=False, recompute=False, four_bit=True)
    assert Estimate.of(sizes, needs).base == 2 * sizes.parameters
    assert Estimate.of(sizes, small).base < 18e9
    assert "weights as nf4" in Estimate.of(sizes, small).describe(small)
