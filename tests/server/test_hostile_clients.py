"""Clients that mean harm: whatever one of them does, the others are served, and a restart finds everything."""

from __future__ import annotations

import contextlib
import json
import resource
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evsys_sdk.server.tinker.routes import ROOT, ROUTES

from .serving import KEY, Raw, ServerProcess, step, training_request

pytestmark = pytest.mark.tinker


def check_sound(url: str, kept: str | None = None) -> None:
    """A server that trains, saves and lists; `kept` is a path that must still be there."""
    raw = Raw(url)
    model = raw.model()
    assert raw.loss(raw.forward_backward(model, 1).json()["request_id"]) > 0
    saved = raw.saved(model, 2, "sound")
    listed = {checkpoint["tinker_path"] for checkpoint in raw.get("checkpoints?limit=1000").json()["checkpoints"]}
    assert {saved, *([kept] if kept else [])} <= listed
    assert raw.get("training_runs?limit=1000").status_code == 200
    raw.close()


def check_restart(state_dir: Path) -> None:
    with ServerProcess(state_dir) as again:
        check_sound(again.url)


# ---- anything at all ------------------------------------------------------------------------------------------------

HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 10**9, 10**9 - 1, 10**30, -(2**70), 1e308, 0.5]),
    st.sampled_from(["", "../..", "a" * 2000, "\u0000", "tinker://x/weights/y", "é" * 300, "%s%n", "tiny", "1"]),
    st.integers(),
    st.floats(),
    st.text(max_size=30),
    st.lists(st.integers(-5, 5), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    st.just([[[[[[[[]]]]]]]]),
)


def whole_requests(ids: dict[str, str]) -> dict[str, dict[str, Any]]:
    """A request of each kind that would be served; what is sent is one with some of its fields spoilt."""
    numbered = {"model_id": ids["model"], "seq_id": 1}
    session = {"session_id": ids["session"]}
    return {
        "create_session": {"sdk_version": "x", "tags": ["a"], "user_metadata": {"a": 1}, "display_name": "me"},
        "session_heartbeat": session,
        "create_model": {**session, "model_seq_id": 3, "base_model": "tiny", "lora_config": {"rank": 8, "seed": 1}},
        "get_info": {"model_id": ids["model"]},
        "optim_step": {**numbered, "adam_params": {"learning_rate": 0.1, "beta1": 0.9}},
        "save_weights": {**numbered, "path": "w", "ttl_seconds": 7200, "overwrite": True, "user_metadata": {"a": "b"}},
        "save_weights_for_sampler": {**numbered, "path": None, "sampling_session_seq_id": 5},
        "load_weights": {**numbered, "path": ids["path"], "optimizer": True},
        "create_sampling_session": {**session, "sampling_session_seq_id": 2, "base_model": "tiny"},
        "asample": {
            "sampling_session_id": ids["sampler"],
            "seq_id": 1,
            "num_samples": 2,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
            "sampling_params": {"max_tokens": 4, "temperature": 1.0, "stop": ["e"], "seed": 3},
            "topk_prompt_logprobs": 2,
            "prompt_logprobs": True,
        },
        "retrieve_future": {"request_id": f"{ids['model']}:0"},
        "weights_info": {"tinker_path": ids["path"]},
        "training_runs/{run_id}/checkpoints/{kind}/{name}/ttl": {"ttl_seconds": 7200},
    }


@st.composite
def requests(draw: st.DrawFn, ids: dict[str, str]) -> dict[str, Any]:
    """Method, path, query and body of something that the server may be sent."""
    route = draw(st.sampled_from(ROUTES))
    name = route.path.removeprefix(f"{ROOT}/")
    whole = whole_requests(ids)
    body: Any = dict(whole.get(name, {}))
    for field in draw(st.lists(st.sampled_from([*body, "type", "extra"]), max_size=3)):
        body[field] = draw(HOSTILE)
    content = json.dumps(body).encode(errors="replace")
    if draw(st.integers(0, 5)) == 0:
        content = draw(st.binary(max_size=60)) + content[: draw(st.integers(0, len(content)))]
    if name == "forward_backward":
        content = bytearray(training_request(ids["model"], draw(st.integers(1, 9))).SerializeToString())
        for _ in range(draw(st.integers(0, 3))):
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
        content = bytes(content)
    part = st.sampled_from([*ids.values(), "x", "..", "a:train:1000000000", "%00", "weights", "w", "é", "a" * 300])
    path = "/".join(draw(part) if piece.startswith("{") else piece for piece in name.split("/"))
    number = st.sampled_from(["0", "5", "-1", "9" * 5000, "x", "٣", "1e3", ""])
    query = draw(st.dictionaries(st.sampled_from(["limit", "offset", "base_model", "?"]), number, max_size=2))
    methods = sorted(route.methods or ())
    method = draw(st.sampled_from([*methods, *methods, *methods, "PATCH", "OPTIONS"]))
    return {"method": method, "url": f"/{path}", "params": query, "content": content}


def test_five_thousand_hostile_requests_break_nothing(state_dir: Path) -> None:
    with ServerProcess(state_dir, "--max-models", "64", "--max-queue", "20000") as server:
        raw = Raw(server.url)
        model = raw.model()
        opened = {"session_id": model.partition(":")[0], "sampling_session_seq_id": 0, "base_model": "tiny"}
        saved = raw.saved(model, 1, "kept")
        ids = {
            "model": model,
            "session": opened["session_id"],
            "sampler": raw.post("create_sampling_session", opened).json()["sampling_session_id"],
            "path": saved,
        }
        sent = 0

        @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(requests(ids), min_size=25, max_size=25))
        def send(many: list[dict[str, Any]]) -> None:
            nonlocal sent
            for request in many:
                if request["url"].endswith("/finish") or request["method"] == "DELETE":
                    continue  # would end what the others are sent to; both have separate tests
                answer = raw.http.request(**request)
                assert answer.status_code < 500, (request, answer.text)
                sent += 1

        while sent < 5000:
            send()
        check_sound(server.url, saved)
        raw.http.close()
        assert server.stop() == 0
    check_restart(state_dir)


# ---- one that asks for much -----------------------------------------------------------------------------------------


def open_sampler(raw: Raw) -> str:
    opened = {"session_id": raw.session(), "sampling_session_seq_id": 0, "base_model": "tiny"}
    return raw.post("create_sampling_session", opened).json()["sampling_session_id"]


def sampling(sampler: str, seq_id: int, count: int, **params: Any) -> dict[str, Any]:
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]}
    about = {"sampling_session_id": sampler, "seq_id": seq_id, "num_samples": count}
    return {**about, "prompt": prompt, "sampling_params": {"stop": [], **params}}


def test_a_polite_client_is_served_next_to_a_greedy_one(state_dir: Path) -> None:
    with ServerProcess(state_dir) as server:
        greedy, polite = Raw(server.url), Raw(server.url)
        big = open_sampler(greedy)
        for number in range(3):
            assert greedy.post("asample", sampling(big, number, 1024)).status_code == 200
        small = open_sampler(polite)
        for number in range(10):
            request_id = polite.post("asample", sampling(small, number, 4, max_tokens=8)).json()["request_id"]
            assert polite.fetch(request_id).status_code == 200
            assert polite.get("healthz").json()["running"] == 3, "the greedy requests are far from done"
        model = polite.model()
        assert polite.loss(polite.forward_backward(model, 1).json()["request_id"]) > 0
        greedy.close()
        polite.close()
    check_restart(state_dir)


def test_one_session_cannot_take_all_the_places_that_wait(state_dir: Path) -> None:
    with ServerProcess(state_dir, "--max-samples", "8") as server:
        greedy, polite = Raw(server.url), Raw(server.url)
        big = open_sampler(greedy)
        statuses = [greedy.post("asample", sampling(big, number, 1024)).status_code for number in range(8)]
        assert statuses == [200] * 4 + [429] * 4
        request_id = polite.post("asample", sampling(open_sampler(polite), 0, 1, max_tokens=2)).json()["request_id"]
        assert polite.fetch(request_id).status_code == 200
        greedy.close()
        polite.close()


@pytest.mark.parametrize("count", [1, 40, 100])
def test_samples_in_pieces_are_those_of_one_piece(raw: Raw, count: int, tmp_path: Path) -> None:
    from tinker.proto import tinker_public_pb2 as pb

    from evsys_sdk.backends.client import SamplingParams

    from .in_process import mock_client

    request = sampling(open_sampler(raw), 0, count, max_tokens=6, seed=7)
    content = raw.fetch(raw.post("asample", request).json()["request_id"]).content
    got = pb.SampleResponse.FromString(content)
    here = mock_client(tmp_path, seed=0).sampler().result()
    expected = here.sample([104, 105], count, SamplingParams(6, seed=7, stop=[])).result()
    tokens = [b"".join(token.to_bytes(4, "little") for token in sample.tokens) for sample in expected]
    assert [sequence.tokens for sequence in got.sequences] == tokens


def test_a_sample_without_a_limit_has_that_of_the_server(state_dir: Path) -> None:
    from tinker.proto import tinker_public_pb2 as pb

    with ServerProcess(state_dir, "--max-tokens", "5") as server:
        raw = Raw(server.url)
        content = raw.fetch(raw.post("asample", sampling(open_sampler(raw), 0, 2)).json()["request_id"]).content
        assert [len(s.tokens) // 4 for s in pb.SampleResponse.FromString(content).sequences] == [5, 5]
        too_much = sampling(open_sampler(raw), 1, 1024, max_tokens=4000) | {"topk_sample_logprobs": 200}
        refused = raw.post("asample", too_much)
        assert refused.status_code == 400
        assert "num_samples" in refused.json()["error"]
        raw.close()


# ---- connections ----------------------------------------------------------------------------------------------------


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"the system allows {hard} open files, and this test needs 4096")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(server: ServerProcess) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


@pytest.mark.parametrize("sent", [b"", b"POST /api/v1/optim_step HTTP/1.1\r\nhost: 127.0.0.1\r\nx-"])
def test_two_thousand_half_open_connections_keep_no_one_out(state_dir: Path, many_files: None, sent: bytes) -> None:
    with ServerProcess(state_dir) as server, contextlib.ExitStack() as stack:
        for _ in range(2000):
            connection = stack.enter_context(connect(server))
            with contextlib.suppress(OSError):  # the server may have closed it already
                connection.sendall(sent)
        check_sound(server.url)
    check_restart(state_dir)


def test_a_connection_without_a_request_is_closed_after_a_while(server: ServerProcess) -> None:
    with connect(server) as silent, connect(server) as slow:
        slow.sendall(b"GET /api/v1/healthz HT")
        assert silent.recv(1) == b""
        assert slow.recv(1) == b""


def test_an_endless_header_is_cut_off(server: ServerProcess) -> None:
    with connect(server) as connection:
        connection.sendall(b"POST /api/v1/optim_step HTTP/1.1\r\nx-long: ")
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 50_000_000:
                connection.sendall(b"a" * 65_536)
                sent += 65_536
        assert sent < 20_000_000, "what the system buffers, not more"
    check_sound(server.url)


def test_a_body_that_never_comes_holds_no_room_for_others(server: ServerProcess) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(connect(server))
            head = b"POST /api/v1/forward_backward HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 60000000\r\n\r\n"
            connection.sendall(head)
        check_sound(server.url)


def test_long_requests_together_do_not_fill_the_memory(state_dir: Path) -> None:
    with ServerProcess(state_dir, "--max-request-mb", "1") as server, contextlib.ExitStack() as stack:
        head = b"POST /api/v1/forward_backward HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000000\r\n\r\n"
        connections = [stack.enter_context(connect(server)) for _ in range(20)]
        for connection in connections:
            connection.sendall(head + b"x" * 999_999)
        ready, _, _ = select.select(connections, [], [], 60)
        assert {connection.recv(12) for connection in ready} == {b"HTTP/1.1 429"}, "16 MB are all that it holds"
        assert httpx.get(f"{server.url}{ROOT}/healthz").status_code == 200


# ---- pages in a browser ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:8000"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "[::1"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "127.0.0.1", "origin": "http://127.0.0.1:9"}, 200),
    ],
)
def test_a_page_of_another_site_cannot_use_a_server_without_a_key(
    server: ServerProcess, headers: dict[str, str], status: int
) -> None:
    answer = httpx.post(f"{server.url}{ROOT}/create_session", json={}, headers=headers)
    assert answer.status_code == status, answer.text


def test_with_a_key_the_name_does_not_matter(state_dir: Path) -> None:
    with ServerProcess(state_dir, env={"EVSYS_SERVE_API_KEY": KEY}) as server:
        headers = {"x-api-key": KEY, "host": "gpu.example.org", "origin": "https://lab.example.org"}
        assert httpx.post(f"{server.url}{ROOT}/create_session", json={}, headers=headers).status_code == 200


# ---- names ----------------------------------------------------------------------------------------------------------


def test_numbers_that_do_not_fit_a_name_are_refused(raw: Raw) -> None:
    session = raw.session()
    for number in (10**9, 2**63, 10**30):
        for path, field in (("create_model", "model_seq_id"), ("create_sampling_session", "sampling_session_seq_id")):
            answer = raw.post(path, {"session_id": session, field: number, "base_model": "tiny"})
            assert answer.status_code == 400
            assert field in answer.json()["error"]
    body = raw.post("create_model", {"session_id": session, "model_seq_id": 10**9 - 1, "base_model": "tiny"}).json()
    model = raw.result(body["request_id"])["model_id"]
    saved = raw.saved(model, 1, "w")
    assert raw.post("weights_info", {"tinker_path": saved}).status_code == 200
    assert raw.result(raw.post("optim_step", step(model, 2)).json()["request_id"])["metrics"]["grad_norm"] == 0


def test_metadata_that_would_fill_the_disk_are_refused(raw: Raw) -> None:
    answer = raw.post("create_session", {"user_metadata": {"a": "b" * 100_000}})
    assert answer.status_code == 400
    assert "user_metadata" in answer.json()["error"]
