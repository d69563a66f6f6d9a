"""Send a stream to the server in the background, so that training does not wait for the network.

The server stores the record count of each stream in the same transaction as the records. A lost, repeated or partial
batch can therefore be sent again safely: the server returns the number of the next record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import DashboardClientError, DataError, EvsysError
from ...log import get_logger
from .connection import Connection, SequenceGap, Unreachable
from .mirror import BATCH_BYTES, Mirror, StreamReader, is_all_sent, note_sent, read_header, streams

if TYPE_CHECKING:
    from http.client import HTTPConnection


IDLE_S = 5.0
"""Interval at which an idle sender polls for requests."""
PATIENCE_S = 0.5
"""Total time that callers wait for a server that does not answer."""
FLUSH_S = 10.0
"""Time that the end of a run waits for a server that answers."""
_GATHER_S = 0.05
"""Time for which records are collected for one request, unless a caller waits."""
_GATHER_RECORDS = 1000
"""Number of records that are sent without collecting more."""
_NEVER = 1 << 62
_LONGEST_PAUSE_S = 30.0

_warned_about: set[str] = set()
"""Servers that did not answer last time, to print one warning per process."""

type RequestHandler = Callable[[Mapping[str, Any]], None]


class StreamUpload:
    """Sends one stream in batches and tracks its progress."""

    def __init__(self, connection: Connection, path: Path) -> None:
        self.connection = connection
        self.reader = StreamReader(path)
        self.acknowledged = 0
        """Number of records that the server has."""
        self.rejected: list[str] = []
        """Reasons why the server quarantined records."""
        self.is_behind = True
        """Whether the last batch was full, so that more records may follow."""
        self._http: HTTPConnection | None = None
        self._batch_bytes = BATCH_BYTES

    def send_batch(self) -> dict[str, Any] | None:
        """Send the next batch; return the server's answer, or None if there is nothing to send."""
        batch = self.reader.read(self._batch_bytes)
        self.is_behind = batch is not None
        if batch is None:
            return None
        try:
            answer = self.post(batch.data, batch.first)
        except SequenceGap as gap:  # the server expects another record
            self.resume_at(gap.next_seq)
            return {}
        except DashboardClientError as error:
            # A proxy may limit the size of requests; a single record cannot be split.
            if error.status == 413 and batch.next - batch.first > 1:
                self._batch_bytes = max(self._batch_bytes // 4, 1)
                return {}
            raise
        self.reader.advance(batch)
        self.is_behind = batch.is_full
        self.acknowledged = max(batch.next, int(answer.get("next", 0)))
        for record in answer.get("rejected", ()):
            self.rejected.append(f"record {record.get('seq')}: {record.get('reason')}")
        return answer

    def poll(self) -> dict[str, Any]:
        """Send an empty batch to receive open requests."""
        return self.post(b"", self.acknowledged)

    def post(self, body: bytes, seq: int) -> dict[str, Any]:
        """Send records over a kept connection; reconnect once if it was closed."""
        for attempt in (1, 2):
            fresh = self._http is None
            self._http = self._http or self.connection.open()
            try:
                return self.connection.request(
                    "POST",
                    f"/sdk/streams/{self.reader.stream}/",
                    body,
                    query={"seq": seq},
                    connection=self._http,
                    content_type="application/x-ndjson",
                )
            except Unreachable as error:
                self._drop_connection()
                # The server may have closed a kept connection. Sending again is safe, because the server skips
                # records that it has.
                if fresh or attempt == 2 or error.status is not None:
                    raise
        raise AssertionError("unreachable")

    def note(self) -> None:
        """Record the progress on disk, so that the next `evsys sync` can skip the stream."""
        note_sent(self.reader.path, self.connection.target, self.acknowledged, self.reader.offset)

    def close(self) -> None:
        self._drop_connection()
        self.reader.close()

    def resume_at(self, number: int) -> None:
        """Continue from a record; the server has all records before it."""
        if not self.reader.go_to(number):
            raise DashboardClientError(
                f"the dashboard has {number} records of stream {self.reader.stream}, and {self.reader.path} has fewer: "
                "lines were removed from it. Restore the file; nothing more of this stream can be sent.",
                409,
            )
        self.acknowledged = number

    def _drop_connection(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None


class Sender:
    """Sends the stream of this process on a background thread."""

    def __init__(self, connection: Connection, mirror: Mirror, on_request: RequestHandler | None = None) -> None:
        self._mirror = mirror
        self._upload = StreamUpload(connection, mirror.path)
        self.on_request = on_request
        self.refusal: DashboardClientError | None = None
        """Error that ended sending, or None."""
        self._state = threading.Condition()
        self.wakes_at = 0
        """Length of the stream at which the thread must be woken. Check it before calling `wake`: taking the lock
        for each record would cost training more than the rest of the call."""
        self._failing = False
        self._attempts = 0
        self._stopping = self._hurried = False
        self._patience_s = PATIENCE_S
        self._thread = threading.Thread(target=self._run, name="evsys-dashboard", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread after the stream has grown."""
        with self._state:
            self._state.notify_all()

    def wait_for(self, number: int, timeout_s: float, *, stubborn: bool = False) -> bool:
        """Wait until the server has the first `number` records; return whether it has them.

        A server that does not answer costs at most `PATIENCE_S` in total between answers, unless `stubborn` is set.
        """
        with self._state:
            attempts = self._attempts
            began = time.monotonic()
            self._hurried = True
            self._state.notify_all()  # ends the pause after a failure
            while self._upload.acknowledged < number and self.refusal is None and self._thread.is_alive():
                # Only a server that has answered before gets the whole timeout.
                answered = not self._failing and self._upload.acknowledged > 0
                remaining_s = timeout_s if answered or stubborn else min(timeout_s, self._patience_s)
                remaining_s -= time.monotonic() - began
                # An attempt for this caller has failed, and the next one follows only after a pause.
                if remaining_s <= 0 or (self._failing and self._attempts > attempts and not stubborn):
                    break
                self._state.wait(remaining_s)
            arrived = self._upload.acknowledged >= number
            if not arrived and self.refusal is None and not stubborn:
                self._patience_s = max(0.0, self._patience_s - (time.monotonic() - began))
            return arrived

    @property
    def has_rejections(self) -> bool:
        return bool(self._upload.rejected)

    def take_rejections(self) -> list[str]:
        """Return the reasons for quarantined records, and clear them."""
        with self._state:
            reasons, self._upload.rejected = self._upload.rejected, []
            return reasons

    def close(self, timeout_s: float | None = None) -> bool:
        """Send the remaining records within the timeout; return whether all have arrived."""
        wait_s = FLUSH_S if timeout_s is None else timeout_s
        arrived = self.wait_for(self._mirror.length, wait_s, stubborn=timeout_s is not None)
        if not arrived and self.refusal is None:
            self._warn("not everything has reached the dashboard yet.")
        with self._state:
            self._stopping = True
            self._state.notify_all()
        # Time for the thread to record its progress; a daemon thread that hangs in a request is abandoned.
        self._thread.join(0.2 if arrived else 0.0)
        return arrived

    def _run(self) -> None:
        pause = 0.0
        while self.refusal is None:
            with self._state:
                if pause:  # after a failure, new records do not shorten the pause
                    self._sleep(pause, _NEVER)
                else:
                    self._sleep(IDLE_S, self._upload.acknowledged + 1)
                    self._sleep(_GATHER_S, self._upload.acknowledged + _GATHER_RECORDS)
                self._hurried = False
                if self._stopping:
                    break
            pause = self._send_all(pause)
        # Only complete streams are recorded, because `evsys sync` skips complete streams only.
        if self.refusal is None and self._upload.acknowledged >= self._mirror.length:
            self._record_progress()
        self._upload.close()

    def _sleep(self, seconds: float, until_length: int) -> None:
        """Wait until the stream has `until_length` records, a caller waits, or the time is over."""
        self.wakes_at = until_length  # set before the length is read, so that no wake-up is missed

        def is_over() -> bool:
            return self._hurried or self._stopping or self._mirror.length >= until_length

        self._state.wait_for(is_over, seconds)
        self.wakes_at = _NEVER

    def _send_all(self, pause: float) -> float:
        """Send all available records; return the pause before the next attempt."""
        try:
            while (answer := self._upload.send_batch()) is not None:
                self._settle(failing=False)
                self._deliver_requests(answer)
                if self._stopping or not self._upload.is_behind:  # newer records are collected first
                    return 0.0
            if self.on_request is not None:
                # Answers to batches include requests; without records to send, poll for them.
                self._deliver_requests(self._upload.poll())
            self._settle(failing=False)
        except Unreachable as error:
            self._warn(str(error))
            self._settle(failing=True)
            return min(max(pause * 2, 0.5), _LONGEST_PAUSE_S)  # exponential backoff
        except DashboardClientError as error:
            self._refuse(error)
        except Exception as error:  # e.g. the mirror was deleted; must not affect training
            self._refuse(DashboardClientError(f"sending to the dashboard stopped: {type(error).__name__}: {error}."))
        return 0.0

    def _warn(self, message: str) -> None:
        target = self._upload.connection.target
        if target not in _warned_about:
            _warned_about.add(target)
            folder = self._upload.reader.path.parent
            get_logger(__name__).warning("%s Everything is kept in %s; `evsys sync` sends it.", message, folder)

    def _record_progress(self) -> None:
        try:
            self._upload.note()
        except OSError:  # a cache for `evsys sync`
            get_logger(__name__).debug("cannot record the progress of the upload", exc_info=True)

    def _settle(self, *, failing: bool) -> None:
        with self._state:
            self._failing = failing
            self._attempts += 1
            if not failing:  # the next outage gets its own wait and warning
                self._patience_s = PATIENCE_S
                _warned_about.discard(self._upload.connection.target)
            self._state.notify_all()

    def _refuse(self, error: DashboardClientError) -> None:
        with self._state:
            self.refusal = error
            self._state.notify_all()

    def _deliver_requests(self, answer: Mapping[str, Any]) -> None:
        for request in answer.get("requests", ()):
            if self.on_request is not None:
                self.on_request(request)


# Sending the rest of a mirror: of a killed process, of an offline machine, of a copied folder.


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of sending one stream."""

    stream: str
    path: str
    records: int
    """Number of its records that the server has."""
    new: int
    """Number of records that the server did not have before."""
    rejected: list[str]
    """Records that the server quarantined, with the reason."""
    problem: str = ""
    """Why the stream could not be sent completely; empty if it was."""


def find_mirror(start: Path) -> Path:
    """Find the mirror in a folder: the folder itself, or a subfolder `dashboard` or `.evsys/dashboard`."""
    for folder in (start, start / "dashboard", start / ".evsys" / "dashboard"):
        if folder.is_dir() and any(streams(folder)):
            return folder
    raise DataError(
        f"{start}: there is no mirror of the dashboard's client. Name the folder of EVSYS_LOG_DIR, or one with .evsys/."
    )


def send_mirror(connection: Connection, folder: Path, *, again: bool = False) -> Iterator[Sent]:
    """Send every stream that the server may not have completely; with `again`, all streams."""
    for path in streams(folder):
        if again or not is_all_sent(path, connection.target):
            yield _send(connection, path)


def _send(connection: Connection, path: Path) -> Sent:
    upload = StreamUpload(connection, path)
    before = -1
    try:
        header = read_header(path)
        # "" was written offline without a project, and may be sent to any.
        if header.get("project") not in ("", connection.project):
            raise DataError(f"{path}: it is of project {header['project']!r}, and EVSYS_PROJECT_ID is another.")
        before = _resume_upload(upload)
        while upload.send_batch() is not None:
            pass
        upload.note()
        problem = ""
    except Unreachable:  # all streams would fail; any other problem concerns one stream only
        raise
    except (EvsysError, OSError) as error:
        problem = str(error)
    finally:
        upload.close()
    new = max(upload.acknowledged - max(before, 0), 0)
    return Sent(upload.reader.stream, str(path), upload.acknowledged, new, upload.rejected, problem)


def _resume_upload(upload: StreamUpload) -> int:
    """Return the number of records that the server has, and continue the upload there."""
    answer = upload.post(b"", 0)
    next_seq = answer.get("next")
    if not isinstance(next_seq, int):
        raise DashboardClientError("the dashboard did not say how much of the stream it has.")
    upload.resume_at(next_seq)
    return next_seq
