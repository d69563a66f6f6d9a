"""The process in which `bounded_regex.py` matches; started as a script, so it imports only a few standard modules.

One JSON line in, one JSON line out. A match that takes too long ends the whole process: Python's regular expressions
hold the interpreter's lock until they are done, so from inside nothing gentler can stop them. `faulthandler` can,
because its watchdog runs without that lock; and it also ends a process whose parent has died in the meantime.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What a pattern finds in a text: the whole match first, then its groups; nothing when there is no match."""
    pattern = re.compile(request["pattern"], request["flags"])
    match = getattr(pattern, request["how"])(request["text"])
    return {"groups": None if match is None else [match[0], *match.groups()]}


def serve() -> None:
    """Answer requests until there are no more."""
    # Open for as long as the watchdog may strike: it writes to the descriptor, whatever that is by then.
    with open(os.devnull, "wb") as nowhere:
        for line in sys.stdin.buffer:
            request = json.loads(line)
            faulthandler.dump_traceback_later(request["timeout_s"], exit=True, file=nowhere)
            try:
                reply = answer(request)
            except (re.error, RecursionError, OverflowError, MemoryError) as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            finally:
                faulthandler.cancel_dump_traceback_later()
            sys.stdout.buffer.write(json.dumps(reply).encode("ascii") + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
