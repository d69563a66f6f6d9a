"""A shadow hears what users ask; they never notice it, and what it would have said decides about it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.deploy.catalog import DeployedModels
from evsys_sdk.deploy.deployments import Deployments
from evsys_sdk.deploy.policy import Shadow
from evsys_sdk.deploy.ship import ship
from evsys_sdk.deploy.source import find_source
from evsys_sdk.errors import EvalError
from evsys_sdk.loop.live_scores import TracedScores, count_shadow
from evsys_sdk.loop.traces.request_log import RequestLog
from evsys_sdk.loop.traces.store import LiveStore, TraceStore
from evsys_sdk.server.app import App
from evsys_sdk.server.service import Service
from evsys_sdk.server.settings import ServeSettings
from evsys_sdk.server.shadow import Shadows
from evsys_sdk.server.trace_log import ShadowAnswer

from ..server.serving import ServerProcess

POLICY = "target: {metric: test/x/pass@1}\nrollout: {min_scores: 5, margin: 2.5, stages: [0.25]}\n"


@pytest.fixture
def shadowed(trained: Path) -> Path:
    for share in (None, 1.0):
        ship(find_source("routing"), "openai_server", name="production", shadow=share)
    return trained


@asynccontextmanager
async def open_server(folder: Path, **settings: Any) -> AsyncGenerator[httpx.AsyncClient]:
    log = RequestLog(LiveStore("live"))
    service = Service.start(ServeSettings(state_dir=folder / "state", **settings), DeployedModels(), log)
    transport = httpx.ASGITransport(app=log.wrap(App(service)))  # pyright: ignore[reportArgumentType]
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
            yield client
            while service.shadows is not None and service.shadows.waiting:
                await asyncio.sleep(0.01)
    finally:
        await service.close()
        log.close()


def ask(number: int, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": f"Which colour has number {number}? ann@example.com"}]
    return {"model": "production", "messages": said, "max_tokens": 6, "temperature": 0, **more}


def shadows() -> list[dict[str, Any]]:
    return list(TraceStore("live").shadows.read())


async def test_both_answers_are_kept_and_users_see_one_of_them(shadowed: Path) -> None:
    async with open_server(shadowed) as http:
        whole = (await http.post("/v1/chat/completions", json=ask(1, n=2, logprobs=True))).json()
        streamed = (await http.post("/v1/chat/completions", json=ask(1, stream=True))).text
        alone = (await http.post("/v1/chat/completions", json=ask(1, model="production.2"))).json()
    assert whole["model"] == "production.1"
    assert '"model":"production.1"' in streamed
    assert "production.2" not in json.dumps(whole) + streamed
    given = {one["id"]: one for one in TraceStore("live").read() if one["model"] == "production.1"}
    assert set(given) == {one["id"] for one in shadows()}
    assert len(given) == 2
    for one in shadows():
        assert (one["model"], one["reward"]) == ("production.2", None)
        assert one["messages"][0] == given[one["id"]]["messages"][0]
        assert one["messages"][-1]["content"] == alone["choices"][0]["message"]["content"]
    assert "ann@example.com" not in (shadowed / ".evsys/traces/live/shadows.jsonl").read_text("utf-8")


async def test_a_candidate_that_cannot_answer_harms_nobody_and_has_earned_nothing(shadowed: Path) -> None:
    shutil.rmtree(shadowed / ".evsys/deployments/production/2")
    async with open_server(shadowed) as http:
        for stream in (False, True):
            answer = await http.post("/v1/chat/completions", json=ask(1, stream=stream))
            assert answer.status_code == 200
            assert "error" not in answer.text
    assert [(one["reward"], one["feedback"][0]["name"]) for one in shadows()] == [(0.0, "failed")] * 2
    assert count_shadow("live", "production.2").to_dict() == {"answered": 2, "failed": 2, "missed": 0}


async def test_only_who_is_let_in_is_shadowed(shadowed: Path) -> None:
    async with open_server(shadowed, api_key="tml-secret") as http:
        assert (await http.post("/v1/chat/completions", json=ask(1))).status_code == 401
        headers = {"authorization": "Bearer tml-secret"}
        refused = await http.post("/v1/chat/completions", json=ask(1, temperature=-1), headers=headers)
        assert refused.status_code == 400
    assert shadows() == []


async def test_a_server_that_keeps_nothing_asks_a_shadow_nothing_and_says_so(
    shadowed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service.start(ServeSettings(state_dir=shadowed / "state"), DeployedModels())
    transport = httpx.ASGITransport(app=App(service))  # pyright: ignore[reportArgumentType]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:
        for _ in range(2):
            assert (await http.post("/v1/chat/completions", json=ask(1))).status_code == 200
    await service.close()
    assert [one.getMessage() for one in caplog.records if "shadow" in one.getMessage()] == [
        "production.2 is to be a shadow, but nothing is kept here. Use --traces."
    ]


class Kept:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.answers: list[ShadowAnswer] = []
        self.dropped: list[str] = []

    def wrap(self, app: Any) -> Any:
        return app

    def keep_shadow(self, answer: ShadowAnswer) -> None:
        self.answers.append(answer)

    def count_dropped(self, candidate: str) -> None:
        self.dropped.append(candidate)

    def take_feedback(self, fields: Any) -> dict[str, Any] | None:
        return None


async def test_a_slow_candidate_is_dropped_and_counted(project: Path) -> None:
    kept, go_on = Kept(), asyncio.Event()

    async def draw() -> dict[str, Any]:
        await go_on.wait()
        return {"choices": []}

    waiting = Shadows(kept)
    for number in range(100):
        waiting.add(str(number), "production.2", [], draw, size=10)
    waiting.add("long", "production.2", [], draw, size=10_000_000)
    assert len(kept.dropped) == 37
    go_on.set()
    while waiting.waiting:
        await asyncio.sleep(0)
    assert [one.id for one in kept.answers] == [str(number) for number in range(64)], "the first, in their order"
    go_on.clear()
    waiting.add("last", "production.2", [], draw, size=10)
    await waiting.close()
    assert len(kept.dropped) == 38


async def test_what_a_shadow_missed_is_noted(shadowed: Path) -> None:
    log = RequestLog(LiveStore("live"))
    for _ in range(3):
        log.count_dropped("production.2")
    log.close()
    assert count_shadow("live", "production.2").missed == 3
    assert count_shadow("live", "production.1").missed == 0


def answer(number: int, text: str, store: LiveStore, **more: Any) -> None:
    said = [{"role": "user", "content": f"number {number}?"}, {"role": "assistant", "content": text}]
    store.add([{"id": f"c{number}", "time": 2e9 + number, "messages": said, **more}], "openai_chat")


@pytest.fixture
def answered(shadowed: Path) -> Path:
    """Ten requests: the live answer is `red` and always found good, that of the shadow `red` for even numbers."""
    live = LiveStore("live")
    for number in range(10):
        answer(number, "red", live, model="production.1", feedback="up")
        answer(number, "red" if number % 2 == 0 else "blue", LiveStore(live.store.shadows), model="production.2")
    return shadowed


def pairs_of(policy: Shadow, since: float = 0.0) -> list[tuple[float, float]]:
    known = Deployments.read()
    both = known.find("production.2"), known.find("production.1")
    return list(TracedScores("live", policy).pairs(*both, since))


def test_pairs_are_scored_against_what_users_found_right_and_once(answered: Path) -> None:
    expected = [(float(number % 2 == 0), 1.0) for number in range(10)]
    assert pairs_of(Shadow()) == expected
    scores = Path(".evsys/traces/live/shadow-scores.jsonl")
    before = scores.read_bytes()
    assert pairs_of(Shadow()) == expected
    assert scores.read_bytes() == before
    answer(10, "red", LiveStore("live"), model="production.1")  # nobody has said what is right
    answer(10, "red", LiveStore(TraceStore("live").shadows), model="production.2")
    assert pairs_of(Shadow()) == expected
    Path("said.jsonl").write_text(json.dumps({"response_id": "c10", "correction": "green"}) + "\n", "utf-8")
    assert main(["traces", "feedback", "said.jsonl", "--name", "live"]) == 0
    assert pairs_of(Shadow()) == [*expected, (0.0, 0.0)]


def test_a_verifier_that_expects_nothing_scores_all(answered: Path) -> None:
    policy = Shadow.model_validate(
        {"verifier": {"kind": "regex_match", "params": {"pattern": "^r"}}, "expects": "nothing"}
    )
    assert pairs_of(policy)[:2] == [(1.0, 1.0), (0.0, 1.0)]
    assert pairs_of(policy, since=3e9) == pairs_of(policy), "what was scored stays"


def test_a_verifier_that_fails_is_an_error_and_no_score(answered: Path) -> None:
    policy = Shadow.model_validate({"verifier": {"kind": "exact_match"}, "expects": "nothing"})
    with pytest.raises(EvalError, match="exact_match"):
        pairs_of(policy)
    assert not Path(".evsys/traces/live/shadow-scores.jsonl").read_bytes()


def test_from_the_command_line(answered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("gate.yaml").write_text(POLICY, "utf-8")
    assert main(["deployments", "list"]) == 0
    assert "shadows 100% of the requests" in capsys.readouterr().out
    assert main(["deployments", "show", "production.2", "--traces", "live"]) == 0
    assert "10 requests answered, 0 of them without an answer" in capsys.readouterr().out
    assert main(["deployments", "step", "production", "--policy", "gate.yaml", "--traces", "live", "--json"]) == 0
    step = json.loads(capsys.readouterr().out)
    assert (step["action"], step["share"], step["n"]) == ("next", 0.25, 5)
    assert main(["deployments", "show", "production.2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["share"], shown["shadow"]) == (0.25, None)


def test_the_openai_client_asks_a_real_server_that_has_a_shadow(shadowed: Path) -> None:
    openai = pytest.importorskip("openai", reason="needs the openai package: run make test-clients")
    pytest.importorskip("uvicorn", reason="needs the extra server: run make test-clients")
    ids: list[str] = []
    with ServerProcess(shadowed / "state", "--traces", "live") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="tml-any", max_retries=0)
        for number in range(6):
            asked = ask(number, stream=number % 2 == 1)
            found = client.chat.completions.create(**asked)
            chunks = list(found) if asked["stream"] else [found]
            assert {one.model for one in chunks} == {"production.1"}
            ids.append(chunks[0].id)
        said = {"response_id": ids[0], "correction": "green"}
        taken = client.post("/feedback", body=said, cast_to=dict[str, Any])
        assert taken["state"] == "added"
        client.close()
    counts = count_shadow("live", "production.2")
    assert counts.answered + counts.missed == 6
    assert sum(one.get("correction") == "green" for one in TraceStore("live").read()) == 1
