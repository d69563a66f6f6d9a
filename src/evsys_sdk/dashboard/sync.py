"""Sending what is left in a mirror: from a process that was killed, from an offline machine, from a copied folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DashboardClientError, DataError, EvsysError
from .connection import Connection, Unreachable
from .mirror import is_all_sent, read_header, streams
from .sender import StreamUpload


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
    """Records that the server put aside, and why."""
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
        if header.get("project") not in ("", connection.project):
            raise DataError(f"{path}: it is of project {header['project']!r}, and EVSYS_PROJECT_ID is another.")
        before = _count_known(upload)
        while upload.send_batch() is not None:
            pass
        upload.note()
        problem = ""
    except Unreachable:
        raise
    except (EvsysError, OSError) as error:
        problem = str(error)
    finally:
        upload.close()
    new = max(upload.acknowledged - max(before, 0), 0)
    return Sent(upload.reader.stream, str(path), upload.acknowledged, new, upload.rejected, problem)


def _count_known(upload: StreamUpload) -> int:
    """How many records of a stream the server has; the upload goes on from there."""
    answer = upload.post(b"", 0)
    known = answer.get("next")
    if not isinstance(known, int):
        raise DashboardClientError("the dashboard did not say how much of the stream it has.")
    upload.resume_at(known)
    return known
