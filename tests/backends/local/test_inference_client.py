"""`inference: local`, and the chat template as the tokenizer itself applies it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import AdamParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.errors import BackendError  # noqa: E402
from evsys_sdk.inference.renderer import get_renderer  # noqa: E402
from evsys_sdk.registry import get_inference  # noqa: E402

from .conftest import byte_tokenizer  # noqa: E402

CHAT: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "How are you? ünïcode"},
]


@pytest.fixture
def make(llama: str) -> Iterator[Callable[..., Any]]:
    clients: list[Any] = []

    def build(**params: Any) -> Any:
        clients.append(get_inference("local")(**{"model": llama, "device": "cpu", "dtype": "float32", **params}))
        return clients[-1]

    yield build
    for client in clients:
        client.close()


def answers(client: Any, n: int = 1, **options: Any) -> list[Any]:
    settings = {"max_tokens": 12, "temperature": 1.0, "seed": 1, **options}
    return asyncio.run(client.complete(CHAT, n=n, **settings))


def test_it_answers_and_counts(make: Callable[..., Any]) -> None:
    client = make()
    first, again = answers(client, n=3), answers(client, n=3)
    assert [sample.text for sample in first] == [sample.text for sample in again]
    assert len({sample.text for sample in first}) > 1
    assert first[0].usage.output_tokens <= 12
    assert (client.totals.requests, client.totals.completions, client.totals.cost_usd) == (2, 6, 0.0)
    assert isinstance(client.generate(prompt="hi", max_tokens=4, temperature=0.0), str)


def test_stop_texts_are_cut_off(make: Callable[..., Any]) -> None:
    client = make()
    [free] = answers(client, max_tokens=40)
    mark = free.text[5:7]
    [cut] = answers(client, max_tokens=40, stop=[mark])
    assert cut.text == free.text.partition(mark)[0]
    assert cut.stop_reason == "stop"


def test_it_answers_from_a_checkpoint(make: Callable[..., Any], client: Any) -> None:
    renderer = get_renderer(client.tokenizer)
    [rendered] = renderer.render([*CHAT, {"role": "assistant", "content": "Fine, thanks"}], "last_assistant")
    data = [Datum.supervised(rendered.tokens, rendered.weights)]
    for _ in range(80):
        client.forward_backward(data, "cross_entropy")
        client.optim_step(AdamParams(1e-2)).result()
    sampler, state = client.sampler("trained").result().ref, client.save_state("trained").result()
    for checkpoint in (sampler, state):
        [answer] = answers(make(checkpoint=checkpoint), max_tokens=40, temperature=0.0)
        assert (answer.text, answer.stop_reason) == ("Fine, thanks", "stop")


def test_a_checkpoint_that_is_not_there_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(BackendError, match="no complete checkpoint"):
        make(checkpoint="nowhere")


def test_prompts_are_what_the_tokenizers_own_template_gives() -> None:
    tokenizer = byte_tokenizer()
    renderer = get_renderer(tokenizer)
    own = tokenizer.apply_chat_template(CHAT, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert renderer.prompt(CHAT) == own
    conversation = [*CHAT, {"role": "assistant", "content": "Fine"}]
    [rendered] = renderer.render(conversation, "last_assistant")
    whole = tokenizer.apply_chat_template(conversation, tokenize=True, return_dict=False)
    assert rendered.tokens == whole[: len(rendered.tokens)]
    supervised = [token for token, weight in zip(rendered.tokens, rendered.weights, strict=True) if weight]
    assert tokenizer.decode(supervised) == "Fine<|im_end|>"
