"""A stand-in for Fireworks' serverless training, for the provider's own client to talk to.

It answers what version 1.2 of that client sends: the account, sessions, the JSON form of the Tinker protocol, routes of
samplers and streamed completions. The models behind it are those of the mock backend. What the hosted service does
beyond that is not known here.
"""

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evsys_sdk.backends.client import AdamParams, ModelSpec, Sample, SamplingParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.backends.mock.client import MockTrainingClient
from evsys_sdk.backends.mock.tokenizer import ByteTokenizer
from evsys_sdk.errors import EvsysError

from ...http_stand_in import JsonHandler, LoopbackServer

KEY = "fw_test"
ACCOUNT = "team"
GATEWAY = "/training/v1/serverless"


@dataclass
class Model:
    """A model in training; its requests are answered in the order of their numbers."""

    run_id: str
    client: MockTrainingClient
    turn: threading.Condition = field(default_factory=threading.Condition)
    next_seq: int = 1


class StandIn(LoopbackServer):
    """The service."""

    def __init__(self, folder: Path, *, scores_backward: bool = True) -> None:
        self.folder, self.scores_backward = folder, scores_backward
        self.models: dict[str, Model] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.saved: dict[str, str] = {}
        self.sessions: set[str] = set()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Every request: what was asked for, and with what."""
        self.faults: dict[str, list[int]] = {}
        """Statuses that the next requests of a name are answered with."""
        self.silent: set[str] = set()
        """Requests whose results never come."""
        self.gone = False
        super().__init__(_handler(self))

    def __exit__(self, *error: object) -> None:
        self.gone = True  # also for connections that are still open
        super().__exit__(*error)
        for model in self.models.values():
            model.client.close()

    def names(self) -> list[str]:
        """The requests."""
        return [name for name, _ in self.asked]

    def answer(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request of the protocol."""
        self.asked.append((name, body))
        if name == "create_session":
            session_id = f"ts-{secrets.token_hex(8)}"
            self.sessions.add(session_id)
            return {"type": "create_session", "session_id": session_id}
        if name == "session_heartbeat":
            return {"type": "session_heartbeat"}
        if name == "create_sampling_route":
            return {}
        if name == "retrieve_future":
            result = self.results[body["request_id"]]
            if result.get("type") == "try_again":
                threading.Event().wait(0.2)  # as a server does, which keeps the request for a while
            return result
        request_id = f"{name}-{secrets.token_hex(8)}"
        self.results[request_id] = self._result(name, body)
        return {"request_id": request_id}

    def _result(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            if name == "create_model":
                return self._create(body)
            model = self.models[body["model_id"]]
            with model.turn:
                model.turn.wait_for(lambda: model.next_seq == body["seq_id"], timeout=30)
                try:
                    result = getattr(self, f"_{name}")(model, body)
                finally:
                    model.next_seq += 1
                    model.turn.notify_all()
        except EvsysError as error:
            return {"error": str(error), "category": "user"}
        except Exception as error:  # a connection that breaks would be tried again for minutes
            return {"error": f"{type(error).__name__}: {error}", "category": "server"}
        return {"type": "try_again", "queue_state": "active"} if name in self.silent else result

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["session_id"] in self.sessions
        run_id, lora = f"run-{secrets.token_hex(16)}", body["lora_config"]
        spec = ModelSpec(body["base_model"], lora_rank=lora["rank"], seed=lora.get("seed") or 0)
        client = MockBackend().prepare(model=spec, run_dir=self.folder / run_id)["training_client"]
        model_id = f"{run_id}:train:0"
        self.models[model_id] = Model(run_id, client)
        return {"type": "create_model", "model_id": model_id}

    def _forward(self, model: Model, body: dict[str, Any]) -> dict[str, Any]:
        forward_input = body["forward_input"]
        output = model.client.forward(
            [_datum(datum) for datum in forward_input["data"]], forward_input["loss_fn"]
        ).result()
        return _scored(output, with_logprobs=True)

    def _forward_backward(self, model: Model, body: dict[str, Any]) -> dict[str, Any]:
        forward_backward_input = body["forward_backward_input"]
        data = [_datum(datum) for datum in forward_backward_input["data"]]
        output = model.client.forward_backward(
            data, forward_backward_input["loss_fn"], forward_backward_input.get("loss_fn_config")
        ).result()
        return _scored(output, with_logprobs=self.scores_backward)

    def _optim_step(self, model: Model, body: dict[str, Any]) -> dict[str, Any]:
        adam = dict(body["adam_params"])
        adam.pop("emit_grad_norm_metrics", None)
        return {"metrics": model.client.optim_step(AdamParams(**adam)).result().metrics}

    def _save_weights(self, model: Model, body: dict[str, Any]) -> dict[str, Any]:
        return {"type": "save_weights", "path": self._kept(model, body, model.client.save_state(body["path"]).result())}

    def _save_weights_for_sampler(self, model: Model, body: dict[str, Any]) -> dict[str, Any]:
        ref = model.client.sampler(body["path"]).result().ref
        return {"type": "save_weights_for_sampler", "path": self._kept(model, body, ref)}

    def _kept(self, model: Model, body: dict[str, Any], ref: str) -> str:
        path = f"{ACCOUNT}/{model.run_id}/{body['path']}"
        self.saved[path] = ref
        return path

    def _load_weights(self, model: Model, body: dict[str, Any]) -> dict[str, Any]:
        if body["path"] not in self.saved:
            return {"error": f"there is no checkpoint {body['path']}", "category": "user"}
        model.client.load_state(self.saved[body["path"]], with_optimizer=body["optimizer"]).result()
        return {"type": "load_weights", "path": body["path"]}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One completion, as the only event of a stream."""
        self.asked.append(("completions", body))
        path = body["model"].partition("/checkpoints/")[2]
        client = next(iter(self.models.values())).client
        sampler = client.open_sampler(self.saved[path]).result()
        prompt, stop = body["prompt"], body.get("stop") or []
        params = SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_k=body["top_k"] or -1,
            top_p=body["top_p"],
            seed=body.get("seed", 0),
            stop=[*stop, *([] if body.get("ignore_eos") else [ByteTokenizer.eos_token])],
        )
        [sample] = sampler.sample(prompt, 1, params).result()
        tokens, logprobs = sample.tokens, sample.logprobs
        if body.get("echo"):
            tokens = [*prompt, *tokens]
            logprobs = [0.0, *sampler.logprobs(prompt).result()[1:].tolist(), *logprobs]
        return _event(sample, tokens, logprobs)


def _event(sample: Sample, tokens: list[int], logprobs: list[float]) -> dict[str, Any]:
    # what the policy thought of its tokens is another number, which no one may take for the model's
    content = [{"logprob": value, "sampling_logprob": value / 2 - 1} for value in logprobs]
    choice = {
        "text": ByteTokenizer().decode(sample.tokens),
        "finish_reason": sample.stop_reason,
        "logprobs": {"content": content},
        "raw_output": {"completion_token_ids": tokens},
    }
    return {"id": "cmpl", "choices": [choice], "usage": {"completion_tokens": len(sample.tokens)}}


def _datum(wire: dict[str, Any]) -> Datum:
    arrays = {
        name: np.array(tensor["data"], tensor["dtype"]).reshape(tensor["shape"])
        for name, tensor in wire["loss_fn_inputs"].items()
    }
    tokens = np.array([token for chunk in wire["model_input"]["chunks"] for token in chunk["tokens"]])
    targets = arrays["target_tokens"]
    weights = arrays.get("weights", np.ones(targets.shape, np.float32))
    return Datum(tokens, targets, weights, arrays.get("advantages"), arrays.get("logprobs"))


def _scored(output: Any, *, with_logprobs: bool) -> dict[str, Any]:
    tensors = [{"data": lp.ravel().tolist(), "dtype": "float32", "shape": list(lp.shape)} for lp in output.logprobs]
    records = [{"logprobs": tensor} if with_logprobs else {} for tensor in tensors]
    return {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": records, "metrics": {"loss:sum": output.loss}}


def _handler(service: StandIn) -> type[JsonHandler]:
    class Handler(JsonHandler):
        def do_GET(self) -> None:
            if self._refused():
                return
            if self.path.startswith("/v1/accounts?"):
                self.send_json({"accounts": [{"name": f"accounts/{ACCOUNT}"}]})
            elif self.path.startswith(f"{GATEWAY}/api/v1/evsys/model"):
                self.send_json(
                    {"tokenizer": {"kind": "bytes"}, "suggested_learning_rate": 5e-4, "context_length": 4096}
                )
            else:
                self.send_json({"error": "not found"}, 404)

        def do_DELETE(self) -> None:
            if self._refused():
                return
            service.asked.append(("delete", {"path": self.path}))
            service.sessions.discard(self.path.rpartition("/")[2])
            self.send_json({})

        def do_POST(self) -> None:
            body = json.loads(self.read_body() or b"{}")
            name = self.path.removeprefix(f"{GATEWAY}/api/v1/")
            if self._refused():
                return
            if faults := service.faults.get(name.rpartition("/")[2]):
                self.send_json({"error": {"message": "it does not work today"}}, faults.pop(0))
            elif name == f"{GATEWAY}/inference/v1/completions":
                event = f"data: {json.dumps(service.complete(body))}\n\ndata: [DONE]\n\n"
                self.send_content(event.encode(), kind="text/event-stream")
            else:
                self.send_json(service.answer(name, body))

        def _refused(self) -> bool:
            if service.gone:
                self.close_connection = True
                return True
            if self.headers.get("x-api-key") == KEY or self.path.endswith("healthz"):
                return False
            self.send_json({"error": {"message": "the key is not known"}}, 401)
            return True

    return Handler
