"""What all clients have in common: the two ways to call them, keys, addresses, costs, and clients of other packages."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from pydantic import ValidationError

from evsys_sdk.config.checks.problems import problems_in
from evsys_sdk.errors import DataError, EvsysAuthError
from evsys_sdk.inference.adapter import as_chat_client
from evsys_sdk.inference.client import ChatClient, Completion, cut_at_stop
from evsys_sdk.inference.clients.openai import OpenAIClient
from evsys_sdk.inference.errors import InferenceError
from evsys_sdk.protocols import InferenceClient
from evsys_sdk.registry import get_inference, list_inference

from .conftest import MODELS, SECRET
from .stand_in import Reply, openai_answer, openai_body, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evsys_sdk.inference.clients.hosted import HostedClient

    from .conftest import Provider

ASK: dict[str, Any] = {"max_tokens": 16, "temperature": 0.0}
HELLO = [{"role": "user", "content": "hello"}]
VARIABLES = {
    "openai": ["OPENAI_API_KEY"],
    "claude": ["ANTHROPIC_API_KEY"],
    "gemini": ["GEMINI_API_KEY", "GOOGLE_API_KEY"],
}


@pytest.fixture
def openai(make_provider: Callable[[str], Provider]) -> Provider:
    return make_provider("openai")


def test_the_built_in_clients_are_registered() -> None:
    assert {"mock", "openai", "claude", "gemini"} <= set(list_inference())


def test_generate_works_where_no_event_loop_runs(provider: Provider) -> None:
    client = provider.make()
    assert isinstance(client, InferenceClient)
    assert client.generate(prompt="hi", **ASK, stop=["!"]) == "You said: hi"
    assert client.generate(prompt="again", **ASK) == "You said: again"


async def test_generate_works_inside_a_running_event_loop(provider: Provider) -> None:
    client = provider.make()
    assert client.generate(prompt="hi", **ASK) == "You said: hi"
    assert [completion.text for completion in await client.complete(HELLO, **ASK)] == ["You said: hello"]


def test_one_client_serves_several_loops_and_threads(openai: Provider) -> None:
    client, texts = openai.make(), list[str]()

    def in_a_loop_of_its_own() -> None:
        [completion] = asyncio.run(client.complete(HELLO, **ASK))
        texts.append(completion.text)

    threads = [threading.Thread(target=in_a_loop_of_its_own) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_a_loop_of_its_own()
    assert texts == ["You said: hello"] * 5
    assert client.totals.requests == 5


def test_a_forked_process_can_continue_with_the_same_client() -> None:
    script = """
        import multiprocessing, sys
        from evsys_sdk.registry import get_inference
        client = get_inference("openai")(model="m", base_url=sys.argv[1])
        def ask(queue=None):
            text = client.generate(prompt="hi", max_tokens=4, temperature=0.0)
            return queue.put(text) if queue else text
        assert ask() == "You said: hi"
        fork = multiprocessing.get_context("fork")
        queue = fork.Queue()
        child = fork.Process(target=ask, args=(queue,))
        child.start()
        assert queue.get(timeout=60) == "You said: hi"
        child.join()
        assert ask() == "You said: hi"
    """
    with serving(openai_answer) as server:
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(server.seen) == 3


def test_a_closed_client_opens_new_connections_when_it_is_used_again(openai: Provider) -> None:
    with openai.make() as client:
        client.generate(prompt="one", **ASK)
    assert client.generate(prompt="two", **ASK) == "You said: two"


def test_a_client_that_is_dropped_unclosed_leaves_nothing_behind(openai: Provider) -> None:
    client = get_inference("openai")(model="m", base_url=openai.server.url)
    client.generate(prompt="one", **ASK)
    del client
    gc.collect()  # an unclosed socket would be reported as a warning, which fails the test
    assert len(openai.server.seen) == 1


async def test_a_client_that_waits_for_itself_is_reported(openai: Provider) -> None:
    inner = openai.make()

    class Nested(ChatClient):
        name: ClassVar[str] = "nested"

        async def complete(self, messages: Sequence[Any], **ask: Any) -> list[Completion]:  # pyright: ignore[reportIncompatibleMethodOverride]
            return [Completion(inner.generate(prompt="hi", **ASK), {}, "stop")]

    with pytest.raises(RuntimeError, match=r"Await complete\(\)"):
        Nested().generate(prompt="hi", **ASK)


async def test_several_answers_are_several_requests_with_their_own_seeds(openai: Provider) -> None:
    client = openai.make()
    completions = await client.complete(HELLO, **ASK, seed=40, n=3)
    assert len(completions) == 3
    assert sorted(request.body["seed"] for request in openai.server.seen) == [40, 41, 42]
    assert client.totals.completions == 3
    assert client.totals.input_tokens == 3000


async def test_when_one_of_several_answers_fails_the_call_fails(openai: Provider) -> None:
    openai.server.script = [Reply(400, {"error": {"message": "no"}})]
    client = openai.make(concurrency=1)
    with pytest.raises(InferenceError, match="no"):
        await client.complete(HELLO, **ASK, n=3)
    assert client.totals.failures >= 1


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be 1 or more"),
        ({"n": 0}, "n must be 1 or more"),
        ({"temperature": -1.0}, "temperature must be 0 or more"),
        ({"temperature": float("nan")}, "temperature must be 0 or more"),
        ({"stop": "END"}, r"Write \['END'\]"),
        ({"stop": ["a", ""]}, "stop has an empty text"),
    ],
)
async def test_what_no_model_can_be_asked_is_refused_before_it_is_sent(
    provider: Provider, ask: dict[str, Any], message: str
) -> None:
    with pytest.raises(InferenceError, match=message):
        await provider.make().complete(HELLO, **(ASK | ask))
    assert provider.server.seen == []


@pytest.mark.parametrize("kind", VARIABLES)
def test_a_missing_key_names_the_variables_that_may_hold_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES[kind][0], "  ")
    with pytest.raises(EvsysAuthError) as caught:
        get_inference(kind)(model="m")
    assert all(variable in str(caught.value) for variable in VARIABLES[kind])
    assert f"Set the environment variable {VARIABLES[kind][0]}" in str(caught.value)


@pytest.mark.parametrize(("kind", "variable"), [(kind, name) for kind in VARIABLES for name in VARIABLES[kind]])
def test_a_key_is_found_in_each_of_its_variables(kind: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, SECRET)
    client: HostedClient = get_inference(kind)(model="m")
    assert client.is_provider
    assert SECRET not in f"{client!r} {client.config!r}"


def test_the_named_variable_and_no_other_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with pytest.raises(EvsysAuthError, match="TEAM_KEY is not set"):
        OpenAIClient(model="m", api_key_env="TEAM_KEY")


async def test_another_server_is_not_sent_the_providers_key(
    each_provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in VARIABLES[each_provider.kind]:
        monkeypatch.setenv(variable, SECRET)
    [completion] = await each_provider.make(api_key_env=None).complete(HELLO, **ASK)
    assert completion.text == "You said: hello"
    assert SECRET not in str(each_provider.server.last.headers)


async def test_another_server_that_wants_a_key_is_answered_with_how_to_give_one(provider: Provider) -> None:
    provider.server.answer = lambda _: Reply(401, provider.problem("who are you?"))
    with pytest.raises(EvsysAuthError, match="No key was sent: name the variable that holds it with api_key_env"):
        await provider.make(api_key_env=None).complete(HELLO, **ASK)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel", "nul\x01"])
def test_what_cannot_be_a_key_is_refused_without_being_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(EvsysAuthError, match="OPENAI_API_KEY has characters") as caught:
        OpenAIClient(model="m")
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("params", "path", "message"),
    [
        ({"api_key_env": SECRET}, "api_key_env", "must be the name of an environment variable"),
        ({"api_key_env": "AIzaSyabcdefghijkl"}, "api_key_env", "must be the name of an environment variable"),
        ({"base_url": f"https://me:{SECRET}@host/v1"}, "base_url", "must not contain a user name or password"),
        ({"base_url": "localhost:8000"}, "base_url", "must be a URL"),
        ({"api_key": SECRET}, "api_key", "unknown key 'api_key'"),
        ({"concurrency": 0}, "concurrency", "should be at least 1"),
        ({"attempts": 0}, "attempts", "should be at least 1"),
        ({"prices": {"m": {"input": 1.0}}}, "prices.m.output", "the key 'output' is missing"),
    ],
)
def test_wrong_params_are_named_and_secrets_among_them_are_not_shown(
    params: dict[str, Any], path: str, message: str
) -> None:
    data = {"model": "m", **params}
    with pytest.raises(ValidationError) as caught:
        OpenAIClient(**data)
    problems = problems_in(caught.value, model=OpenAIClient.Config, data=data)
    assert (problems[0].path, message in problems[0].message) == (path, True)
    assert SECRET not in f"{caught.value} {[str(problem) for problem in problems]}"
    assert "AIzaSy" not in f"{caught.value} {[str(problem) for problem in problems]}"


async def test_the_list_price_holds_for_the_provider_itself(
    each_provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = each_provider.make()
    monkeypatch.setattr(type(client), "address", each_provider.server.url)
    [completion] = await client.complete(HELLO, **ASK)
    expected = {"openai": "0.00208", "claude": "0.00105", "gemini": "0.000325"}[each_provider.kind]
    assert completion.usage.input_tokens == 1000
    assert completion.usage.output_tokens == 10
    assert completion.cost_usd == float(Decimal(expected))
    assert client.totals.cost_usd == completion.cost_usd


async def test_another_service_of_the_provider_has_no_list_price(
    openai: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = openai.make()
    monkeypatch.setattr(OpenAIClient, "address", openai.server.url)
    body = openai_body({"role": "assistant", "content": "a"}, service_tier="priority")
    openai.server.script = [Reply(200, body)]
    [completion] = await client.complete(HELLO, **ASK)
    assert completion.cost_usd is None


async def test_another_server_has_no_price_unless_one_is_given(provider: Provider) -> None:
    [unpriced] = await provider.make().complete(HELLO, **ASK)
    assert unpriced.cost_usd is None
    client = provider.make(prices={MODELS[provider.kind]: {"input": 2.0, "output": 30.0}})
    for _ in range(3):
        [priced] = await client.complete(HELLO, **ASK)
        assert priced.cost_usd == 0.0023
    assert client.totals.cost_usd == 0.0069
    assert client.totals.to_dict()["requests"] == 3


async def test_failed_attempts_cost_nothing_and_the_answer_its_price(openai: Provider) -> None:
    openai.server.script = [Reply(500, {}), Reply(200, raw=b"garbage")]
    client = openai.make(prices={"gpt-4.1": {"input": 2.0, "output": 30.0}})
    await client.complete(HELLO, **ASK)
    assert client.totals.to_dict() == {
        "requests": 3, "completions": 1, "failures": 0, "input_tokens": 1000, "output_tokens": 10,
        "unpriced": 0, "cost_usd": 0.0023,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("-5", 0.0),
        ("1.5", 1.5),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("", None),
    ],
)
async def test_every_form_of_retry_after_is_understood(openai: Provider, value: str, expected: float | None) -> None:
    openai.server.answer = lambda _: Reply(429, {}, {"retry-after": value})
    with pytest.raises(InferenceError) as caught:
        await openai.make(attempts=1).complete(HELLO, **ASK)
    assert caught.value.retry_after == expected


async def test_text_that_is_no_valid_unicode_is_refused_before_it_is_sent(provider: Provider) -> None:
    with pytest.raises(DataError, match="lone surrogate"):
        await provider.make().complete([{"role": "user", "content": "a \ud800 b"}], **ASK)
    assert provider.server.seen == []


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one END two STOP", ["STOP", "END"], ("one ", True)),
        ("one", ["END"], ("one", False)),
        ("one", None, ("one", False)),
        ("END", ["END"], ("", True)),
    ],
)
def test_a_text_ends_at_the_first_stop_in_it(text: str, stop: Any, expected: tuple[str, bool]) -> None:
    assert cut_at_stop(text, stop) == expected


class TextOnly:
    """A client as the reference describes it."""

    name: ClassVar[str] = "text_only"

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.threads = set[int]()
        self.inside = self.most_inside = 0

    def generate(self, *, prompt: str, max_tokens: int, temperature: float, stop: Sequence[str] | None = None) -> str:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.prompts.append(prompt)
        self.threads.add(threading.get_ident())
        self.inside -= 1
        return f"{prompt}/{max_tokens}/{temperature}/{stop}"


async def test_a_client_that_only_generates_text_is_adapted() -> None:
    client = TextOnly()
    adapted = as_chat_client(client)
    completions = await adapted.complete(HELLO, **ASK, stop=["!"], n=2)
    assert [completion.text for completion in completions] == ["hello/16/0.0/['!']"] * 2
    assert completions[0].message == {"role": "assistant", "content": "hello/16/0.0/['!']"}
    assert completions[0].cost_usd is None
    assert completions[0].usage.total is None
    assert adapted.totals.to_dict()["unpriced"] == 2
    assert threading.get_ident() not in client.threads, "it must not block the event loop"
    assert client.most_inside == 1, "whether it may be used by two threads is not known"
    assert adapted.generate(prompt="hi", **ASK) == "hi/16/0.0/None"


async def test_a_conversation_becomes_a_transcript_for_it() -> None:
    client = TextOnly()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
    ]
    await as_chat_client(client).complete(messages, **ASK)
    assert client.prompts == ["system: Be brief.\n\nuser: 2+2?\n\nassistant:"]


async def test_a_client_whose_generate_is_asynchronous_is_awaited() -> None:
    class Awaited:
        async def generate(self, **arguments: Any) -> str:
            return "yes"

    [completion] = await as_chat_client(Awaited()).complete(HELLO, **ASK)
    assert completion.text == "yes"


@pytest.mark.parametrize("stated", [None, 2])
def test_a_client_whose_generate_is_asynchronous_is_held_to_its_concurrency(stated: int | None) -> None:
    class Awaited:
        inside = most_inside = 0

        async def generate(self, **arguments: Any) -> str:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            await asyncio.sleep(0)
            self.inside -= 1
            return "yes"

    client = Awaited()
    if stated is not None:
        setattr(client, "concurrency", stated)  # noqa: B010
    adapted = as_chat_client(client)
    for _ in range(2):  # each in a separate loop
        assert len(asyncio.run(adapted.complete(HELLO, **ASK, n=5))) == 5
    assert client.most_inside == (stated or 5)  # who states nothing may be asked everything at once


async def test_what_an_adapted_client_raises_arrives_and_is_counted() -> None:
    class Broken:
        def generate(self, **arguments: Any) -> str:
            raise OSError("the disk is gone")

    adapted = as_chat_client(Broken())
    with pytest.raises(OSError, match="the disk is gone"):
        await adapted.complete(HELLO, **ASK)
    assert adapted.totals.failures == 1


def test_a_client_that_is_complete_is_left_alone(openai: Provider) -> None:
    client = openai.make()
    assert as_chat_client(client) is client


def test_what_is_no_client_at_all_is_refused() -> None:
    with pytest.raises(InferenceError, match="neither complete nor generate"):
        as_chat_client(object())
