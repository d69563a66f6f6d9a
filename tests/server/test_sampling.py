"""What sampling requests may ask for, and what their answers leave alone; no server needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evsys_sdk.backends.client import Capabilities, TopLogprobs
from evsys_sdk.server.answer import Refusal
from evsys_sdk.server.tinker import requests
from evsys_sdk.server.tinker.sampling import _check_logprobs, _only_last  # pyright: ignore[reportPrivateUsage]


def test_what_a_client_does_not_want_stays_in_the_table_of_the_backend() -> None:
    kept = TopLogprobs(np.zeros((4, 2), np.int64), np.zeros((4, 2), np.float32))
    kept.logprobs.flags.writeable = False
    _, top = _only_last(1, np.zeros(4, np.float32), kept)
    assert top is not None
    assert np.isnan(top.logprobs).all(axis=1).tolist() == [True, True, True, False]
    assert not np.isnan(kept.logprobs).any()


def test_tokens_that_are_named_count_as_the_distributions_they_are_read_from() -> None:
    able = Capabilities("mock", 1 << 12, 1 << 13, frozenset(), 1e-4, top_k_logprobs=1 << 12)

    def check(length: int, **asked: Any) -> None:
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [1] * length}]}
        told = {"sampling_session_id": "a:sample:0", "seq_id": 0, "prompt": prompt, "sampling_params": {}, **asked}
        _check_logprobs(requests.SampleRequest.model_validate(told), length, 1, able)

    def name(length: int) -> dict[str, Any]:
        return {"data": [1] * (length - 1), "dtype": "int64", "shape": [length - 1, 1]}

    check(4097)
    check(4000, target_prompt_logprobs=name(4000))
    with pytest.raises(Refusal, match="shorten the prompt"):
        check(4097, target_prompt_logprobs=name(4097))
