"""Sends a stream to the server in the background, so that training never waits for a network.

The server counts the records of each stream and stores the count together with them. A batch that was lost, repeated or
cut by a crash on either side is therefore sent again without harm: the server says from where on.
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
"""How often an idle sender asks whether something was requested."""
PATIENCE_S = 0.5
"""All the time that callers ever wait for a server that does not answer."""
FLUSH_S = 10.0
"""How long the end of a run waits for a server that does answer."""
_GATHER_S = 0.05
"""Records of so long go into one request, unless somebody waits; the first waits, the others travel with it."""
_GATHER_RECORDS = 1000
"""So many do not wait longer: the server stores them while the next ones are made."""
_NEVER = 1 << 62
_LONGEST_PAUSE_S = 30.0

_warned_about: set[str] = set()
"""Servers that did not answer when last asked: one warning for all runs of a process."""

type RequestHandler = Callable[[Mapping[str, Any]], None]


class StreamUpload:
    """Sends one stream, batch after batch; knows how far it got."""

    def __init__(self, connection: Connection, path: Path) -> None:
        self.connection = connection
        self.reader = StreamReader(path)
        self.acknowledged = 0
        """How many records the server has."""
        self.rejected: list[str] = []
        """Why the server put single records aside."""
        self.is_behind = True
        """Whether there is certainly more to send."""
        self._http: HTTPConnection | None = None
        self._batch_bytes = BATCH_BYTES

    def send_batch(self) -> dict[str, Any] | None:
        """Send what comes next; the server's answer, or None when there is nothing to send."""
        batch = self.reader.read(self._batch_bytes)
        self.is_behind = batch is not None
        if batch is None:
            return None
        try:
            answer = self.post(batch.data, batch.first)
        except SequenceGap as gap:  # the server has more than we know of, or lost what it had not acknowledged for good
            self.resume_at(gap.next_seq)
            return {}
        except DashboardClientError as error:
            # Too long for a proxy on the way, perhaps; one record cannot be made shorter.
            if error.status == 413 and batch.next - batch.first > 1:
                self._batch_bytes = max(self._batch_bytes // 4, 1)
                return {}
            raise
        self.reader.advance(batch)
        self.is_behind = batch.is_full
        self.acknowledged = max(batch.next, int(answer.get("next", 0)))
        for one in answer.get("rejected", ()):
            self.rejected.append(f"record {one.get('seq')}: {one.get('reason')}")
        return answer

    def ask(self) -> dict[str, Any]:
        """Send nothing, to hear what is requested."""
        return self.post(b"", self.acknowledged)

    def post(self, body: bytes, seq: int) -> dict[str, Any]:
        """Send records; connections are kept, and a stale one is replaced once."""
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
                # A connection that was kept may have been closed by the server meanwhile, which says nothing about the
                # server. Sending again does no harm: records that have arrived are known by their numbers.
                if fresh or attempt == 2 or error.status is not None:
                    raise
        raise AssertionError("unreachable")

    def note(self) -> None:
        """Remember on disk how far the server got, which saves the next `evsys sync` from asking."""
        note_sent(self.reader.path, self.connection.target, self.acknowledged, self.reader.offset)

    def close(self) -> None:
        self._drop_connection()
        self.reader.close()

    def resume_at(self, number: int) -> None:
        """Continue from a record: what comes before it has arrived."""
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
    """A thread that follows the stream of this process."""

    def __init__(self, connection: Connection, mirror: Mirror, on_request: RequestHandler | None = None) -> None:
        self._mirror = mirror
        self._upload = StreamUpload(connection, mirror.path)
        self.on_request = on_request
        self.refusal: DashboardClientError | None = None
        """Why the server will take nothing more of this stream."""
        self._state = threading.Condition()
        self.wakes_at = 0
        """How many records the stream must have for `wake` to be of use. Check it before adding one: to take a
        lock each time would cost training more than the rest of the call."""
        self._failing = False
        self._attempts = 0
        self._stopping = self._hurried = False
        self._patience_s = PATIENCE_S
        self._thread = threading.Thread(target=self._run, name="evsys-dashboard", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Say that the stream has grown."""
        with self._state:
            self._state.notify_all()

    def wait_for(self, number: int, timeout_s: float, *, stubborn: bool = False) -> bool:
        """Wait until the server has the first `number` records; False when it has not.

        A server that does not answer costs at most `PATIENCE_S` over the life of the sender, unless one is `stubborn`.
        """
        with self._state:
            attempts = self._attempts
            began = time.monotonic()
            self._hurried = True
            self._state.notify_all()  # somebody waits, so the pause after a failure is over
            while self._upload.acknowledged < number and self.refusal is None and self._thread.is_alive():
                # A server that has answered is given the whole time; of one that has not, nothing is known yet.
                answered = not self._failing and self._upload.acknowledged > 0
                left = timeout_s if answered or stubborn else min(timeout_s, self._patience_s)
                left -= time.monotonic() - began
                # An attempt made for this caller has failed, and the next one comes only after a pause.
                if left <= 0 or (self._failing and self._attempts > attempts and not stubborn):
                    break
                self._state.wait(left)
            arrived = self._upload.acknowledged >= number
            if not arrived and self.refusal is None and not stubborn:
                self._patience_s = max(0.0, self._patience_s - (time.monotonic() - began))
            return arrived

    @property
    def has_rejections(self) -> bool:
        return bool(self._upload.rejected)

    def take_rejections(self) -> list[str]:
        """Why the server put single records aside, each reason once."""
        with self._state:
            found, self._upload.rejected = self._upload.rejected, []
            return found

    def close(self, timeout_s: float | None = None) -> bool:
        """Send what is left, if that can be done in time; whether everything has arrived."""
        wait_s = FLUSH_S if timeout_s is None else timeout_s
        arrived = self.wait_for(self._mirror.length, wait_s, stubborn=timeout_s is not None)
        if not arrived and self.refusal is None:
            self._warn("not everything has reached the dashboard yet.")
        with self._state:
            self._stopping = True
            self._state.notify_all()
        # Time to note what was sent; a thread that hangs in a request is left behind, it is a daemon.
        self._thread.join(0.2 if arrived else 0.0)
        return arrived

    def _run(self) -> None:
        pause = 0.0
        while self.refusal is None:
            with self._state:
                if pause:  # after a failure new records are no reason to try again sooner
                    self._sleep(pause, _NEVER)
                else:
                    self._sleep(IDLE_S, self._upload.acknowledged + 1)
                    self._sleep(_GATHER_S, self._upload.acknowledged + _GATHER_RECORDS)
                self._hurried = False
                if self._stopping:
                    break
            pause = self._send_all(pause)
        # Half a stream is not worth a note: `evsys sync` skips only what is known to be there whole.
        if self.refusal is None and self._upload.acknowledged >= self._mirror.length:
            self._note()
        self._upload.close()

    def _sleep(self, seconds: float, until_length: int) -> None:
        """Wait until the stream has so many records, somebody waits for them, or the time is over."""
        self.wakes_at = until_length  # before the length is looked at: who adds one then finds either this or that

        def is_over() -> bool:
            return self._hurried or self._stopping or self._mirror.length >= until_length

        self._state.wait_for(is_over, seconds)
        self.wakes_at = _NEVER

    def _send_all(self, pause: float) -> float:
        """Send everything there is; returns how long to wait before the next attempt."""
        try:
            while (answer := self._upload.send_batch()) is not None:
                self._settle(failing=False)
                self._hand_on(answer)
                if self._stopping or not self._upload.is_behind:  # what is new since is gathered first
                    return 0.0
            if self.on_request is not None:
                # Answers to records bring requests along; without any to send, one has to ask.
                self._hand_on(self._upload.ask())
            self._settle(failing=False)
        except Unreachable as error:
            self._warn(str(error))
            self._settle(failing=True)
            return min(max(pause * 2, 0.5), _LONGEST_PAUSE_S)  # longer each time, so that a server can come back
        except DashboardClientError as error:
            self._refuse(error)
        except Exception as error:  # the mirror was deleted, or a bug: nothing of that is training's affair
            self._refuse(DashboardClientError(f"sending to the dashboard stopped: {type(error).__name__}: {error}."))
        return 0.0

    def _warn(self, message: str) -> None:
        target = self._upload.connection.target
        if target not in _warned_about:
            _warned_about.add(target)
            folder = self._upload.reader.path.parent
            get_logger(__name__).warning("%s Everything is kept in %s; `evsys sync` sends it.", message, folder)

    def _note(self) -> None:
        try:
            self._upload.note()
        except OSError:  # it only saves the next `evsys sync` a question
            get_logger(__name__).debug("cannot note how far was sent", exc_info=True)

    def _settle(self, *, failing: bool) -> None:
        with self._state:
            self._failing = failing
            self._attempts += 1
            if not failing:  # it is back: if it goes again, that is waited for and warned of anew
                self._patience_s = PATIENCE_S
                _warned_about.discard(self._upload.connection.target)
            self._state.notify_all()

    def _refuse(self, error: DashboardClientError) -> None:
        with self._state:
            self.refusal = error
            self._state.notify_all()

    def _hand_on(self, answer: Mapping[str, Any]) -> None:
        for request in answer.get("requests", ()):
            if self.on_request is not None:
                self.on_request(request)


# Sending what is left in a mirror: from a process that was killed, from an offline machine, from a copied folder.


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of one stream."""

    stream: str
    path: str
    records: int
    """How many records the server has of it."""
    new: int
    """How many of them it did not have before."""
    rejected: list[str]
    """Records that the server moved aside, and why."""
    problem: str = ""
    """Why the stream could not be sent to its end."""


def find_mirror(given: Path) -> Path:
    """The mirror at a path: its own folder, or one that has it."""
    for folder in (given, given / "dashboard", given / ".evsys" / "dashboard"):
        if folder.is_dir() and any(streams(folder)):
            return folder
    raise DataError(
        f"{given}: there is no mirror of the dashboard's client. Name the folder of EVSYS_LOG_DIR, or one with .evsys/."
    )


def send_mirror(
    connection: Connection, folder: Path, *, again: bool = False, tell: Callable[[Sent], None] = lambda _: None
) -> Iterator[Sent]:
    """Send every stream that the server may not have; with `again`, also those it is known to have."""
    for path in streams(folder):
        if not again and is_all_sent(path, connection.target):
            continue
        sent = _send(connection, path)
        tell(sent)
        yield sent


def _send(connection: Connection, path: Path) -> Sent:
    upload = StreamUpload(connection, path)
    before = -1
    try:
        header = read_header(path)
        # "": written offline without a project, so it may go to any.
        if header.get("project") not in ("", connection.project):
            raise DataError(f"{path}: it is of project {header['project']!r}, and EVSYS_PROJECT_ID is another.")
        before = _count_known(upload)
        while upload.send_batch() is not None:
            pass
        upload.note()
        problem = ""
    except Unreachable:  # the others would fail alike; what is wrong with one stream alone does not stop them
        raise
    except (EvsysError, OSError) as error:
        problem = str(error)
    finally:
        upload.close()
    new = max(upload.acknowledged - max(before, 0), 0)
    return Sent(upload.reader.stream, str(path), upload.acknowledged, new, upload.rejected, problem)


def _count_known(upload: StreamUpload) -> int:
    """How many records of a stream the server has; the upload continues from there."""
    answer = upload.post(b"", 0)
    known = answer.get("next")
    if not isinstance(known, int):
        raise DashboardClientError("the dashboard did not say how much of the stream it has.")
    upload.resume_at(known)
    return known
