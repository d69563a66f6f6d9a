"""Logs runs to Weights & Biases.

    callbacks:
      - { kind: wandb_logger, params: { project: my-project, mode: offline } }

Steps are logged as a metric, not as W&B's step counter, which only grows: a resumed run would lose repeated steps. A
resumed run continues under the same W&B id, stored in `wandb.json` in the run's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ...config.base import Strict
from ...errors import EvsysAuthError, EvsysError
from ...files import write_json
from ...lazy import import_extra
from ...log import get_logger
from ...protocols import RunResult
from ...record.jsonable import jsonable
from ...record.jsonl_file import cannot_write
from ...redact import redact, redact_text
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo

_ID_FILE = "wandb.json"


class WandbLoggerConfig(Strict):
    """Params of the `wandb_logger` callback."""

    project: str | None = Field(default=None, min_length=1, max_length=128)
    """W&B project; by default the experiment's name."""
    entity: str | None = Field(default=None, min_length=1)
    """W&B user or team; by default that of the API key."""
    name: str | None = Field(default=None, min_length=1)
    """Name of the run in W&B; by default its id."""
    group: str | None = Field(default=None, min_length=1)
    """Group of the run; by default the experiment's name."""
    tags: list[str] = []
    """Tags of the run."""
    mode: Literal["online", "offline", "disabled"] = "online"
    """`online` uploads, `offline` writes files for a later `wandb sync`, `disabled` does nothing."""
    timeout_seconds: float = Field(default=30.0, gt=0)
    """Time limit for the server at the start and for uploads at the end; `wandb sync` uploads the rest."""


class WandbLogger(Callback):
    """Sends metrics and scores to Weights & Biases."""

    name = "wandb_logger"
    Config = WandbLoggerConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = WandbLoggerConfig(**params)
        self._wandb: Any = None
        self._run: Any = None

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Open the W&B run; without a key or a connection the run does not start."""
        if self.cfg.mode == "disabled":
            return
        self._wandb = import_extra("wandb", extra="wandb", needed_by="callback 'wandb_logger'")
        try:
            with _no_prompts():
                self._run = self._init(info)
        except (self._wandb.errors.UsageError, self._wandb.errors.AuthenticationError) as error:
            raise EvsysAuthError(
                f"wandb_logger: Weights & Biases rejected the login: {_one_line(error)} "
                "Set WANDB_API_KEY, run `wandb login`, or set `mode: offline`."
            ) from None
        except (self._wandb.errors.Error, TimeoutError, OSError) as error:
            raise EvsysError(
                f"wandb_logger cannot start a run at Weights & Biases: {_one_line(error)} Check the network, "
                "WANDB_BASE_URL and WANDB_API_KEY, or set `mode: offline` and upload later with `wandb sync`."
            ) from None
        # Scores may be logged after later steps, and W&B drops values for past steps of its counter.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        url: str | None = self._run.url if self.cfg.mode == "online" else None
        try:
            write_json(info.run_dir / _ID_FILE, {"id": self._run.id, "mode": self.cfg.mode, "url": url})
        except OSError as error:
            raise cannot_write(info.run_dir / _ID_FILE, error) from error
        if url:
            get_logger(__name__).info("Weights & Biases: %s", url)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log(step, metrics)

    def on_eval(self, record: EvalRecord) -> None:
        self._log(record.step, record.named_metrics)

    def on_run_end(self, result: RunResult) -> None:
        """Log the outcome; a failed run is marked as failed."""
        if self._run is None:
            return
        self._run.summary.update({"status": result.status, **redact(jsonable({"artifacts": result.artifacts}))})
        if result.error:
            self._run.summary["error"] = redact_text(result.error)
        self._finish(0 if result.status == "completed" else 1)

    def close(self) -> None:
        self._finish(1)  # still open only if the run did not end

    def _init(self, info: RunInfo) -> Any:
        settings = self._wandb.Settings(
            console="off",  # do not upload the program's output
            silent=True,
            init_timeout=self.cfg.timeout_seconds,
            finish_timeout=self.cfg.timeout_seconds,
        )
        info.run_dir.mkdir(parents=True, exist_ok=True)
        return self._wandb.init(
            project=self.cfg.project or re.sub(r"[/\\#?%:]", "-", info.experiment)[:128],  # W&B rejects others
            entity=self.cfg.entity,
            name=self.cfg.name or info.run_id,
            group=self.cfg.group or info.experiment,
            tags=self.cfg.tags,
            notes=info.hypothesis,
            config=redact(jsonable(info.config)),
            id=_read_id(info.run_dir) or secrets.token_hex(4),
            resume="allow" if self.cfg.mode == "online" else None,
            mode=self.cfg.mode,
            dir=str(info.run_dir),
            reinit="create_new",  # arms of one process are separate runs
            save_code=False,
            settings=settings,
        )

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._run is not None:
            self._run.log({**metrics, "step": step})

    def _finish(self, exit_code: int) -> None:
        run, self._run = self._run, None  # `close` follows `on_run_end` and must not mark the run as failed
        if run is not None:
            run.finish(exit_code=exit_code)


def _read_id(run_dir: Path) -> str | None:
    """The W&B id of an earlier attempt at this run."""
    path = run_dir / _ID_FILE
    if not path.exists():
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        remedy = "Remove it to log this run under a new id."
        raise EvsysError(f"{path}: no W&B id of this run ({error!r}). {remedy}") from None


@contextlib.contextmanager
def _no_prompts() -> Generator[None]:
    """Prevent wandb from prompting for a key on a terminal, which would block the run."""
    terminal = sys.stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = terminal


def _one_line(error: Exception) -> str:
    text = " ".join(redact_text(str(error)).split()) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
