"""A server as a process that prints its address as JSON, and can be killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Self


class ServerProcess:
    """An `evsys` command that serves; ended by its own id."""

    def __init__(self, *arguments: str, env: dict[str, str], under: tuple[str, ...] = ()) -> None:
        command = [*under, sys.executable, "-m", "evsys_sdk", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the server did not start and ended with {self.process.wait()}"
        self.url: str = json.loads(line)["url"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout
        self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
