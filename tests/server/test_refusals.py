"""Whatever is sent, the answer says what is wrong with it; the server never fails and never lets a stranger in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evsys_sdk.server.tinker.routes import ROOT, ROUTES

from .conftest import forget_connections
from .serving import KEY, Raw, ServerProcess, step, training_request

pytestmark = pytest.mark.tinker

SECRET = "tml-the-right-key"
TABLE = [(method, route.path.removeprefix(f"{ROOT}/")) for route in ROUTES for method in route.methods or ()]


@pytest.mark.parametrize("source", ["variable", "file"])
def test_only_those_with_the_key_are_let_in(state_dir: Path, tmp_path: Path, source: str) -> None:
    import tinker

    (tmp_path / "key").write_text(f"{SECRET}\n", encoding="utf-8")
    options = ["--api-key-file", str(tmp_path / "key")] if source == "file" else []
    env = {"EVSYS_SERVE_API_KEY": SECRET} if source == "variable" else {}
    with ServerProcess(state_dir, *options, env=env) as server:
        for key in ("tml-wrong", "", f"{SECRET}x", SECRET[:-1]):
            raw = Raw(server.url, key)
            for method, path in [*TABLE, ("POST", "not_there")]:
                answer = raw.http.request(method, f"/{path}", content=b"{}")
                signed = path.startswith("external_weights/")  # such an address is its own permission
                assert answer.status_code == (200 if path == "healthz" else 403 if signed else 401), path
                assert SECRET not in answer.text
            raw.http.close()
        with pytest.raises(tinker.AuthenticationError):
            tinker.ServiceClient(base_url=server.url, api_key="tml-wrong").get_server_capabilities()
        service = tinker.ServiceClient(base_url=server.url, api_key=SECRET)
        assert service.get_server_capabilities().supported_models
        bearer = httpx.get(f"{server.url}/api/v1/sessions", headers={"authorization": f"Bearer {SECRET}"})
        assert bearer.status_code == 200
        service.close("success").result(60)
    forget_connections()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"loss_fn": "cross_entropi"}, "cross_entropy"),
        ({"loss_fn": "ppo"}, "advantages"),
        ({"loss_fn_config": {"beta": 1.0}}, "beta"),
        ({"loss_fn_config": {"clip": math.nan}}, "clip"),
    ],
)
def test_a_loss_that_cannot_be_computed_is_named(raw: Raw, changes: dict[str, Any], named: str) -> None:
    message = training_request(raw.model(), 1)
    for name, value in changes.items():
        message.loss_fn_config.update(value) if name == "loss_fn_config" else setattr(message, name, value)
    answer = raw.bytes("forward_backward", message.SerializeToString())
    assert answer.status_code == 400
    assert named in answer.json()["error"]


def _tokens(message: Any, values: list[int]) -> None:
    message.data[0].model_input[0].encoded_text.tokens = np.asarray(values, np.int32).tobytes()


def _input(message: Any, name: str, values: Any, shape: list[int] | None = None) -> None:
    array = np.asarray(values)
    tensor = message.data[0].loss_fn_inputs[name]
    tensor.Clear()
    tensor.dtype = 2 if array.dtype.kind == "i" else 1
    tensor.dense = array.astype(np.int64 if array.dtype.kind == "i" else np.float32).tobytes()
    tensor.shape.extend(shape if shape is not None else array.shape)


def _sparse(message: Any, shape: list[int], rows: list[int], columns: list[int]) -> None:
    tensor = message.data[0].loss_fn_inputs["weights"]
    tensor.dtype = 1
    tensor.shape.extend(shape)
    tensor.sparse_csr.values = np.ones(len(columns), np.float32).tobytes()
    tensor.sparse_csr.crow_indices = np.asarray(rows, np.int64).tobytes()
    tensor.sparse_csr.col_indices = np.asarray(columns, np.int64).tobytes()


MISTAKES: dict[str, Any] = {
    "no data": lambda m: m.ClearField("data"),
    "no tokens": lambda m: m.data[0].ClearField("model_input"),
    "no targets": lambda m: m.data[0].ClearField("loss_fn_inputs"),
    "an image": lambda m: setattr(m.data[0].model_input.add().image, "data", b"png"),
    "half a token": lambda m: setattr(m.data[0].model_input[0].encoded_text, "tokens", b"\x01\x00\x00"),
    "a token too high": lambda m: _tokens(m, [1, 2, 3, 999]),
    "a token too low": lambda m: _tokens(m, [1, 2, 3, -1]),
    "a target too high": lambda m: _input(m, "target_tokens", [1, 2, 3, 5000]),
    "too few targets": lambda m: _input(m, "target_tokens", [1, 2]),
    "float targets": lambda m: _input(m, "target_tokens", [1.0, 2.0, 3.0, 4.0]),
    "a wrong shape": lambda m: _input(m, "target_tokens", [1, 2, 3, 4], [2, 3]),
    "a shape with -1": lambda m: _input(m, "target_tokens", [1, 2, 3, 4], [-1, 4]),
    "an endless shape": lambda m: _input(m, "target_tokens", [1, 2, 3, 4], [2**40, 2**40]),
    "too few weights": lambda m: _input(m, "weights", [1.0, 2.0]),
    "integer weights": lambda m: _input(m, "weights", [1, 2, 3, 4]),
    "NaN": lambda m: _input(m, "weights", [1.0, math.nan, 1.0, 1.0]),
    "infinity": lambda m: _input(m, "weights", [1.0, math.inf, 1.0, 1.0]),
    "an unknown input": lambda m: _input(m, "mask", [1.0, 1.0, 1.0, 1.0]),
    "no data type": lambda m: setattr(m.data[0].loss_fn_inputs["target_tokens"], "dtype", 0),
    "a sparse tensor without end": lambda m: _sparse(m, [4, 2**60], [0, 0, 0, 0, 0], []),
    "sparse rows that go back": lambda m: _sparse(m, [4, 2], [0, 2, 1, 2, 2], [0, 1]),
    "a sparse column outside": lambda m: _sparse(m, [4, 2], [0, 1, 1, 1, 1], [7]),
    "a model that is not there": lambda m: setattr(m, "model_id", "nobody:train:0"),
    "number 0": lambda m: setattr(m, "seq_id", 0),
    "a context too long": lambda m: (_tokens(m, [1] * 5000), _input(m, "target_tokens", [1] * 5000)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_data_are_refused_and_change_nothing(raw: Raw, mistake: str) -> None:
    model = raw.model()
    message = training_request(model, 1)
    MISTAKES[mistake](message)
    answer = raw.bytes("forward_backward", message.SerializeToString())
    assert answer.status_code == (404 if "model" in mistake else 400)
    assert len(answer.json()["error"]) > 20
    number = 1 if mistake in ("a model that is not there", "number 0") else 2
    good = raw.loss(raw.forward_backward(model, number).json()["request_id"])
    assert good == raw.loss(raw.forward_backward(raw.model(), 1).json()["request_id"])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [700]}]}}, "vocabulary"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": []}]}}, "prompt"),
        ({"prompt": {"chunks": [{"type": "image", "data": "x"}]}}, "image"),
        ({"prompt": {"chunks": []}}, "chunks"),
        ({"num_samples": 0}, "num_samples"),
        ({"sampling_params": {"max_tokens": 0}}, "max_tokens"),
        ({"sampling_params": {"max_tokens": 10**6}}, "max_tokens"),
        ({"sampling_params": {"max_tokens": 1, "temperature": -1}}, "temperature"),
        ({"sampling_params": {"max_tokens": 1, "top_p": 0}}, "top_p"),
        ({"sampling_params": {"max_tokens": 1, "beams": 3}}, "beams"),
        ({"topk_prompt_logprobs": 10**6}, "topk_prompt_logprobs"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 50}, "prompt_logprobs_last_n"),
        ({"prompt_alt_tokens_k": 2}, "prompt_alt_tokens_k"),
        ({"target_prompt_logprobs": {"data": [1], "dtype": "int64", "shape": [2, 1]}}, "target_prompt_logprobs"),
        ({"record_stability_info": True}, "record_stability_info"),
        ({"sampling_session_id": "nobody:sample:0"}, "sampler"),
    ],
)
def test_bad_sampling_requests_are_refused(raw: Raw, changes: dict[str, Any], named: str) -> None:
    session = raw.session()
    opened = raw.post(
        "create_sampling_session", {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
    ).json()
    request = {
        "sampling_session_id": opened["sampling_session_id"],
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 2},
    }
    assert raw.post("asample", request).status_code == 200
    answer = raw.post("asample", {**request, "seq_id": 1, **changes})
    assert answer.status_code in (400, 404)
    assert named in answer.json()["error"]


def test_a_base_model_that_is_not_there_is_refused_with_those_that_are(raw: Raw) -> None:
    session = raw.session()
    for path, number in (("create_model", "model_seq_id"), ("create_sampling_session", "sampling_session_seq_id")):
        answer = raw.post(path, {"session_id": session, number: 0, "base_model": "tinyy"})
        assert answer.status_code == 400
        assert "Did you mean 'tiny'?" in answer.json()["error"]


def test_layers_that_cannot_be_left_out_are_not_silently_trained(raw: Raw) -> None:
    body = {"session_id": raw.session(), "model_seq_id": 0, "base_model": "tiny"}
    answer = raw.post("create_model", {**body, "lora_config": {"rank": 8, "train_mlp": False}})
    assert answer.status_code == 400
    assert "train_mlp" in answer.json()["error"]


def test_another_optimizer_is_refused(raw: Raw) -> None:
    model = raw.model()
    dimuon = {"model_id": model, "seq_id": 1, "optimizer_params": {"type": "dimuon", "learning_rate": 0.1}}
    assert raw.post("optim_step", dimuon).status_code == 400
    assert raw.result(raw.post("optim_step", step(model, 2)).json()["request_id"])["metrics"]["grad_norm"] == 0


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ["session_id", "model_id", "seq_id", "adam_params", "path", "optimizer", "prompt", "request_id", "base_model"]
POSTED = sorted(path for method, path in TABLE if method == "POST" and path != "create_session" and "{" not in path)
relaxed = settings(max_examples=60)


@relaxed
@given(path=st.sampled_from(POSTED), content=st.binary(max_size=200))
def test_bytes_at_random_never_break_the_server(raw: Raw, path: str, content: bytes) -> None:
    answer = raw.bytes(path, content)
    assert answer.status_code < 500
    assert isinstance(answer.json(), dict)


@relaxed
@given(path=st.sampled_from(POSTED), body=JSON_VALUES | st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES))
def test_json_at_random_never_breaks_the_server(raw: Raw, path: str, body: Any) -> None:
    answer = raw.http.post(f"/{path}", content=json.dumps(body).encode(errors="replace"))
    assert answer.status_code < 500
    assert isinstance(answer.json(), dict)


@relaxed
@given(data=st.data())
def test_damaged_messages_never_break_the_server(raw: Raw, data: st.DataObject) -> None:
    content = bytearray(training_request(_model(raw), 1).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    assert raw.bytes("forward_backward", bytes(content)).status_code < 500


_MADE: dict[str, str] = {}


def _model(raw: Raw) -> str:
    url = str(raw.http.base_url)
    if url not in _MADE:
        _MADE[url] = raw.model()
    return _MADE[url]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/api/v1/nothing"),
        ("DELETE", "/api/v1/healthz"),
        ("GET", "/api/v1/training_runs/..%2f..%2fetc"),
        ("DELETE", "/api/v1/training_runs/x/checkpoints/weights/..%2f..%2fy"),
        ("PUT", "/api/v1/training_runs/a:train:0/checkpoints/weights/y/ttl"),
        ("GET", "/api/v1/training_runs?limit=-1"),
        ("GET", "/api/v1/checkpoints?offset=many"),
        ("GET", f"/api/v1/checkpoints?limit={'9' * 5000}"),
        ("GET", "/api/v1/checkpoints?limit=%D9%A3"),
    ],
)
def test_paths_that_are_not_there(server: ServerProcess, method: str, path: str) -> None:
    answer = httpx.request(method, f"{server.url}{path}", headers={"x-api-key": KEY}, content=b'{"ttl_seconds": null}')
    assert answer.status_code in (400, 404, 405)
    assert len(answer.json()["error"]) > 20


def test_compressed_requests_are_refused(raw: Raw) -> None:
    answer = raw.http.post("/optim_step", content=b"x", headers={"content-encoding": "zstd"})
    assert answer.status_code == 415
