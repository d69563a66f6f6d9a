"""Servers for tests: `evsys serve` as a separate process, and raw HTTP to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx

from ..server_process import ServerProcess as BaseServerProcess

KEY = "tml-anything"


class ServerProcess(BaseServerProcess):
    """`evsys serve` on a free port of this machine; ended by its own process id."""

    def __init__(
        self, state_dir: Path, *options: str, env: dict[str, str] | None = None, largest_file_kb: int | None = None
    ) -> None:
        model = () if "--model" in options else ("--model", "tiny")
        # A limit of the size of files is as good as a full disk.
        under = () if largest_file_kb is None else ("bash", "-c", f'ulimit -f {largest_file_kb}; exec "$@"', "--")
        super().__init__(
            *("serve", "--port", "0", "--json", "--state-dir", str(state_dir), *model, *options),
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            under=under,
        )


class Raw:
    """The protocol by hand, for what the `tinker` package would not send."""

    def __init__(self, url: str, key: str = KEY) -> None:
        self.http = httpx.Client(base_url=f"{url}/api/v1", headers={"x-api-key": key}, timeout=60)
        self._sessions: list[str] = []

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(f"/{path}", json={} if body is None else body, **options)

    def get(self, path: str) -> httpx.Response:
        return self.http.get(f"/{path}")

    def session(self) -> str:
        self._sessions.append(self.post("create_session", {"sdk_version": "test"}).json()["session_id"])
        return self._sessions[-1]

    def close(self) -> None:
        """End what was begun, so that a server's room for models is not used up."""
        for session in self._sessions:
            self.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})
        self.http.close()

    def model(self, **lora: Any) -> str:
        """A model that is ready to be trained."""
        body = {"session_id": self.session(), "model_seq_id": 0, "base_model": "tiny"}
        answer = self.post("create_model", {**body, "lora_config": {"rank": 8, "seed": 1, **lora}}).json()
        return self.result(answer["request_id"])["model_id"]

    def saved(self, model_id: str, seq_id: int, name: str) -> str:
        """Save weights under a name; where they are."""
        request = {"model_id": model_id, "seq_id": seq_id, "path": name}
        return self.result(self.post("save_weights", request).json()["request_id"])["path"]

    def forward_backward(self, model_id: str, seq_id: int, text: bytes = b"hello", **fields: Any) -> httpx.Response:
        return self.bytes("forward_backward", training_request(model_id, seq_id, text, **fields).SerializeToString())

    def bytes(self, path: str, content: bytes) -> httpx.Response:
        return self.http.post(f"/{path}", content=content, headers={"content-type": "application/x-protobuf"})

    def fetch(self, request_id: str) -> httpx.Response:
        return self.post("retrieve_future", {"request_id": request_id})

    def result(self, request_id: str) -> dict[str, Any]:
        """A result that is JSON; asks until it is there."""
        while (answer := self.fetch(request_id)).status_code == 408:
            continue
        assert answer.status_code == 200, answer.text
        return answer.json()

    def loss(self, request_id: str) -> float:
        """The loss in a result that is protobuf."""
        from tinker.proto import tinker_public_pb2 as pb

        while (answer := self.fetch(request_id)).status_code == 408:
            continue
        assert answer.headers["content-type"] == "application/x-protobuf", answer.text
        return pb.ForwardBackwardOutput.FromString(answer.content).metrics["loss:sum"]


def training_request(model_id: str, seq_id: int, text: bytes = b"hello", **fields: Any) -> Any:
    """A forward_backward message that predicts a text, byte for byte."""
    import numpy as np
    from tinker.proto import tinker_public_pb2 as pb

    message = pb.ForwardBackwardRequest(model_id=model_id, seq_id=seq_id, loss_fn="cross_entropy", **fields)
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.frombuffer(text[:-1], np.uint8).astype(np.int32).tobytes()
    target = datum.loss_fn_inputs["target_tokens"]
    target.dtype, target.dense = pb.DTYPE_INT64, np.frombuffer(text[1:], np.uint8).astype(np.int64).tobytes()
    target.shape.append(len(text) - 1)
    return message


ADAM = {"learning_rate": 0.01}


def step(model_id: str, seq_id: int, **adam: float) -> dict[str, Any]:
    """An optim_step request."""
    return {"model_id": model_id, "seq_id": seq_id, "adam_params": {**ADAM, **adam}}
