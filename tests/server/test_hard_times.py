"""A full disk, a kill while saving, clients that hang up: nothing half is ever seen, and the server continues."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest

from .serving import Raw, ServerProcess, step

pytestmark = pytest.mark.tinker


def save(model: str, seq_id: int, name: str) -> dict[str, object]:
    return {"model_id": model, "seq_id": seq_id, "path": name}


def test_a_full_disk_fails_the_save_and_nothing_else(state_dir: Path) -> None:
    with ServerProcess(state_dir, largest_file_kb=100) as server:
        raw = Raw(server.url)
        model = raw.model()
        raw.loss(raw.forward_backward(model, 1, b"a text that touches some rows" * 9).json()["request_id"])
        raw.result(raw.post("optim_step", step(model, 2)).json()["request_id"])
        failed = raw.result(raw.post("save_weights", save(model, 3, "w")).json()["request_id"])
        assert failed["category"] == "server"
        assert "File too large" in failed["error"]
        assert raw.get("checkpoints").json()["checkpoints"] == []
        after = raw.loss(raw.forward_backward(model, 4).json()["request_id"])
        assert after > 0
        raw.close()
    with ServerProcess(state_dir) as roomier:
        raw = Raw(roomier.url)
        model = raw.model()
        saved = raw.result(raw.post("save_weights", save(model, 1, "w")).json()["request_id"])
        assert [c["tinker_path"] for c in raw.get("checkpoints").json()["checkpoints"]] == [saved["path"]]
        raw.close()


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.1])
def test_whatever_is_listed_after_a_kill_can_be_loaded(state_dir: Path, delay_s: float) -> None:
    with ServerProcess(state_dir) as server:
        raw = Raw(server.url)
        model = raw.model()
        raw.forward_backward(model, 1)
        for number in range(2, 12):
            raw.post("save_weights", save(model, number, f"w{number}"))
        time.sleep(delay_s)
        server.stop(signal.SIGKILL)
        raw.http.close()
    with ServerProcess(state_dir) as again:
        raw = Raw(again.url)
        model = raw.model()
        listed = raw.get("checkpoints").json()["checkpoints"]
        for number, checkpoint in enumerate(listed, 1):
            request = {"model_id": model, "seq_id": number, "path": checkpoint["tinker_path"], "optimizer": True}
            loaded = raw.result(raw.post("load_weights", request).json()["request_id"])
            assert loaded["path"] == checkpoint["tinker_path"]
        raw.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /api/v1/optim_step HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\nhalf",
        b"POST /api/v1/optim_step HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET /api/v1/healthz HTTP/9.9\r\n\r\n",
        b"",
    ],
)
def test_clients_that_hang_up_or_talk_nonsense_do_no_harm(server: ServerProcess, raw: Raw, sent: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    assert raw.get("healthz").json()["status"] == "ok"


def test_a_client_that_leaves_while_it_waits_can_come_back(raw: Raw, server: ServerProcess) -> None:
    request_id = raw.forward_backward(raw.model(), 1).json()["request_id"]
    host, port = server.url.removeprefix("http://").split(":")
    body = b'{"request_id": "%s"}' % request_id.encode()
    head = b"POST /api/v1/retrieve_future HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head + body)
    assert raw.loss(request_id) > 0


def test_a_sampling_request_that_is_sent_again_has_one_result(raw: Raw) -> None:
    session = raw.session()
    opened = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler = raw.post("create_sampling_session", opened).json()["sampling_session_id"]
    assert raw.post("create_sampling_session", opened).json()["sampling_session_id"] == sampler
    request = {
        "sampling_session_id": sampler,
        "seq_id": 7,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
        "sampling_params": {"max_tokens": 8},
        "num_samples": 2,
    }
    first, again = raw.post("asample", request).json(), raw.post("asample", request).json()
    assert first == again
    assert len(first["sample_sequence_ids"]) == 2
    assert raw.fetch(first["request_id"]).content == raw.fetch(first["request_id"]).content
