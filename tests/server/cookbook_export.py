"""Exports weights of a server with tinker-cookbook's own functions, and asks the result what it would say.

    python cookbook_export.py make FOLDER             a tiny Llama to train
    python cookbook_export.py export URL FOLDER OUT   trains it a little, downloads, converts and merges it

Nothing of the cookbook or of `tinker` is patched. Prints what it saw as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cookbook_runs import byte_tokenizer

TEXT = list(b"the cookbook takes weights home")


def make(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokenizer = byte_tokenizer()
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, tie_word_embeddings=False, **shape)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(url: str, model: str) -> tuple[dict[str, str], list[float], list[float]]:
    """Where the weights are, and what the model thinks of the text before and after."""
    import tinker
    from tinker import types

    weights = [1.0] * (len(TEXT) - 1)
    inputs = {"target_tokens": TEXT[1:], "weights": weights}
    datum = types.Datum(model_input=types.ModelInput.from_ints(TEXT[:-1]), loss_fn_inputs=inputs)
    client = tinker.ServiceClient(base_url=url).create_lora_training_client(model, rank=4, seed=1)

    def think() -> list[float]:
        output = client.forward([datum], "cross_entropy").result()
        return output.loss_fn_outputs[0]["logprobs"].tolist()

    before = think()
    for _ in range(8):
        client.forward_backward([datum], "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    after = think()
    paths = {
        "external": client.save_weights_external("final").result().path,
        "state": client.save_state("final").result().path,
    }
    return paths, before, after


def think_of(folder: Path) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(torch.tensor([TEXT[:-1]])).logits[0].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(TEXT[1:])[:, None])[:, 0].tolist()


def hash_files(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def export(url: str, model: str, out: Path) -> dict[str, Any]:
    from tinker_cookbook import weights

    paths, before, after = train(url, model)
    for kind, path in paths.items():
        weights.download(tinker_path=path, output_dir=str(out / kind), base_url=url)
    adapter = str(out / "external")
    weights.build_lora_adapter(base_model=model, adapter_path=adapter, output_path=str(out / "peft"))
    weights.build_hf_model(base_model=model, adapter_path=adapter, output_path=str(out / "merged"))
    return {
        "before": before,
        "after": after,
        "base": think_of(Path(model)),
        "merged": think_of(out / "merged"),
        "downloaded": {kind: hash_files(out / kind) for kind in paths},
        "peft": sorted(path.name for path in (out / "peft").iterdir()),
    }


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        print(json.dumps(export(sys.argv[2], sys.argv[3], Path(sys.argv[4]))))
