"""Requests are applied in the order of their numbers, each once, and no more wait than fit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .faulty_proxy import FaultyProxy
from .in_process import as_tinker, supervised
from .serving import KEY, Raw, ServerProcess, step

pytestmark = pytest.mark.tinker


def losses(raw: Raw, order: list[int]) -> list[float]:
    """Losses of three passes with a step after each, whose requests are sent in an order of ours."""
    model = raw.model()
    ids: dict[int, str] = {}
    for number in order:
        answer = raw.post("optim_step", step(model, number)) if number % 2 == 0 else raw.forward_backward(model, number)
        assert answer.status_code == 200, answer.text
        assert ids.setdefault(number, answer.json()["request_id"]) == answer.json()["request_id"]
    return [raw.loss(ids[number]) for number in (1, 3, 5)]


@pytest.mark.parametrize("order", [[6, 5, 4, 3, 2, 1], [1, 1, 1, 2, 2, 3, 4, 4, 5, 6, 2], [2, 1, 2, 4, 4, 3, 5, 6]])
def test_late_and_repeated_requests_are_applied_in_order_and_once(raw: Raw, order: list[int]) -> None:
    assert losses(raw, order) == losses(raw, [1, 2, 3, 4, 5, 6])


def test_the_same_request_at_the_same_time_is_applied_once(raw: Raw) -> None:
    model = raw.model()
    raw.forward_backward(model, 1)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(raw.post("optim_step", step(model, 2)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.json()["request_id"] for answer in answers} == {f"{model}:2"}
    assert raw.loss(raw.forward_backward(model, 3).json()["request_id"]) == losses(raw, [1, 2, 3, 4, 5, 6])[1]


def test_a_result_can_be_fetched_again(raw: Raw) -> None:
    request_id = raw.forward_backward(raw.model(), 1).json()["request_id"]
    assert raw.loss(request_id) == raw.loss(request_id)


def test_a_refused_request_uses_up_its_number(raw: Raw) -> None:
    model = raw.model()
    refused = [
        raw.forward_backward(model, 1, b"\xffno", forward_only=False),
        raw.post("optim_step", step(model, 2, beta1=7)),
    ]
    wrong = raw.bytes("forward_backward", b"\n" + bytes([len(model)]) + model.encode() + b"\x10\x03\x1a\x00")
    unknown = raw.post("optim_step", {**step(model, 4), "momentum": 1})
    assert refused[0].status_code == 200, "every byte is a token"
    assert [refused[1].status_code, wrong.status_code, unknown.status_code] == [400, 400, 400]
    assert "beta1" in refused[1].json()["error"]
    assert "datum 0" in wrong.json()["error"]
    assert "momentum" in unknown.json()["error"]
    assert raw.post("optim_step", step(model, 2)).json() == refused[1].json(), "the first answer counts"
    assert raw.loss(raw.forward_backward(model, 5).json()["request_id"]) > 0


def test_a_request_that_no_one_here_knows_uses_up_its_number(raw: Raw) -> None:
    model = raw.model()
    unknown = raw.post("save_weights_elsewhere", {"model_id": model, "seq_id": 1, "name": "x", "ttl_seconds": 7200})
    assert unknown.status_code == 404
    assert "save_weights_elsewhere" in unknown.json()["error"]
    assert raw.loss(raw.forward_backward(model, 2).json()["request_id"]) > 0
    assert raw.post("optim_step", step(model, 1)).status_code == 404, "the first answer counts"


def test_a_refused_request_changes_nothing(raw: Raw) -> None:
    model = raw.model()
    before = raw.loss(raw.forward_backward(model, 1, forward_only=True).json()["request_id"])
    assert raw.post("optim_step", step(model, 2, learning_rate=-1.0)).status_code == 400
    raw.result(raw.post("optim_step", step(model, 3)).json()["request_id"])
    assert raw.loss(raw.forward_backward(model, 4, forward_only=True).json()["request_id"]) == before


@pytest.fixture
def small(state_dir: Path) -> Iterator[ServerProcess]:
    options = [
        "--max-queue",
        "3",
        "--backend-param",
        "latency_ms=200",
        "--max-models",
        "1",
        "--max-samples",
        "2",
        "--max-request-mb",
        "0.1",
    ]
    with ServerProcess(state_dir, *options) as running:
        yield running


def test_more_than_fits_is_turned_away_with_a_time_to_come_back(small: ServerProcess) -> None:
    raw = Raw(small.url)
    model = raw.model()
    first = [raw.forward_backward(model, number) for number in (1, 2, 3)]
    full = raw.forward_backward(model, 4)
    assert [answer.status_code for answer in first] == [200, 200, 200]
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")
    assert raw.loss(f"{model}:1") > 0, "fetching makes room"
    assert raw.forward_backward(model, 4).status_code == 200
    another = raw.post("create_model", {"session_id": raw.session(), "model_seq_id": 0, "base_model": "tiny"})
    assert another.status_code == 429
    assert "--max-models" in another.json()["error"]
    raw.http.close()


def test_what_waits_for_a_late_request_does_not_keep_it_out(small: ServerProcess) -> None:
    raw = Raw(small.url)
    model = raw.model()
    assert [raw.forward_backward(model, number).status_code for number in (2, 3, 4, 5)] == [200, 200, 200, 429]
    assert raw.forward_backward(model, 1).status_code == 200
    assert [raw.loss(f"{model}:{number}") > 0 for number in (1, 2, 3, 4)] == [True] * 4
    raw.http.close()


def test_requests_that_are_too_long_are_refused(small: ServerProcess) -> None:
    raw = Raw(small.url)
    answer = raw.bytes("forward_backward", b"x" * 200_000)
    assert answer.status_code == 413
    assert "--max-request-mb" in answer.json()["error"]
    raw.http.close()


def test_the_package_waits_while_the_queue_is_full(small: ServerProcess) -> None:
    import tinker

    service = tinker.ServiceClient(base_url=small.url, api_key=KEY)
    client = service.create_lora_training_client("tiny", rank=8, seed=1)
    data = [as_tinker(datum) for datum in supervised(2)]
    pending = [client.forward_backward(data, "cross_entropy") for _ in range(6)]
    assert len({future.result(60).metrics["loss:sum"] for future in pending}) == 1
    service.close("success").result(60)


@pytest.mark.parametrize("fault", ["reset", "reset_after", 409, 429, 500, "delay"])
def test_faults_on_the_way_apply_no_step_twice(server: ServerProcess, fault: Any) -> None:
    import tinker

    paths = ["forward_backward", "optim_step", "retrieve_future"]
    if fault == 409:  # the package gives up when the request for a result gets this answer
        paths.remove("retrieve_future")

    def run(url: str, proxy: FaultyProxy | None = None) -> list[float]:
        service = tinker.ServiceClient(base_url=url, api_key=KEY)
        client = service.create_lora_training_client("tiny", rank=8, seed=1)
        data = [as_tinker(datum) for datum in supervised()]
        found: list[float] = []
        for number in range(3):
            if proxy is not None and number == 1:
                for path in paths:
                    proxy.fail_next(f"/api/v1/{path}", fault, delay_s=0.3)
            backward = client.forward_backward(data, "cross_entropy")
            step = client.optim_step(tinker.types.AdamParams(learning_rate=3e-3))
            found.append(backward.result(60).metrics["loss:sum"])
            step.result(60)
        service.close("success").result(60)
        return found

    with FaultyProxy(server.url) as proxy:
        assert run(proxy.url, proxy) == run(server.url)
        assert proxy.faults("/api/v1/") == len(paths)
