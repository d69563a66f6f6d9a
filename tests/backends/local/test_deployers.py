"""What is shipped is what was trained: the adapter's logits come back from PEFT and transformers."""

from __future__ import annotations

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

    deployment = ship(source, "peft_dir", name="p")
    backend = LocalBackend(device="cpu", exact=True)
    handles = backend.prepare(model=ModelSpec(source.base_model), run_dir=Path("other"))
    sampler = handles["training_client"].open_sampler(str(source.weights)).result()
    ours = np.asarray(sampler.logprobs(PROMPT).result())[1:]
    backend.teardown(handles)
    theirs = with_adapter(source, deployment.location)
    assert np.allclose(ours, theirs[np.arange(len(PROMPT) - 1), PROMPT[1:]], atol=2e-4)


def test_a_merged_model_gives_the_adapters_logits(source: Source) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    deployment = ship(source, "merged_safetensors", name="p")
    merged = AutoModelForCausalLM.from_pretrained(deployment.location).eval()
    expected = with_adapter(source, str(source.weights))
    assert np.abs(logprobs_of(merged) - expected).max() < 1e-4
    assert np.abs(logprobs_of(load_base(source)) - expected).max() > 0.05  # the adapter changes something
    assert AutoTokenizer.from_pretrained(deployment.location).chat_template


def test_a_gguf_file_is_made_of_the_merged_model_by_the_converter(source: Source, tmp_path: Path) -> None:
    converter = tmp_path / "converter.py"
    converter.write_text(
        "import pathlib, sys\n"
        "folder, _, out, _, kind = sys.argv[1:]\n"
        "names = sorted(path.name for path in pathlib.Path(folder).iterdir())\n"
        "pathlib.Path(out).write_text(kind + ' ' + ' '.join(names))\n"
    )
    deployment = ship(source, "gguf", name="p", params={"outtype": "q8_0", "converter": str(converter)})
    kind, *names = (Path(deployment.location) / "model-q8_0.gguf").read_text().split()
    assert kind == "q8_0"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)


def test_a_converter_that_is_missing_or_fails_ships_nothing(source: Source, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"convert_hf_to_gguf\.py is no file\. Name convert_hf_to_gguf.py"):
        ship(source, "gguf", name="p")
    converter = tmp_path / "converter.py"
    converter.write_text("raise SystemExit('this architecture is not known')\n")
    with pytest.raises(DataError, match="exit code 1: this architecture is not known"):
        ship(source, "gguf", name="p", params={"converter": str(converter)})


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
