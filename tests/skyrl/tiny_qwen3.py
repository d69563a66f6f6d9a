"""A Qwen3 of 0.1 million parameters with its own tokenizer, made on the spot. Runs in SkyRL's environment.

    python tests/skyrl/tiny_qwen3.py FOLDER

It is trained for some seconds on sentences made up here: adapters cover attention and feed-forward layers only, and
these cannot lead to a token whose embedding is small and random. The seed is fixed, so it is the same model each time.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import thin_install  # noqa: F401 (before SkyRL)
from flax import nnx
from jax import numpy as jnp
from skyrl.tx.models.configs import Qwen3Config
from skyrl.tx.models.qwen3 import Qwen3ForCausalLM
from skyrl.tx.utils.models import save_safetensors
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, PreTrainedTokenizerFast

VOCABULARY, LENGTH, BATCH, STEPS = 512, 64, 16, 300
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "dtype": "float32",
    "vocab_size": VOCABULARY,
    "eos_token_id": SPECIAL.index("<|im_end|>"),
    "pad_token_id": SPECIAL.index("<|endoftext|>"),
}


def main() -> None:
    """Write the model into the folder."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    chats = made_up_chats(600)
    tokenizer = train_tokenizer(chats)
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1), encoding="utf-8")
    loss = train(folder, [token for chat in chats for token in tokenizer(chat)["input_ids"]])
    print(json.dumps({"model": str(folder), "loss": loss}))


def made_up_chats(count: int) -> list[str]:
    """Short conversations with few words and a simple order."""
    chance = random.Random(0)
    who = ["the cat", "a dog", "my friend", "the teacher", "one bird", "the old king", "a child", "Paris", "France"]
    does = ["likes", "sees", "paints", "sends", "plays with", "sets", "answers", "asks for", "forgets"]
    what = ["music", "the weather", "an alarm", "a letter", "four and five", "the capital", "bread", "some email"]
    ask = ["who {does} {what}?", "what of {who}?", "tell me about {what}", "one two three: {what}"]

    def fill(text: str) -> str:
        return text.format(who=chance.choice(who), does=chance.choice(does), what=chance.choice(what))

    return [
        f"<|im_start|>user\n{fill(chance.choice(ask))}<|im_end|>\n"
        f"<|im_start|>assistant\n{fill('{who} {does} {what}.')}<|im_end|>\n"
        for _ in range(count)
    ]


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level pairs, so that every text can be written."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    # letters far beyond the sentences, so that there are as many tokens as the model has places for
    tokenizer.train_from_iterator([*texts, *(json.dumps(CONFIG), __doc__ or "", CHAT_TEMPLATE) * 9], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0], chat_template=CHAT_TEMPLATE
    )


def train(folder: Path, tokens: list[int]) -> float:
    """All weights, by Adam; returns the last loss."""
    config = Qwen3Config(
        AutoConfig.from_pretrained(folder), max_lora_adapters=0, max_lora_rank=0, shard_attention_heads=True
    )
    mesh = jax.make_mesh((1, 1, 1), ("fsdp", "ep", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    with jax.set_mesh(mesh), nnx.use_eager_sharding(True):
        model = Qwen3ForCausalLM(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
        step = nnx.jit(learn)
        chance = np.random.default_rng(0)
        # the whole vocabulary in one order, again and again: few of its tokens are in the sentences
        text = np.array([*tokens, *chance.permutation(VOCABULARY).tolist() * (len(tokens) // VOCABULARY)], np.int32)
        loss = float("nan")
        for _ in range(STEPS):
            starts = chance.integers(0, len(text) - LENGTH - 1, BATCH)
            rows = np.stack([text[start : start + LENGTH + 1] for start in starts])
            loss = step(model, optimizer, jnp.asarray(rows))
        save_safetensors(config, model, folder / "model.safetensors", filter_fn=is_of_qwen3)
    return float(loss)


def is_of_qwen3(path: tuple[Any, ...]) -> bool:
    """SkyRL's models have more than others know of."""
    return not any("connector" in str(part) for part in path)


def learn(model: Qwen3ForCausalLM, optimizer: nnx.Optimizer, rows: jax.Array) -> jax.Array:
    def loss(model: Qwen3ForCausalLM) -> jax.Array:
        inputs, targets = rows[:, :-1], rows[:, 1:]
        output = model(inputs, attention_mask=jnp.ones_like(inputs), is_training=True)
        return -model.compute_logprobs(output.last_hidden_state, targets).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


if __name__ == "__main__":
    main()
