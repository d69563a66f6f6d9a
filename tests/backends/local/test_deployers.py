"""What is shipped says what was trained: the adapter's logits come back from PEFT, transformers and llama.cpp.

llama.cpp is asked through `xllamacpp`, in a Python of its own: EVSYS_XLLAMACPP_PYTHON names it, where it is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk import ExperimentConfig  # noqa: E402
from evsys_sdk.deploy.ship import ship  # noqa: E402
from evsys_sdk.deploy.source import Source, find_source  # noqa: E402
from evsys_sdk.errors import DataError  # noqa: E402
from evsys_sdk.experiment import Experiment  # noqa: E402

PROMPT = list(b"Which colour has number")
ARCHITECTURES = ("llama", "qwen2", "qwen3")
XLLAMACPP = os.environ.get("EVSYS_XLLAMACPP_PYTHON", "")


def train(folder: Path, model: str) -> Source:
    """A few steps with a rate high enough that the adapter matters."""
    rows = [
        {"messages": [{"role": "user", "content": f"number {n}"}, {"role": "assistant", "content": "red"}]}
        for n in range(8)
    ]
    config: dict[str, Any] = {
        "name": "shipped",
        "output_dir": str(folder / "outputs"),
        "run": {
            "name": "sft",
            "data": {"source_kind": "in_memory", "rows": rows},
            "model": {"name": model},
            "algorithm": {"kind": "sft", "params": {"num_epochs": 3, "batch_size": 4, "learning_rate": 0.02}},
            "backend": {"kind": "local", "params": {"device": "cpu", "exact": True}},
        },
    }
    result = Experiment(ExperimentConfig.model_validate(config)).run()
    assert result.runs[0].status == "completed", result.runs[0].error
    return find_source(str(result.path), checkpoint="final")


@pytest.fixture(params=ARCHITECTURES)
def source(request: pytest.FixtureRequest, tiny: Callable[[str], str], tmp_path: Path) -> Source:
    (tmp_path / ".evsys").mkdir()
    return train(tmp_path, tiny(request.param))


def logprobs_of(model: Any) -> np.ndarray[Any, Any]:
    import torch

    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([PROMPT])).logits[0].double(), -1).numpy()


def load_base(source: Source) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(source.base_model, dtype=torch.float32).eval()


def with_adapter(source: Source, adapter: str) -> np.ndarray[Any, Any]:
    """What PEFT makes of base and adapter: the independent reference."""
    from peft import PeftModel

    return logprobs_of(PeftModel.from_pretrained(load_base(source), adapter).eval())


def test_the_shipped_adapter_is_the_sampler_that_was_scored(source: Source) -> None:
    from evsys_sdk.backends.client import ModelSpec
    from evsys_sdk.backends.local.backend import LocalBackend

    made = ship(source, "peft_dir", name="p")
    backend = LocalBackend(device="cpu", exact=True)
    handles = backend.prepare(model=ModelSpec(source.base_model), run_dir=Path("other"))
    sampler = handles["training_client"].open_sampler(str(source.weights)).result()
    ours = np.asarray(sampler.logprobs(PROMPT).result())[1:]
    backend.teardown(handles)
    theirs = with_adapter(source, made.location)
    assert np.allclose(ours, theirs[np.arange(len(PROMPT) - 1), PROMPT[1:]], atol=2e-4)


def test_a_merged_model_gives_the_adapters_logits(source: Source) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = ship(source, "merged_safetensors", name="p")
    merged = AutoModelForCausalLM.from_pretrained(made.location).eval()
    expected = with_adapter(source, str(source.weights))
    assert np.abs(logprobs_of(merged) - expected).max() < 1e-4
    assert np.abs(logprobs_of(load_base(source)) - expected).max() > 0.05  # the adapter changes something
    assert AutoTokenizer.from_pretrained(made.location).chat_template


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_a_gguf_file_holds_the_merged_weights(source: Source, outtype: str) -> None:
    from gguf import GGUFReader, quants
    from transformers import AutoModelForCausalLM

    made = ship(source, "gguf", name="p", params={"outtype": outtype})
    reader = GGUFReader(Path(made.location) / f"model-{outtype}.gguf")
    tensors = {one.name: quants.dequantize(one.data, one.tensor_type) for one in reader.tensors}
    merged = AutoModelForCausalLM.from_pretrained(ship(source, "merged_safetensors", name="m").location)
    weights = {name: value.detach().numpy() for name, value in merged.state_dict().items()}
    up = weights["model.layers.1.mlp.up_proj.weight"]
    worst = np.abs(tensors["blk.1.ffn_up.weight"] - up).max()
    assert worst <= np.abs(up).max() * (2**-11 if outtype == "f16" else 1 / 250)
    assert len(tensors) == len(weights) - ("output.weight" not in tensors and "lm_head.weight" in weights)
    assert reader.fields["tokenizer.chat_template"].contents().startswith("{% for m in messages %}")
    assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == merged.config.vocab_size


@pytest.mark.skipif(not XLLAMACPP, reason="needs EVSYS_XLLAMACPP_PYTHON, a Python that has xllamacpp")
@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_llama_cpp_gives_the_adapters_log_probabilities(source: Source, outtype: str) -> None:
    made = ship(source, "gguf", name="p", params={"outtype": outtype})
    command = [XLLAMACPP, str(Path(__file__).with_name("gguf_child.py")), f"{made.location}/model-{outtype}.gguf"]
    done = subprocess.run([*command, json.dumps(PROMPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.rpartition("RESULT")[2])
    expected = with_adapter(source, str(source.weights))[-1]
    assert next(int(id) for id, _ in found) == int(expected.argmax())
    worst = max(abs(logprob - expected[int(id)]) for id, logprob in found)
    # Eight bits, of weights and of what flows between them, are told from a wrong layout by what the adapter changes.
    changed = np.abs(expected - logprobs_of(load_base(source))[-1]).max()
    assert worst < (0.02 if outtype == "f16" else 0.1 * changed)


def test_shapes_that_are_not_written_are_refused(tiny: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / ".evsys").mkdir()
    with pytest.raises(DataError, match="'gemma3_text' is not written as GGUF here"):
        ship(train(tmp_path, tiny("gemma3_text")), "gguf", name="p")


def test_a_changed_output_layer_no_longer_shares_the_embedding(tiny: Callable[[str], str], tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from evsys_sdk.deploy.weights import merge_adapter

    base = tmp_path / "base"
    model: Any = AutoModelForCausalLM.from_pretrained(tiny("qwen2"), dtype=torch.float32)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(base)
    embedding = model.get_input_embeddings().weight.detach().clone()
    adapted: Any = get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False))
    expected = logprobs_of(adapted.eval())
    adapted.save_pretrained(str(tmp_path / "adapter"))
    merged = merge_adapter(cast(Any, SimpleNamespace(weights=tmp_path / "adapter")), base, "float32")
    assert np.abs(logprobs_of(merged.eval()) - expected).max() < 1e-4
    assert torch.equal(merged.get_input_embeddings().weight, embedding)
    assert merged.config.tie_word_embeddings is False
