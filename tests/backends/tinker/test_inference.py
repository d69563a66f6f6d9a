"""`inference: { kind: tinker }`: answers from a base model or a checkpoint, as the mock gives them in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import AdamParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.errors import BackendError
from evsys_sdk.registry import get_inference

from ...server.serving import ServerProcess
from .conftest import Connect

pytestmark = pytest.mark.tinker

ASKED: list[Any] = [{"role": "user", "content": "2+2?"}]


async def answers(client: Any, **options: Any) -> list[str]:
    completions = await client.complete(ASKED, max_tokens=12, temperature=1.0, seed=4, n=3, **options)
    return [completion.text for completion in completions]


async def test_a_base_model_answers_as_the_mock_does_in_this_process(server: ServerProcess) -> None:
    remote = get_inference("tinker")(model="tiny", server={"base_url": server.url})
    local = get_inference("mock")(model="tiny")
    try:
        assert await answers(remote) == await answers(local)
        assert remote.totals.completions == 3
        assert remote.totals.output_tokens == local.totals.output_tokens
        assert remote.totals.cost_usd is None
    finally:
        remote.close()
        local.close()


async def test_a_checkpoint_answers_from_what_was_learned(connect: Connect, server: ServerProcess) -> None:
    client = connect(server.url)
    text = client.tokenizer.apply_chat_template([*ASKED, {"role": "assistant", "content": "four"}])
    tokens = client.tokenizer.encode(text)
    for _ in range(60):
        client.forward_backward([Datum.supervised(tokens, [1.0] * len(tokens))], "cross_entropy")
        client.optim_step(AdamParams(1e-3)).result()
    ref = client.sampler("taught").result().ref
    taught = get_inference("tinker")(model="tiny", checkpoint=ref, server={"base_url": server.url})
    try:
        [completion] = await taught.complete(ASKED, max_tokens=12, temperature=0.0)
        assert completion.text == "four"
    finally:
        taught.close()


def test_a_checkpoint_that_is_not_there_is_refused(server: ServerProcess) -> None:
    with pytest.raises(BackendError, match="sampler found nothing"):
        get_inference("tinker")(
            model="tiny", checkpoint="tinker://no:train:0/sampler_weights/x", server={"base_url": server.url}
        )


def test_eval_model_can_ask_it(server: ServerProcess, tmp_path: Path) -> None:
    from evsys_sdk.eval.scored_model import client_params

    given = {"model_name": "tiny", "adapter_path": None, "checkpoint_path": "tinker://a/b"}
    params = client_params("tinker", given, {"server": {"base_url": server.url}})
    assert params == {"model": "tiny", "checkpoint": "tinker://a/b", "server": {"base_url": server.url}}
