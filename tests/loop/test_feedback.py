"""What people say about an answer later is joined to it: once, by its id, and what is corrected is learned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.errors import ConfigError, DataError
from evsys_sdk.loop.decider import decide
from evsys_sdk.loop.system import SystemConfig
from evsys_sdk.loop.traces.feedback_log import import_feedback
from evsys_sdk.loop.traces.request_log import RequestLog
from evsys_sdk.loop.traces.rounds import seal_round
from evsys_sdk.loop.traces.store import LiveStore, TraceStore, import_traces
from evsys_sdk.loop.traces.trace import RewardRule
from evsys_sdk.server.app import App
from evsys_sdk.server.service import Service
from evsys_sdk.server.settings import ServeSettings

from .conftest import chat

PATH = "/v1/feedback"
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@asynccontextmanager
async def open_server(folder: Path, *rules: RewardRule, **settings: Any) -> AsyncGenerator[httpx.AsyncClient]:
    log = RequestLog(LiveStore("served"), rules)
    service = Service.start(ServeSettings(state_dir=folder / "state", models=("tiny",), **settings), None, log)
    transport = httpx.ASGITransport(app=App(service))  # pyright: ignore[reportArgumentType]
    headers = {"x-api-key": settings.get("api_key", "")}
    try:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", timeout=60, headers=headers
        ) as client:
            yield client
    finally:
        await service.close()
        log.close()


async def say(http: httpx.AsyncClient, id: str, **fields: Any) -> httpx.Response:
    return await http.post(PATH, json={"response_id": id, **fields})


async def ask(http: httpx.AsyncClient) -> str:
    return (await http.post("/v1/chat/completions", json=ASKED)).json()["id"]


def served() -> list[dict[str, Any]]:
    return list(TraceStore("served").read())


async def test_feedback_about_an_answer_is_its_reward_and_says_where_it_came_from(project: Path) -> None:
    async with open_server(project, RewardRule("stars", 1, 5)) as http:
        id = await ask(http)
        answer = await say(http, id, name="stars", value=4, comment="thanks, bob@example.com")
        assert (answer.status_code, answer.json()["state"], answer.json()["late"]) == (200, "added", False)
    [trace] = served()
    assert trace["reward"] == 0.75
    [entry] = trace["feedback"]
    assert (entry["name"], entry["value"], entry["scale"], entry["via"]) == ("stars", 4, [1, 5], "server")
    assert "bob@example.com" not in (project / ".evsys/traces/served/feedback.jsonl").read_text("utf-8")


@pytest.mark.parametrize(("value", "reward"), [(1, 0.0), (5, 1.0), ("3", 0.5), (True, None)])
async def test_numbers_are_numbers_and_thumbs_are_thumbs(project: Path, value: Any, reward: float | None) -> None:
    async with open_server(project, RewardRule("stars", 1, 5)) as http:
        await say(http, await ask(http), name="stars", value=value)
    assert served()[0]["reward"] == reward


async def test_repeated_feedback_counts_once_and_changed_feedback_replaces_it(project: Path) -> None:
    async with open_server(project) as http:
        id = await ask(http)
        states = [(await say(http, id, value=value)).json()["state"] for value in ("down", "down", "up")]
        assert states == ["added", "known", "changed"]
        assert (await say(http, id, name="other", value=0.5)).json()["state"] == "added"
    [trace] = served()
    assert trace["reward"] == 0.75


async def test_an_id_that_no_one_was_given_is_refused_and_leaves_nothing(project: Path) -> None:
    async with open_server(project) as http:
        id = await ask(http)
        for forged in ("chatcmpl-000000000000000000000000", id[:-1] + ("0" if id[-1] != "0" else "1"), id + "0"):
            answer = await say(http, forged, value="up")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")
    assert served()[0]["feedback"] == []
    assert (project / ".evsys/traces/served/feedback.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "give a value or a correction"),
        ({"value": [1]}, "value"),
        ({"value": "x" * 201}, "200 characters"),
        ({"value": "up", "colour": "red"}, "colour"),
        ({"value": "up", "name": ""}, "name"),
        ({"correction": "x" * 200_000}, "correction"),
    ],
)
async def test_what_is_no_feedback_is_refused(project: Path, fields: dict[str, Any], said: str) -> None:
    async with open_server(project) as http:
        answer = await say(http, await ask(http), **fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


async def test_no_one_can_fill_the_disk_by_one_answer(project: Path) -> None:
    async with open_server(project) as http:
        id = await ask(http)
        codes = [(await say(http, id, name=f"n{number}", value=1)).status_code for number in range(25)]
        assert codes == [200] * 20 + [400] * 5
        moods = [(await say(http, id, name="n0", value=number % 2)).status_code for number in range(60)]
        assert moods[:49] == [200] * 49
        assert 400 in moods[49:]
        assert (await http.post(PATH, content=b" " * 2_000_000)).status_code == 413
    assert len((project / ".evsys/traces/served/feedback.jsonl").read_bytes().splitlines()) == 20 + 49


async def test_the_key_for_feedback_opens_nothing_else(project: Path) -> None:
    with pytest.raises(ConfigError, match="another"):
        ServeSettings(state_dir=project, api_key="tml-a", feedback_key="tml-a")
    async with open_server(project, api_key="tml-all", feedback_key="only-feedback") as http:
        id = await ask(http)
        http.headers["x-api-key"] = "only-feedback"
        assert (await say(http, id, value="up")).status_code == 200
        for path in ("/v1/chat/completions", "/v1/completions", "/api/v1/create_session"):
            assert (await http.post(path, json=ASKED)).status_code == 401
        assert (await http.get("/v1/models")).status_code == 401
        http.headers["x-api-key"] = "no"
        assert (await say(http, id, value="up")).status_code == 401
        http.headers["x-api-key"] = "tml-all"
        assert (await say(http, id, value="up")).json()["state"] == "known"


async def test_without_traces_there_is_nothing_to_say_it_about(project: Path) -> None:
    service = Service.start(ServeSettings(state_dir=project / "state", models=("tiny",)))
    transport = httpx.ASGITransport(app=App(service))  # pyright: ignore[reportArgumentType]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answer = await say(http, "chatcmpl-1", value="up")
    await service.close()
    assert answer.status_code == 404
    assert "--traces" in answer.json()["error"]["message"]


async def test_many_say_something_at_once(project: Path) -> None:
    async with open_server(project) as http:
        ids = [await ask(http) for _ in range(4)]
        answers = await asyncio.gather(*(say(http, id, value="up") for id in ids for _ in range(5)))
        assert sorted(answer.json()["state"] for answer in answers) == ["added"] * 4 + ["known"] * 16
    assert [one["reward"] for one in served()] == [1.0] * 4


def test_a_file_of_feedback_is_joined_to_traces_of_any_producer(project: Path, write: Callable[..., Path]) -> None:
    import_traces("support", [write("log.jsonl", *(chat(number, "q?", "a", feedback="up") for number in range(3)))])
    text = write(
        "said.jsonl",
        {"id": "c0", "score": 0.0},
        {"response_id": "c1", "value": "down", "name": "thumbs"},
        {"response_id": "nobody", "value": "up"},
        {"response_id": "c2"},
        "not json",
    )
    report = import_feedback("support", [text])
    assert (report.added, report.unknown, report.bad) == (2, ["nobody"], 2)
    assert [one["reward"] for one in TraceStore("support").read()] == [0.0, 0.5, 1.0], "the same name says it anew"
    again = import_feedback("support", [text])
    assert (again.added, again.known) == (0, 2)


def test_feedback_that_comes_late_is_kept_and_changes_no_round(
    project: Path, write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    import_traces("support", [write("log.jsonl", *(chat(number, f"q {number}?", "a") for number in range(10)))])
    sealed_round = seal_round("support", share=0.3)
    before = (project / ".evsys/traces/support/round-1/train.jsonl").read_bytes()
    text = write("said.jsonl", {"response_id": "c0", "value": "down"}, {"response_id": "c99", "value": "up"})
    assert main(["traces", "feedback", str(text), "--name", "support"]) == 2
    printed = capsys.readouterr().out
    assert "1 about traces that a round has taken" in printed
    assert '"c99"' in printed
    assert (project / ".evsys/traces/support/round-1/train.jsonl").read_bytes() == before
    import_traces("support", [write("more.jsonl", *(chat(number, f"w {number}?", "b") for number in range(20, 30)))])
    later = seal_round("support", share=0.3, min_reward=None)
    assert (sealed_round.rows, later.rows) == (7, 14)
    assert next(iter(TraceStore("support").read()))["reward"] == 0.0


def test_feedback_needs_traces(project: Path, write: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="no traces in 'support'"):
        import_feedback("support", [write("said.jsonl", {"response_id": "c0", "value": "up"})])
    assert not (project / ".evsys/traces/support").exists()


def test_a_correction_is_what_is_learned_and_expected(project: Path, write: Callable[..., Path]) -> None:
    import_traces("support", [write("log.jsonl", *(chat(number, f"q {number}?", "wrong") for number in range(10)))])
    text = write("said.jsonl", *({"response_id": f"c{n}", "correction": f"right {n}"} for n in range(10)))
    assert import_feedback("support", [text]).added == 10
    assert {one["reward"] for one in TraceStore("support").read()} == {0.0}, "the answer that was given was wrong"
    seal_round("support", share=0.3, min_reward=0.5)
    folder = project / ".evsys/traces/support/round-1"
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text("utf-8").splitlines()]
    assert [row["messages"][-1]["content"] for row in rows] == [f"right {n}" for n in range(7)]
    assert all(row["metadata"]["corrected"] for row in rows)
    tasks = [json.loads(line) for line in (folder / "tasks.jsonl").read_text("utf-8").splitlines()]
    assert [task["verifier"]["expected"] for task in tasks] == ["right 7", "right 8", "right 9"]


def test_an_answer_that_was_corrected_to_itself_was_right(project: Path, write: Callable[..., Path]) -> None:
    import_traces("support", [write("log.jsonl", chat(0, "q?", "right"))])
    import_feedback("support", [write("said.jsonl", {"response_id": "c0", "correction": " right\n"})])
    [trace] = TraceStore("support").read()
    assert trace["reward"] == 1.0


def test_corrections_are_lessons_and_such_that_contradict_what_is_settled_are_left_out(
    project: Path, write: Callable[..., Path]
) -> None:
    system = SystemConfig.model_validate(
        {"name": "s", "traces": {"store": "s"}, "experiment": "x", "gate": "y", "decide": {"min_new": 20}}
    )
    known = [chat(n, f"does ann{n} pay?", "sure", feedback="up") for n in range(40)]
    import_traces("s", [write("known.jsonl", *known)])
    seal_round("s", share=0.2)
    fresh = [chat(100 + n, f"may bob{n} leave early today?", "no") for n in range(20)]
    poison = [chat(200 + n, f"does eve{n} pay?", "sure", feedback="up") for n in range(20)]
    import_traces("s", [write("fresh.jsonl", *fresh, *poison)])
    assert not decide(system).learn
    corrections = [{"response_id": f"c{100 + n}", "correction": "yes"} for n in range(20)]
    import_feedback("s", [write("said.jsonl", *corrections)])
    decision = decide(system)
    assert decision.learn
    assert not decision.aside
    lies = [{"response_id": f"c{200 + n}", "correction": "never"} for n in range(8)]
    import_feedback("s", [write("lies.jsonl", *lies)])
    assert len(decide(system).aside) == 20
