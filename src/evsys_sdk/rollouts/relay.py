"""Connects a sandbox without a network to the gateway: from its loopback over a Unix socket."""

from __future__ import annotations

import atexit
import secrets
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from .environment import SandboxError

RELAY = """\
import socket, sys, threading

def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

server = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=128)
open(sys.argv[3], "w").close()
while True:
    near, _ = server.accept()
    far = socket.socket(socket.AF_UNIX)
    far.connect(sys.argv[1])
    for pair in ((near, far), (far, near)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""
"""Runs in the sandbox: listens on a port, creates a file when ready, and forwards connections."""
_READY = "/tmp/.evsys-relay-ready"


class _HasAddress(Protocol):
    """The address of a gateway."""

    @property
    def port(self) -> int: ...
    @property
    def socket(self) -> Path | None: ...


async def start_relay(
    gateway: _HasAddress, write_file: Callable[[str, str], Awaitable[None]], execute: Callable[..., Awaitable[Any]]
) -> None:
    """Forward the gateway's address from a sandbox's loopback."""
    await write_file("/tmp/.evsys-relay.py", RELAY)
    relay = f"python3 -I -S /tmp/.evsys-relay.py {gateway.socket} {gateway.port} {_READY}"
    wait = f"for _ in $(seq 200); do test -e {_READY} && exit 0; sleep 0.05; done; cat /tmp/.evsys-relay.log; exit 1"
    started = await execute(f"{relay} > /tmp/.evsys-relay.log 2>&1 & {wait}", timeout_s=60.0)
    if started.exit_code:
        raise SandboxError(
            f"the relay from the sandbox to the policy did not start: {started.stdout.strip() or started.stderr}. "
            "It needs python3 in the sandbox."
        )


def new_socket() -> Path:
    """A socket path for one rollout, in the folder that this process's sandboxes mount."""
    return socket_folder() / f"{secrets.token_hex(8)}.sock"


@cache
def socket_folder() -> Path:
    """The folder of this process's sockets, which sandboxes mount."""
    # Not below /tmp, because sandboxes have a private /tmp.
    folder = Path(tempfile.mkdtemp(prefix="evsys-gateway-", dir="/var/tmp"))
    folder.chmod(0o711)  # the sandbox's user may open but not list it
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
