"""Logs runs to Trackio, the local-first tracker of Hugging Face.

    callbacks:
      - { kind: trackio_logger, params: { project: my-project } }

Without `space_id` and `server_url` everything stays on this machine, in Trackio's folder (`TRACKIO_DIR`); view it with
`trackio show`. A resumed run continues under the same name.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ...config.base import Strict
from ...errors import EvsysError
from ...lazy import import_extra
from ...log import get_logger
from ...protocols import RunResult
from ...record.jsonable import jsonable
from ...redact import redact, redact_text
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo


class TrackioLoggerConfig(Strict):
    """Params of the `trackio_logger` callback."""

    project: str | None = Field(default=None, min_length=1)
    """Trackio project; by default the experiment's name."""
    name: str | None = Field(default=None, min_length=1)
    """Name of the run in Trackio; by default its id."""
    group: str | None = Field(default=None, min_length=1)
    """Group of the run; by default the experiment's name."""
    space_id: str | None = Field(default=None, min_length=1)
    """Hugging Face Space to upload to, such as `me/trackio`; by default nothing is uploaded."""
    server_url: str | None = Field(default=None, min_length=1)
    """Address of your own Trackio server to upload to."""
    enabled: bool = True
    """Whether anything is logged."""


class TrackioLogger(Callback):
    """Sends metrics and scores to Trackio."""

    name = "trackio_logger"
    Config = TrackioLoggerConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = TrackioLoggerConfig(**params)
        self._run: Any = None

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Open the Trackio run; without a connection to its server the run does not start."""
        if not self.cfg.enabled:
            return
        trackio = import_extra("trackio", extra="trackio", needed_by="callback 'trackio_logger'")
        try:
            with _silent():
                self._run = trackio.init(
                    project=self.cfg.project or info.experiment,
                    name=self.cfg.name or info.run_id,
                    group=self.cfg.group or info.experiment,
                    space_id=self.cfg.space_id,
                    server_url=self.cfg.server_url,
                    config=redact(jsonable(info.config)),
                    resume="allow",
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        except Exception as error:  # errors of its HTTP and hub clients
            message = redact_text(" ".join(str(error).split()))
            raise EvsysError(
                f"trackio_logger cannot start a run: {type(error).__name__}: {message}. "
                "Check space_id, server_url and HF_TOKEN, or remove the first two."
            ) from None
        get_logger(__name__).info("Trackio: trackio show --project %s", self.cfg.project or info.experiment)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log(step, metrics)

    def on_eval(self, record: EvalRecord) -> None:
        self._log(record.step, record.named_metrics)

    def on_run_end(self, result: RunResult) -> None:
        """Log numeric results as the last step."""
        self._log(int(result.metrics.get("steps", 0)), {f"final/{key}": value for key, value in result.metrics.items()})

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            with _silent():
                run.finish()

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._run is not None:
            self._run.log(dict(metrics), step=step)


def _silent() -> contextlib.AbstractContextManager[Any]:
    """Keep the package's prints out of stdout, which is for results."""
    return contextlib.redirect_stdout(io.StringIO())
