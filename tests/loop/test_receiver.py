"""What instrumented systems export arrives while they run: from the real exporter, and from whoever sends rubbish."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.errors import ConfigError
from evsys_sdk.loop.traces.receiver import Receiver, ReceiverSettings
from evsys_sdk.loop.traces.store import LiveStore, TraceStore, import_traces

FIXTURES = Path(__file__).parent / "fixtures"
JSON = {"content-type": "application/json"}
PROTOBUF = {"content-type": "application/x-protobuf"}
HEAD = "POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture
def receiver(project: Path) -> Iterator[Receiver]:
    with Receiver(ReceiverSettings(port=0, max_request_mb=0.2), LiveStore("live")) as running:
        yield running


def span(number: int, question: str = "Hi", **attributes: str) -> dict[str, Any]:
    said = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": question}
    said |= {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Hello", **attributes}
    listed = [{"key": key, "value": {"stringValue": value}} for key, value in said.items()]
    return {"traceId": f"{number:032x}", "spanId": f"{number:016x}", "attributes": listed, "startTimeUnixNano": "17"}


def request(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def connect(receiver: Receiver) -> socket.socket:
    host, port = receiver.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def stored() -> list[dict[str, Any]]:
    return list(TraceStore("live").read())


@pytest.mark.parametrize("compressed", [False, True])
def test_the_real_exporter_is_understood(receiver: Receiver, compressed: bool) -> None:
    exporter = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="not installed")
    http = pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    kind = http.Compression.Gzip if compressed else http.Compression.NoCompression
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    sender = exporter.OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces", compression=kind)
    provider.add_span_processor(export.SimpleSpanProcessor(sender))
    with provider.get_tracer("test").start_as_current_span("chat small-1") as current:
        asked = [{"role": "user", "parts": [{"type": "text", "content": "Weather? ann@example.com"}]}]
        answered = [{"role": "assistant", "parts": [{"type": "text", "content": "Sunny."}]}]
        current.set_attribute("gen_ai.input.messages", json.dumps(asked))
        current.set_attribute("gen_ai.output.messages", json.dumps(answered))
        current.set_attribute("gen_ai.request.model", "small-1")
        current.set_attribute("gen_ai.usage.input_tokens", 12)
        current.set_attribute("some.numbers", [1.5, 2.5])
        current.add_event(
            "gen_ai.evaluation.result", {"gen_ai.evaluation.name": "h", "gen_ai.evaluation.score.value": 0.5}
        )
        ids = current.get_span_context()
    provider.shutdown()
    [trace] = stored()
    assert (trace["model"], trace["usage"], trace["reward"]) == ("small-1", {"input": 12}, 0.5)
    assert [one["content"].split()[0] for one in trace["messages"]] == ["Weather?", "Sunny."]
    assert "ann@example.com" not in json.dumps(trace)
    assert trace["time"] > 1.79e9
    # The same span in a file is the same trace.
    Path("again.jsonl").write_text(
        json.dumps(request(span(1) | {"traceId": f"{ids.trace_id:032x}", "spanId": f"{ids.span_id:016x}"})),
        encoding="utf-8",
    )
    assert import_traces("live", [Path("again.jsonl")]).duplicates == 1


@pytest.mark.parametrize("is_current", [True, False])
def test_the_real_exporter_of_log_records_is_understood(receiver: Receiver, is_current: bool) -> None:
    exporter = pytest.importorskip("opentelemetry.exporter.otlp.proto.http._log_exporter", reason="not installed")
    sdk = pytest.importorskip("opentelemetry.sdk._logs")
    export = pytest.importorskip("opentelemetry.sdk._logs.export")
    api = pytest.importorskip("opentelemetry._logs")
    trace = pytest.importorskip("opentelemetry.trace")
    provider = sdk.LoggerProvider(shutdown_on_exit=False)
    sender = exporter.OTLPLogExporter(endpoint=f"{receiver.url}/v1/logs")
    provider.add_log_record_processor(export.BatchLogRecordProcessor(sender))
    logger, context = provider.get_logger("test"), trace.SpanContext(0xA1, 0xB2, is_remote=False)
    within = trace.set_span_in_context(trace.NonRecordingSpan(context))

    def write(name: str, body: Any = None, **attributes: Any) -> None:
        now = time.time_ns()
        logger.emit(
            api.LogRecord(timestamp=now, context=within, event_name=name, body=body, attributes=attributes or None)
        )

    if is_current:
        asked = [{"role": "user", "parts": [{"type": "text", "content": "Weather?"}]}]
        answered = [{"role": "assistant", "parts": [{"type": "text", "content": "Sunny."}]}]
        told = {"gen_ai.input.messages": asked, "gen_ai.output.messages": answered, "gen_ai.request.model": "small-1"}
        write("gen_ai.client.inference.operation.details", **told)
    else:
        write("gen_ai.user.message", {"content": "Weather?"}, **{"gen_ai.request.model": "small-1"})
        write("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": {"content": "Sunny."}})
    assert provider.force_flush()
    [kept] = stored()
    assert [(one["role"], one["content"]) for one in kept["messages"]] == [
        ("user", "Weather?"),
        ("assistant", "Sunny."),
    ]
    assert (kept["model"], kept["reward"]) == ("small-1", None)
    assert kept["time"] > 1.79e9
    write("gen_ai.evaluation.result", **{"gen_ai.evaluation.name": "h", "gen_ai.evaluation.score.value": 0.5})
    provider.shutdown()
    assert [one["reward"] for one in stored()] == [0.5]


def log(number: int, name: str, body: Any = None, **attributes: str) -> dict[str, Any]:
    listed = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
    told = {} if body is None else {"body": {"stringValue": json.dumps(body)}}
    ids = {"traceId": f"{number:032x}", "spanId": f"{number:016x}"}
    return {**ids, "eventName": name, "timeUnixNano": "17", "attributes": listed, **told}


def logs(*records: dict[str, Any]) -> dict[str, Any]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


def test_log_records_are_put_together_by_span_and_what_is_half_is_refused(receiver: Receiver) -> None:
    whole = [log(1, "gen_ai.user.message", {"content": "Hi"}), log(1, "gen_ai.choice", {"message": {"content": "Ho"}})]
    half, other = log(2, "gen_ai.user.message", {"content": "Hi"}), log(3, "session.started", {"x": 1})
    judged = log(4, "gen_ai.evaluation.result", **{"gen_ai.evaluation.name": "h"})
    judged["attributes"].append({"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 1.0}})
    answer = httpx.post(f"{receiver.url}/v1/logs", json=logs(whole[0], half, other, whole[1], judged))
    assert answer.status_code == 200
    partial = answer.json()["partialSuccess"]
    assert (partial["rejectedLogRecords"], "not among the log records" in partial["errorMessage"]) == ("2", True)
    strange = log(1, "gen_ai.evaluation.result", **{"gen_ai.evaluation.name": "h"})  # no score
    assert (
        httpx.post(f"{receiver.url}/v1/logs", json=logs(strange)).json()["partialSuccess"]["rejectedLogRecords"] == "1"
    )
    nowhere = [{**one, "traceId": "", "spanId": ""} for one in (whole[0], half, judged)]  # they do not belong together
    assert (
        httpx.post(f"{receiver.url}/v1/logs", json=logs(*nowhere)).json()["partialSuccess"]["rejectedLogRecords"] == "3"
    )
    [kept] = stored()
    assert [one["content"] for one in kept["messages"]] == ["Hi", "Ho"]
    assert httpx.post(f"{receiver.url}/v1/logs", json=logs(*whole)).json() == {}
    assert len(stored()) == 1
    Path("logs.jsonl").write_text(json.dumps(logs(*whole)) + "\n", "utf-8")
    assert import_traces("live", [Path("logs.jsonl")]).duplicates == 1


def test_the_sdk_of_langfuse_can_send_here(project: Path) -> None:
    body = gzip.compress((FIXTURES / "langfuse-5.0.4-spans.pb").read_bytes())
    headers = {**PROTOBUF, "content-encoding": "gzip"}
    with Receiver(ReceiverSettings(port=0, api_key="secret-1"), LiveStore("live")) as receiver:
        for password, status in (("wrong", 401), ("secret-1", 200)):
            answer = httpx.post(
                f"{receiver.url}/api/public/otel/v1/traces", content=body, headers=headers, auth=("pk-lf-x", password)
            )
            assert answer.status_code == status
        hostile = {**headers, "authorization": "Basic not=base64"}
        assert httpx.post(f"{receiver.url}/v1/traces", content=body, headers=hostile).status_code == 401
    assert [one["messages"][-1]["content"] for one in stored()] == ["", "Sunny.", "Red."]


def test_json_is_taken_once_and_answered_once_it_is_on_disk(receiver: Receiver) -> None:
    for _ in range(2):
        answer = httpx.post(f"{receiver.url}/v1/traces", json=request(span(1), span(2)))
        assert (answer.status_code, answer.json()) == (200, {})
        assert len(stored()) == 2


def test_files_of_the_exporters_can_be_sent_as_they_are(receiver: Receiver) -> None:
    with httpx.Client(base_url=receiver.url) as client:  # one connection for all
        for line in (FIXTURES / "otlp_file.jsonl").read_bytes().splitlines():
            packed = gzip.compress(line)
            answer = client.post("/v1/traces", content=packed, headers={**JSON, "content-encoding": "gzip"})
            assert answer.status_code == 200, answer.text
    assert len(stored()) == 4


def test_a_span_that_cannot_be_read_says_nothing_about_the_others(receiver: Receiver) -> None:
    bad = span(2, **{"gen_ai.prompt.0.role": "alien"})
    answer = httpx.post(f"{receiver.url}/v1/traces", json=request(span(1), bad, span(3)))
    assert answer.status_code == 200
    assert answer.json()["partialSuccess"] == {"rejectedSpans": "1", "errorMessage": "a message has the role 'alien'"}
    assert len(stored()) == 2


def test_many_clients_at_once_and_an_import_beside_them(receiver: Receiver) -> None:
    Path("file.jsonl").write_text(json.dumps(request(span(5), span(999))) + "\n", "utf-8")

    def send(number: int) -> int:
        if number == 20:
            import_traces("live", [Path("file.jsonl")])
        return httpx.post(f"{receiver.url}/v1/traces", json=request(span(number), span(number + 1))).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, range(40))) == {200}
    assert len(stored()) == 42
    assert len({one["id"] for one in stored()}) == 42


@pytest.mark.parametrize(
    ("status", "said", "path", "headers", "body"),
    [
        (404, "'/v1/metrics' is neither", "/v1/metrics", JSON, b"{}"),
        (415, "content type 'text/plain'", "/v1/traces", {"content-type": "text/plain"}, b"{}"),
        (415, "encoding 'br'", "/v1/traces", {**JSON, "content-encoding": "br"}, b"{}"),
        (400, "not JSON", "/v1/traces", JSON, b"{"),
        (400, "no object", "/v1/traces", JSON, b"[]"),
        (400, "not gzip", "/v1/traces", {**JSON, "content-encoding": "gzip"}, b"{}"),
        (400, "cut off", "/v1/traces", {**JSON, "content-encoding": "gzip"}, gzip.compress(b"x" * 999, mtime=0)[:-9]),
        (413, "longer than 0.2 MB.", "/v1/traces", JSON, b" " * 300_000),
        (
            413,
            "longer than 0.2 MB.",
            "/v1/traces",
            {**JSON, "content-encoding": "gzip"},
            gzip.compress(b" " * 10_000_000, mtime=0),
        ),
        (403, "no page of 'http://evil.example'", "/v1/traces", {**JSON, "origin": "http://evil.example"}, b"{}"),
        (403, "not to 'evil.example'", "/v1/traces", {**JSON, "host": "evil.example"}, b"{}"),
    ],
)
def test_what_it_does_not_take_it_refuses_with_a_sentence(
    receiver: Receiver, status: int, said: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    answer = httpx.post(f"{receiver.url}{path}", content=body, headers=headers)
    assert answer.status_code == status
    assert said in answer.json()["message"]
    assert stored() == []
    assert httpx.post(f"{receiver.url}/v1/traces", json=request(span(1))).status_code == 200  # it goes on


@pytest.mark.parametrize(
    "head",
    [f"Host: 127.0.0.1\r\nContent-Length: {'9' * 5000}", "Host: 127.0.0.1\r\nContent-Length: \xb2"],
    ids=["thousands of digits", "a digit that is no number"],
)
def test_a_bad_head_is_refused(receiver: Receiver, head: str) -> None:
    request = f"POST /v1/traces HTTP/1.1\r\nContent-Type: application/json\r\n{head}\r\n\r\n"
    with connect(receiver) as client:
        client.sendall(request.encode("latin-1"))
        assert client.recv(100).startswith(b"HTTP/1.1 4")


def test_a_refusal_in_protobuf(receiver: Receiver) -> None:
    answer = httpx.post(f"{receiver.url}/v1/traces", content=b"\x0a\x05ab", headers=PROTOBUF)
    assert answer.status_code == 400
    assert answer.content[:3] == b"\x08\x03\x12"
    assert b"not protobuf of OTLP" in answer.content


@pytest.mark.parametrize("start", ["", f"{HEAD}Content-Length: 9999\r\n\r\n"], ids=["head", "body"])
def test_a_client_that_sends_little_by_little_is_let_go(project: Path, start: str) -> None:
    settings = ReceiverSettings(port=0, read_s=0.3)
    with Receiver(settings, LiveStore("live")) as receiver, connect(receiver) as client:
        client.sendall(start.encode())
        client.settimeout(0.05)
        for _ in range(200):  # never silent for long
            try:
                client.sendall(b"P")
                if client.recv(1000) == b"":  # after a response with status 408, where a request had begun
                    break
            except TimeoutError:
                continue
            except ConnectionError:  # it was let go between the two
                break
        else:
            pytest.fail("it is still waited for")
        assert httpx.post(f"{receiver.url}/v1/traces", json=request(span(1))).status_code == 200


def test_too_many_connections_are_asked_to_try_again(project: Path) -> None:
    with Receiver(ReceiverSettings(port=0, max_connections=2), LiveStore("live")) as receiver:
        with connect(receiver), connect(receiver):  # both send nothing
            assert httpx.post(f"{receiver.url}/v1/traces", json=request(span(1))).status_code == 503
        for _ in range(200):  # until they are closed
            if httpx.post(f"{receiver.url}/v1/traces", json=request(span(1))).status_code == 200:
                break
            time.sleep(0.05)
        else:
            pytest.fail("their places are not given back")


def test_keys(project: Path) -> None:
    with pytest.raises(ConfigError, match="lets other machines in"):
        ReceiverSettings(host="0.0.0.0")
    with Receiver(ReceiverSettings(port=0, api_key="secret-1"), LiveStore("live")) as receiver:
        url = f"{receiver.url}/v1/traces"
        for headers, status in (({}, 401), ({"x-api-key": "no"}, 401), ({"authorization": "Bearer secret-1"}, 200)):
            assert httpx.post(url, json=request(span(1)), headers=headers).status_code == status
        assert httpx.post(url, json=request(span(2)), headers={"x-api-key": "secret-1"}).status_code == 200


def test_values_nested_too_deeply_are_refused(receiver: Receiver) -> None:
    body = b""
    for _ in range(200):
        body = b"\x0a" + _length(body) + body  # array of
        body = b"\x2a" + _length(body) + body  # value of
    body = b"\x12" + _length(body) + body
    for tag in (b"\x4a", b"\x12", b"\x12", b"\x0a"):
        body = tag + _length(body) + body
    answer = httpx.post(f"{receiver.url}/v1/traces", content=body, headers=PROTOBUF)
    assert answer.status_code == 400


def _length(body: bytes) -> bytes:
    size, found = len(body), bytearray()
    while size >= 0x80:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*found, size])


def test_a_port_that_is_taken_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["traces", "listen", "--name", "live", "--port", port]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
