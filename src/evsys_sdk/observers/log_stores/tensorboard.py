"""TensorBoard event files, written with the `tensorboard` package only: no torch, no tensorflow.

Every call writes and flushes one record, so curves are live and a killed process loses nothing. A resumed run writes a
new file that starts with its first step; TensorBoard then drops later steps of the older file.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config.base import Strict
from ...lazy import import_extra
from ...record.jsonable import jsonable
from ...record.jsonl_file import cannot_write
from ...record.run_files.metrics import as_number
from ...redact import redact
from .jsonl import log_folder


class TensorBoardConfig(Strict):
    """Params of the `tensorboard` log store."""

    log_dir: str | None = None
    """Folder of the event files; by default `logs` in the run's folder."""


class TensorBoardLogStore:
    """Event files for TensorBoard: scalars, hyperparameters, artifact pointers as text."""

    name = "tensorboard"
    Config = TensorBoardConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = TensorBoardConfig(**params)
        self._needed_by = "log_store 'tensorboard'"
        self._summary = self._import("compat.proto.summary_pb2")
        self._event = self._import("compat.proto.event_pb2")
        self._writer: Any = None

    def log_scalar(self, key: str, value: float, step: int) -> None:
        """Log one number."""
        self.log_metrics({key: value}, step)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the numbers of one step as one event, including NaN and infinities."""
        value = self._summary.Summary.Value
        values = [value(tag=key, simple_value=as_number(key, number)) for key, number in metrics.items()]
        self._write(step=int(step), summary=self._summary.Summary(value=values))

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Log the run's config for the HPARAMS tab; nested names are joined by dots."""
        hparams = self._import("plugins.hparams.summary_v2")
        self._write(summary=hparams.hparams_pb(flatten(redact(jsonable(params)))))

    def log_artifact(self, name: str, path: str) -> None:
        """Record where something can be found, for the TEXT tab."""
        metadata = self._summary.SummaryMetadata(
            plugin_data=self._summary.SummaryMetadata.PluginData(plugin_name="text")
        )
        tensor = self._import("compat.proto.tensor_pb2").TensorProto(
            dtype=self._import("compat.proto.types_pb2").DT_STRING,
            string_val=[str(path).encode()],
            tensor_shape=self._import("compat.proto.tensor_shape_pb2").TensorShapeProto(dim=[{"size": 1}]),
        )
        value = self._summary.Summary.Value(tag=f"artifacts/{name}", metadata=metadata, tensor=tensor)
        self._write(summary=self._summary.Summary(value=[value]))

    def rewind(self, next_step: int) -> None:
        """Make TensorBoard drop every step from `next_step` on."""
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._write(step=int(next_step), session_log=start)

    def close(self) -> None:
        """Close the event file; a later call begins a new one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, **fields: Any) -> None:
        try:
            writer = self._writer = self._writer or self._open()
            writer.write(self._event.Event(wall_time=time.time(), **fields).SerializeToString())
            writer.flush()
        except OSError as error:
            raise cannot_write(log_folder(self.cfg.log_dir, self.name), error) from error

    def _open(self) -> Any:
        """Open an event file; names of later files sort after it, as TensorBoard expects."""
        folder: Path = log_folder(self.cfg.log_dir, self.name)
        folder.mkdir(parents=True, exist_ok=True)
        seconds, fraction = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds:010d}.{fraction:09d}.{socket.gethostname()}.{os.getpid()}"
        # The package's own EventFileWriter uses a thread and imports tensorflow if installed.
        # "x": two writers would corrupt the file.
        writer = self._import("summary.writer.record_writer").RecordWriter((folder / name).open("xb"))
        writer.write(self._event.Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        return writer

    def _import(self, module: str) -> Any:
        return import_extra(f"tensorboard.{module}", extra="tensorboard", needed_by=self._needed_by)


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Nested params as `run.model.name: value`, with lists and null as JSON text."""
    flat: dict[str, bool | int | float | str] = {}
    for key, value in params.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return flat
