"""What a supervisor is told about the sandbox that it shall build; its first message."""

from __future__ import annotations

from .limits import ProcessLimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .wire import Message, Value


class Settings:
    """The first message, checked; a field of another type, or a missing one, is an error."""

    def __init__(self, message: Message) -> None:
        self.bwrap = text(message["bwrap"])
        uid = number(message["uid"])
        self.uid = None if uid < 0 else uid
        self.user = number(message["user"])
        self.mounts = texts(message["mounts"])
        generated = texts(message["generated"])
        self.generated = {path: content.encode() for path, content in zip(generated[::2], generated[1::2], strict=True)}
        self.writable = texts(message["writable"])
        self.workdir = text(message["workdir"])
        self.disk = number(message["disk"])
        self.memory = number(message["memory"])
        self.limits = ProcessLimits(
            memory=self.memory,
            processes=number(message["processes"]),
            cpu_s=number(message["cpu_s"]),
            file_size=number(message["file_size"]),
        )
        self.control_group = text(message["control_group"])
        self.start_timeout_s = seconds(message["start_timeout_s"])


def text(value: Value) -> str:
    """A field that is text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def texts(value: Value) -> list[str]:
    """A field that is a list of texts."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def data(value: Value) -> bytes:
    """A field that is bytes."""
    if not isinstance(value, bytes):
        raise TypeError(f"{value!r} is not bytes")
    return value


def number(value: Value) -> int:
    """A field that is a whole number."""
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def seconds(value: Value) -> float:
    """A field that is a time."""
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
