"""Families of models: log-probabilities, gradients and samples are the model's own, or the model is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import SamplingParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.local.base import families  # noqa: E402
from evsys_sdk.errors import BackendError  # noqa: E402

from .conftest import VOCABULARY, byte_tokenizer  # noqa: E402

type MakeClient = Callable[..., Any]

LENGTHS = (24, 35, 9, 29)
SHARED = 18
"""Tokens that the first two sequences begin with; more than the windows below."""

EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24,
    "num_key_value_heads": 4, "head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
DELTA = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
}  # fmt: skip
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", {}),
    "Qwen2": ("qwen2", {}),
    "Qwen3": ("qwen3", {}),
    "Mistral with a window": ("mistral", {"sliding_window": 8}),
    "Gemma": ("gemma", {}),
    "Gemma 2": ("gemma2", {**WINDOWS, "query_pre_attn_scalar": 16, "final_logit_softcapping": 3.0}),
    "Gemma 3": ("gemma3_text", {**WINDOWS, "query_pre_attn_scalar": 16}),
    "Phi": ("phi", {}),
    "Phi-3": ("phi3", {"sliding_window": 8}),
    "GPT-2": ("gpt2", {"n_inner": 96}),
    "GPT-NeoX": ("gpt_neox", {}),
    "OPT": ("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "StarCoder2": ("starcoder2", {"sliding_window": 8}),
    "StableLM": ("stablelm", {}),
    "OLMo": ("olmo", {}),
    "OLMo 2": ("olmo2", {}),
    "OLMo 3": ("olmo3", WINDOWS),
    "Cohere": ("cohere", {"logit_scale": 0.25}),
    "Cohere 2": ("cohere2", {**WINDOWS, "logit_scale": 0.25}),
    "Granite": ("granite", {"logits_scaling": 4.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5}),
    "Granite 4 without Mamba": (
        "granitemoehybrid",
        {"layer_types": ["attention"] * 2, "attention_multiplier": 0.2, "num_local_experts": 0, "logits_scaling": 4.0}
        | {"shared_intermediate_size": 96, "residual_multiplier": 0.5},
    ),
    "SmolLM3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "GLM": ("glm", {}),
    "GLM-4": ("glm4", {}),
    "Gemma 3n, shared keys": (
        "gemma3n_text",
        {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
        | {"num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.0] * 4, "intermediate_size": [96] * 4}
        | {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 16},
    ),
    "Gemma 4, shared keys": (
        "gemma4_text",
        {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
        | {"num_kv_shared_layers": 2, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 16}
        | {"global_head_dim": 32, "initializer_range": 0.3},
    ),
    "Nemotron": ("nemotron", {}),
    "EXAONE 4": ("exaone4", WINDOWS),
    "Seed-OSS": ("seed_oss", {}),
    "gpt-oss": ("gpt_oss", {**EXPERTS, **WINDOWS}),
    "Mixtral": ("mixtral", EXPERTS),
    "Qwen2-MoE": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 48}),
    "Qwen3-MoE": ("qwen3_moe", EXPERTS),
    "OLMoE": ("olmoe", EXPERTS),
    "DeepSeek V2": ("deepseek_v2", {**EXPERTS, **LATENT}),
    "DeepSeek V3": ("deepseek_v3", {**EXPERTS, **LATENT}),
    "GLM-4-MoE": ("glm4_moe", {**EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}),
    "Granite-MoE": ("granitemoe", {**EXPERTS, "attention_multiplier": 0.2, "residual_multiplier": 0.5}),
    "Qwen3.5": ("qwen3_5_text", DELTA),
    "Qwen3.5-MoE": ("qwen3_5_moe_text", {**EXPERTS, **DELTA, "shared_expert_intermediate_size": 48}),
    "Qwen3-Next": ("qwen3_next", {**EXPERTS, **DELTA, "shared_expert_intermediate_size": 48}),
    "OLMo hybrid": ("olmo_hybrid", {**DELTA, "linear_num_key_heads": 4, "linear_allow_neg_eigval": True}),
    "LFM2": ("lfm2", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "Mamba": ("mamba", {"state_size": 8}, "carry a state from token to token"),
    "RWKV": ("rwkv", {"attention_hidden_size": 64, "context_length": 64}, "carry a state from token to token"),
    "Granite 4": ("granitemoehybrid", {"layer_types": ["attention", "mamba"]}, r"\(\w+\) carry a state"),
    "Llama 4": (
        "llama4_text",
        {**EXPERTS, "layer_types": ["chunked_attention", "full_attention"]},
        "layers of the kind chunked_attention",
    ),
    "Falcon": ("falcon", {}, "its own code computes attention"),
    "Falcon with ALiBi": ("falcon", {"alibi": True}, "ALiBi"),
    "BLOOM": ("bloom", {"n_layer": 2, "n_head": 4}, "its own code computes attention"),
    "GPT-J": ("gptj", {"n_layer": 2, "n_head": 4, "n_embd": 64, "rotary_dim": 8}, "its own code computes attention"),
    "BART": ("bart", {"d_model": 64, "decoder_layers": 2, "decoder_ffn_dim": 96}, "counts positions by itself"),
    "BERT": ("bert", {"is_decoder": True}, "differ by .* from those of its forward pass"),
    "DiffLlama": ("diffllama", {}, "when tokens are decoded one by one"),
    "Doge": ("doge", {}, "its own mask"),
}


def build(folder: Path, arch: str, **config: Any) -> str:
    """A model of two layers with random weights, none of them 0 or 1."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "initializer_range": 0.15,
        "eos_token_id": VOCABULARY - 1,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    if arch == "falcon":
        del shape["head_dim"]  # it follows from the others, and may not be given
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(arch, **{**shape, **config})).float()
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.data += torch.randn_like(parameter) * 0.1
            elif "router" in name or name.endswith("gate.weight"):
                parameter.data = torch.randn_like(parameter) * 0.2
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def some_data() -> list[Datum]:
    rng = np.random.default_rng(0)
    start = rng.integers(0, 256, SHARED)
    sequences = [rng.integers(0, 256, length) for length in LENGTHS]
    for sequence in sequences[:2]:
        sequence[:SHARED] = start
    return [Datum.supervised(ids.tolist(), [0.0] * 3 + [1.0] * (len(ids) - 3)) for ids in sequences]


def adapted(client: Any) -> Any:
    """The client's adapter, made to change something."""
    generator = torch.Generator().manual_seed(5)
    adapter = client._state.adapter
    with torch.no_grad():
        for _, b in adapter.weights.values():
            b.copy_(torch.randn(b.shape, generator=generator) * 0.05)
    return adapter


class Reference:
    """The model as transformers makes it, in float64, whose weights are W + scale * B A; one sequence at a time."""

    def __init__(self, folder: str, adapter: Any) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
        )
        self._model.eval().requires_grad_(False)
        self.parameters: list[Any] = []
        self._replaced: dict[str, Any] = {}
        for name, (a, b) in adapter.weights.items():
            a, b = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
            self.parameters += [a, b]
            key, added = name if a.ndim == 3 else f"{name}.weight", adapter.scale * (b @ a)
            self._replaced[key] = self._model.get_parameter(key) + (added.T if adapter.transposed else added)

    def logprobs(self, tokens: Any) -> Any:
        """After each token, of all tokens."""
        inputs = {"input_ids": torch.as_tensor(tokens)[None], "use_cache": False}
        output = torch.func.functional_call(self._model, self._replaced, (), inputs)
        return output.logits[0].double().log_softmax(-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_computes_learns_and_samples_as_its_own_code_does(
    family: str, tmp_path: Path, make_client: MakeClient
) -> None:
    arch, config = FAMILIES[family]
    folder = build(tmp_path / "model", arch, **config)
    client = make_client(name=folder)
    reference = Reference(folder, adapted(client))
    data = some_data()
    # transformers computes the delta rule in float32 whatever the model is in, so the reference rounds as well.
    assert_like(reference, client, data, gradient_error=3e-5 if client._base.recurrent else 1e-5)
    assert_greedy(client, reference, [data[0].tokens[:5], data[1].tokens[:22], data[2].tokens[:1]])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_computes_the_same_on_a_gpu(family: str, tmp_path: Path, make_client: MakeClient) -> None:
    arch, config = FAMILIES[family]
    folder = build(tmp_path / "model", arch, **config)
    data = some_data()
    gradients: list[Any] = []
    for params in ({}, {"device": "cuda"}):
        client = make_client(name=folder, params=params)
        adapted(client)
        client.forward_backward(data, "cross_entropy").result()
        gradients.append(torch.cat([tensor.flatten().double().cpu() for tensor in client._state.optimizer._gradient]))
    assert float((gradients[0] - gradients[1]).abs().max()) <= 1e-4 * float(gradients[0].abs().max())

    client = make_client(name=folder, params={"device": "cuda", "dtype": "bfloat16", "exact": False})
    adapted(client)
    prompts = [datum.tokens[:length].tolist() for datum, length in zip(data, (5, 22, 1), strict=False)]
    pending = [client.sampler().result().sample(prompt, 2, SamplingParams(16, seed=1, stop=[])) for prompt in prompts]
    for prompt, operation in zip(prompts, pending, strict=True):
        for sample in operation.result():
            datum = Datum.supervised([*prompt, *sample.tokens], [0.0] * len(prompt) + [1.0] * 16)
            [again] = client.forward([datum]).result().logprobs
            # One token of a mixture may go to another expert because of rounding; most do not.
            assert np.median(np.abs(again[-16:] - np.array(sample.logprobs))) < 0.1


def assert_like(reference: Reference, client: Any, data: Sequence[Datum], *, gradient_error: float) -> None:
    """Assert that log-probabilities and gradients are those of the reference."""
    expected = [
        reference.logprobs(datum.tokens).gather(1, torch.from_numpy(datum.target_tokens)[:, None])[:, 0]
        for datum in data
    ]
    for found, logprobs in zip(client.forward(data).result().logprobs, expected, strict=True):
        np.testing.assert_allclose(found, logprobs.detach().numpy(), atol=1e-4)
    pairs = zip(data, expected, strict=True)
    loss = -sum((torch.from_numpy(datum.weights) * logprobs).sum() for datum, logprobs in pairs)
    client.forward_backward(data, "cross_entropy").result()
    gradients = torch.autograd.grad(loss, reference.parameters)
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    for found, gradient in zip(client._state.optimizer._gradient, gradients, strict=True):
        assert float((found - gradient).abs().max()) <= gradient_error * largest


def assert_greedy(client: Any, reference: Reference, prompts: Sequence[Any]) -> None:
    sampler = client.sampler().result()
    pending = [sampler.sample(prompt.tolist(), 1, SamplingParams(16, temperature=0.0, stop=[])) for prompt in prompts]
    for prompt, operation in zip(prompts, pending, strict=True):
        [sample] = operation.result()
        assert len(sample.tokens) == 16
        with torch.no_grad():
            logprobs = reference.logprobs([*prompt.tolist(), *sample.tokens])[len(prompt) - 1 : -1]
        assert sample.tokens == logprobs.argmax(-1).tolist()
        np.testing.assert_allclose(sample.logprobs, logprobs.max(-1).values.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused_with_its_reason(name: str, tmp_path: Path, make_client: MakeClient) -> None:
    arch, config, reason = REFUSED[name]
    folder = build(tmp_path / "model", arch, **config)
    with pytest.raises(BackendError, match=reason) as refusal:
        make_client(name=folder)
    assert folder in str(refusal.value)
    assert "Use a model of another architecture, such as Llama" in str(refusal.value)


def test_quantized_weights_are_refused(tmp_path: Path, make_client: MakeClient) -> None:
    folder = Path(build(tmp_path / "model", "llama"))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BackendError, match=r"stored quantized \(awq\)"):
        make_client(name=str(folder))


@pytest.mark.parametrize(
    ("arch", "config", "reason"),
    [
        ("mamba", {"state_size": 8}, "computes nothing by attention"),
        ("llama4_text", {**EXPERTS, "attention_chunk_size": 8, "intermediate_size_mlp": 96}, "does not work"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "does not work"),
    ],
)
def test_what_a_config_does_not_tell_is_found_by_trying(
    arch: str, config: dict[str, Any], reason: str, tmp_path: Path, make_client: MakeClient, monkeypatch: Any
) -> None:
    monkeypatch.setattr(families, "check_family", lambda model, config: None)
    folder = build(tmp_path / "model", arch, **config)
    with pytest.raises(BackendError, match=reason):
        make_client(name=folder)


def test_layers_that_text_never_goes_through_are_not_adapted(tmp_path: Path, make_client: MakeClient) -> None:
    text = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    folder = build(
        tmp_path / "model",
        "gemma3",
        text_config={**text, "vocab_size": VOCABULARY, "num_key_value_heads": 2, "head_dim": 16},
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=1,
    )
    client = make_client(name=folder)
    assert {name.split(".")[1] for name in client._state.adapter.weights} == {"language_model"}
    client.forward_backward(some_data(), "cross_entropy").result()


@pytest.mark.parametrize("family", ["GPT-2", "Qwen3-MoE", "Cohere", "Qwen3.5"])
def test_peft_loads_an_adapter_of_the_family_and_computes_the_same(
    family: str, tmp_path: Path, make_client: MakeClient, recwarn: pytest.WarningsRecorder
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    arch, config = FAMILIES[family]
    folder = build(tmp_path / "model", arch, **config)
    client = make_client(name=folder)
    adapted(client)
    ref = client.save_state("a").result()
    assert json.loads((Path(ref) / "adapter_config.json").read_text())["fan_in_fan_out"] == (family == "GPT-2")
    recwarn.clear()
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), ref)
    assert not [warning for warning in recwarn if "fan_in_fan_out" in str(warning.message)]
    for datum in some_data():
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
        expected = logits.log_softmax(-1).gather(1, torch.from_numpy(datum.target_tokens)[:, None])[:, 0]
        np.testing.assert_allclose(client.forward([datum]).result().logprobs[0], expected.numpy(), atol=1e-4)


def test_an_adapter_that_peft_has_made_for_gpt2_can_be_started_from(tmp_path: Path, make_client: MakeClient) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    arch, shape = FAMILIES["GPT-2"]
    folder = build(tmp_path / "model", arch, **shape)
    targets = ["c_attn", "c_fc"]
    config = peft.LoraConfig(r=8, lora_alpha=8, target_modules=targets, fan_in_fan_out=True, init_lora_weights=False)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), config)
    model.save_pretrained(tmp_path / "theirs")
    client = make_client(
        name=folder, init_from_checkpoint=str(tmp_path / "theirs"), params={"lora_targets": targets, "lora_alpha": 8}
    )
    [datum, *_] = some_data()
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
    expected = logits.log_softmax(-1).gather(1, torch.from_numpy(datum.target_tokens)[:, None])[:, 0]
    np.testing.assert_allclose(client.forward([datum]).result().logprobs[0], expected.numpy(), atol=1e-3)


def test_positions_that_change_their_meaning_with_length_limit_the_context(
    tmp_path: Path, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "rope_theta": 10000.0}
    folder = build(
        tmp_path / "model",
        "phi3",
        rope_parameters={**rope, "original_max_position_embeddings": 32},
        original_max_position_embeddings=32,
    )
    with caplog.at_level("WARNING"):
        client = make_client(name=folder)
    assert client.capabilities.context_length == 32
    assert "may have 32 tokens, not 128" in caplog.text
