"""Who is there and what they hold; no server needed."""

from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.server.answer import Refusal
from evsys_sdk.server.state.sessions import ClientSession, Sampler, Sessions


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
def session(sessions: Sessions) -> ClientSession:
    return sessions.create(display_name=None, user_metadata=None)


def sampler(session: ClientSession, number: int) -> Sampler:
    client: Any = object()
    return Sampler(f"{session.session_id}:sample:{number}", session.session_id, "tiny", None, client)


def test_the_samplers_used_last_are_kept(sessions: Sessions, session: ClientSession) -> None:
    samplers = [sampler(session, number) for number in range(65)]
    for used in samplers[:64]:
        session.keep(used)
    assert sessions.sampler(samplers[0].sampler_id) is samplers[0], "used, so it is not the next to go"
    session.keep(samplers[64])
    assert sessions.sampler(samplers[0].sampler_id) is samplers[0]
    with pytest.raises(Refusal, match="no sampler") as refused:
        sessions.sampler(samplers[1].sampler_id)
    assert refused.value.status == 404


def test_an_ended_session_is_distinguished_from_one_that_never_was(sessions: Sessions, session: ClientSession) -> None:
    assert sessions.end(session.session_id) is session
    for session_id, status in ((session.session_id, 410), ("never", 404)):
        with pytest.raises(Refusal) as refused:
            sessions.get(session_id)
        assert refused.value.status == status
    assert sessions.end(session.session_id) is None


def test_a_sign_of_life_keeps_a_session(sessions: Sessions, session: ClientSession) -> None:
    session.last_seen -= 100
    assert sessions.idle(50) == [session]
    sessions.touch(f"{session.session_id}:train:0:7")
    assert sessions.idle(50) == []
    sessions.touch("of a stranger")
