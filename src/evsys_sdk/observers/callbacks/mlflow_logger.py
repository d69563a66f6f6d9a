"""Runs in MLflow, through the REST API of a tracking server; the `mlflow` package is not needed.

    callbacks:
      - { kind: mlflow_logger, params: { tracking_uri: "http://localhost:5000" } }

Metrics are sent in batches, and what could not be sent is kept for the next one. A resumed run continues under the same
id, which is kept in `mlflow.json` in the run's folder.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ...config.base import Strict
from ...errors import EvsysAuthError, EvsysError
from ...files import write_json
from ...log import get_logger
from ...protocols import RunResult
from ...record.jsonable import jsonable, nonfinite_text
from ...redact import redact, redact_text
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo

if TYPE_CHECKING:
    import httpx

_ID_FILE = "mlflow.json"
_API = "/api/2.0/mlflow"
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_\-. /:]")
_WORDS = {"@": "_at_", "^": "_hat_"}
_MOST_METRICS, _MOST_PARAMS = 500, 100
"""In one request; the server takes no more than 1000 and 100."""
_LONGEST_VALUE, _LONGEST_TAG = 500, 5000
_STATUSES = {"completed": "FINISHED", "cancelled": "KILLED", "failed": "FAILED"}


class MlflowLoggerConfig(Strict):
    """Params of the `mlflow_logger` callback."""

    tracking_uri: str | None = Field(default=None, pattern=r"^https?://")
    """Address of the tracking server; by default `MLFLOW_TRACKING_URI`."""
    experiment: str | None = Field(default=None, min_length=1)
    """Experiment there, made if it is missing; by default the name of the experiment here."""
    tags: dict[str, str] = {}
    """Labels to find the run by."""
    mode: Literal["online", "disabled"] = "online"
    """`disabled` sends nothing, which is how rehearsals use it."""
    every: int = Field(default=20, ge=1)
    """Send metrics after this many steps, and after every scoring."""
    timeout_seconds: float = Field(default=10.0, gt=0)
    """How long one request may take."""


class MlflowLogger(Callback):
    """Sends metrics, scores and hyperparameters to an MLflow tracking server."""

    name = "mlflow_logger"
    Config = MlflowLoggerConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = MlflowLoggerConfig(**params)
        self._client: httpx.Client | None = None
        self._run_id = ""
        self._unsent: list[dict[str, Any]] = []
        self._steps = 0

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Open the run there; without an address or a connection the run does not start."""
        if self.cfg.mode == "disabled":
            return
        self._client = self._connect()
        # a run that begins anew in the same folder is another one there
        self._run_id = _read_id(info.run_dir) if info.steps_done else ""
        if self._run_id:
            self._post("runs/update", {"run_id": self._run_id, "status": "RUNNING"})
            return
        tags = {"evsys.experiment": info.experiment, **self.cfg.tags}
        # By this name, its page shows it as the description.
        tags |= {"mlflow.note.content": redact_text(info.hypothesis)} if info.hypothesis else {}
        made = self._post(
            "runs/create",
            {
                "experiment_id": self._experiment_id(self.cfg.experiment or info.experiment),
                "run_name": info.run_id,
                "start_time": _now(),
                "tags": [{"key": key, "value": value} for key, value in tags.items()],
            },
        )
        self._run_id = str(made["run"]["info"]["run_id"])
        write_json(info.run_dir / _ID_FILE, {"run_id": self._run_id})
        params = [{"key": _key(key), "value": value} for key, value in _flat(redact(jsonable(info.config)))]
        for batch in batched(params, _MOST_PARAMS):
            self._post("runs/log-batch", {"run_id": self._run_id, "params": list(batch)})

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._add(step, metrics)
        self._steps += 1
        if self._steps % self.cfg.every == 0:
            self._send()

    def on_eval(self, record: EvalRecord) -> None:
        self._add(record.step, record.named_metrics)
        self._send()

    def on_run_end(self, result: RunResult) -> None:
        if self._client is None or not self._run_id:
            return
        self._send()
        for name, place in {**result.artifacts, **({"error": result.error} if result.error else {})}.items():
            tag = {"key": f"evsys.{name}", "value": redact_text(place)[:_LONGEST_TAG]}
            self._post("runs/set-tag", {"run_id": self._run_id, **tag})
        update = {"run_id": self._run_id, "status": _STATUSES[result.status], "end_time": _now()}
        self._post("runs/update", update)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> httpx.Client:
        import httpx

        address = self.cfg.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not address.startswith(("http://", "https://")):
            raise EvsysError(
                "mlflow_logger has no tracking server. Set tracking_uri or MLFLOW_TRACKING_URI to its address, such as "
                "http://localhost:5000; `mlflow server` starts one, also on a folder of runs."
            )
        user, token = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_TOKEN")
        auth = (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None
        headers = {"content-type": "application/json"}  # without it the server reads no body
        headers |= {"authorization": f"Bearer {token}"} if token and not user else {}
        return httpx.Client(base_url=address.rstrip("/"), auth=auth, headers=headers, timeout=self.cfg.timeout_seconds)

    def _experiment_id(self, name: str) -> str:
        found = self._ask("GET", "experiments/get-by-name", {"experiment_name": name}, missing_is_fine=True)
        if found is not None:
            return str(found["experiment"]["experiment_id"])
        return str(self._post("experiments/create", {"name": name})["experiment_id"])

    def _add(self, step: int, metrics: Mapping[str, float]) -> None:
        at = _now()
        for key, value in metrics.items() if self._client is not None else ():
            # JSON has no NaN; the server reads it as a word.
            shown = value if math.isfinite(value) else nonfinite_text(value)
            self._unsent.append({"key": _key(key), "value": shown, "timestamp": at, "step": step})

    def _send(self) -> None:
        while self._unsent and self._run_id:
            self._post("runs/log-batch", {"run_id": self._run_id, "metrics": self._unsent[:_MOST_METRICS]})
            del self._unsent[:_MOST_METRICS]  # only what has arrived

    def _post(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._ask("POST", what, body) or {}

    def _ask(
        self, method: str, what: str, body: dict[str, Any], *, missing_is_fine: bool = False
    ) -> dict[str, Any] | None:
        import httpx

        assert self._client is not None
        place = {"params": body} if method == "GET" else {"content": json.dumps(body, allow_nan=False)}
        try:
            answer = self._client.request(method, f"{_API}/{what}", **place)  # pyright: ignore[reportArgumentType]
        except httpx.HTTPError as error:
            raise EvsysError(
                f"mlflow_logger cannot reach {self._client.base_url}: {redact_text(str(error)) or 'no answer'}. "
                "Check the address and that the server runs, or remove the callback."
            ) from None
        if answer.status_code in (401, 403):
            raise EvsysAuthError(
                f"mlflow_logger was turned away by {self._client.base_url} ({answer.status_code}). Set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
            )
        if answer.status_code == 404 and missing_is_fine:
            return None
        if answer.status_code != 200:
            said = redact_text(answer.text[:300])
            raise EvsysError(f"mlflow_logger: {what} was refused by the server ({answer.status_code}): {said}")
        return answer.json() if answer.content else {}


def _key(name: str) -> str:
    """A name as the server takes it: `pass@1` is called `pass_at_1` there."""
    # 250 is the longest name that the server takes.
    return _NOT_IN_KEYS.sub(lambda found: _WORDS.get(found[0], "_"), name)[:250]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as dotted keys; what is long is cut, as the whole is in the run's folder."""
    if isinstance(value, dict):
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from _flat(inner, f"{path}.{key}" if path else str(key))  # pyright: ignore[reportUnknownArgumentType]
    elif value not in (None, "", []):
        yield path, (value if isinstance(value, str) else json.dumps(value))[:_LONGEST_VALUE]


def _read_id(run_dir: Path) -> str:
    try:
        return str(json.loads((run_dir / _ID_FILE).read_text(encoding="utf-8"))["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        get_logger(__name__).warning("%s has no id to go on with; MLflow gets a new run", run_dir / _ID_FILE)
        return ""


def _now() -> int:
    return int(time.time() * 1000)
