"""The way out of a sandbox without a network: its own loopback leads to a Unix socket, and that to the gateway."""

from __future__ import annotations

import atexit
import secrets
import shutil
import tempfile
from functools import cache
from pathlib import Path

RELAY = """\
import socket, sys, threading

def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

server = socket.create_server(("127.0.0.1", 0), backlog=128)
with open(sys.argv[2], "w") as file:
    file.write(str(server.getsockname()[1]))
while True:
    near, _ = server.accept()
    far = socket.socket(socket.AF_UNIX)
    far.connect(sys.argv[1])
    for pair in ((near, far), (far, near)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""
"""Runs inside: listens on a free port, writes its number into a file, and passes everything on."""


def new_socket() -> Path:
    """A name for the socket of one rollout, in the folder that sandboxes of this process see."""
    return socket_folder() / f"{secrets.token_hex(8)}.sock"


@cache
def socket_folder() -> Path:
    """The folder of all sockets of this process, which a sandbox must see."""
    # Not below /tmp, which sandboxes have one of their own of.
    folder = Path(tempfile.mkdtemp(prefix="evsys-gateway-", dir="/var/tmp"))
    folder.chmod(0o711)  # the user inside a sandbox is another one, and may open but not list it
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
