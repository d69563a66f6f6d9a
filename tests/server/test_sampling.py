"""What sampling requests may ask for, and what their answers leave alone; no server needed."""

from __future__ import annotations

import numpy as np

from evsys_sdk.backends.client import TopLogprobs
from evsys_sdk.server.tinker.sampling import _only_last  # pyright: ignore[reportPrivateUsage]


def test_what_a_client_does_not_want_stays_in_the_table_of_the_backend() -> None:
    top_logprobs = TopLogprobs(np.zeros((4, 2), np.int64), np.zeros((4, 2), np.float32))
    top_logprobs.logprobs.flags.writeable = False
    _, top = _only_last(1, np.zeros(4, np.float32), top_logprobs)
    assert top is not None
    assert np.isnan(top.logprobs).all(axis=1).tolist() == [True, True, True, False]
    assert not np.isnan(top_logprobs.logprobs).any()
