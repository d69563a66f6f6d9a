"""Checks of the sandbox's protections on this machine, made in a test sandbox.

promises = await check_promises()
[promise.name for promise in promises if promise.held is False]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ..environment import SandboxError, running
from ..environments.bwrap import BwrapEnvironment
from .control_group import close_group, make_group
from .start_problems import not_installed

_LOOK = """
awk '/^(NoNewPrivs|Seccomp|CapBnd):/ {print FILENAME ":" $1 $2}' /proc/self/status /proc/1/status
echo descriptors:$(ls /proc/self/fd)
echo devices:$(tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ')
cat /proc/1/environ 2>/dev/null && echo readable
"""
_NO_CAPABILITIES = "0" * 16


@dataclass(frozen=True, slots=True)
class Promise:
    """One protection of a sandbox, and whether it works on this machine."""

    name: str
    held: bool | None
    """Whether the protection works; None if it is missing but optional."""
    found: str
    meaning: str


_HOOKS = Promise(
    "hooks of coding agents",
    None,
    "none under `codex exec`",
    "reminders only; sealed copies of task files and the audit hold without them",
)


async def check_promises() -> list[Promise]:
    """Check all protections; a sandbox that does not start is reported with a remedy."""
    if sys.platform != "linux":
        return [Promise("system", False, sys.platform, not_installed("bwrap"))]
    return [_control_group(), *(await _try_out()), _HOOKS]


def _control_group() -> Promise:
    group = make_group(64 * 1024 * 1024)
    if group is not None:
        close_group(group)
    meaning = "the kernel itself limits all memory; without one, the supervisor looks 100 times a second"
    return Promise("control group", True if group else None, "can be made" if group else "cannot be made", meaning)


async def _try_out() -> list[Promise]:
    try:
        async with running(BwrapEnvironment(memory_mb=64, disk_mb=8)) as sandbox:
            await sandbox.exec("setsid -f sleep 3600")
            output = (await sandbox.exec(_LOOK)).stdout
            await sandbox.kill_processes()
            left = (await sandbox.exec("set -- /proc/[0-9]*; echo $#")).stdout.strip()
    except SandboxError as error:
        return [Promise("a sandbox", False, "did not start", str(error))]
    lines = output.splitlines()
    return [
        Promise("a sandbox", True, "started", "everything below was tried in it"),
        Promise(
            "filter on all processes",
            all(f"/proc/{pid}/status:Seccomp:2" in lines for pid in ("self", "1")),
            "commands and the first process",
            "nothing in a sandbox runs without the filter",
        ),
        Promise(
            "no privileges",
            all(f"/proc/{pid}/status:CapBnd:{_NO_CAPABILITIES}" in lines for pid in ("self", "1")),
            "no capabilities, none to be had",
            "programs with the set-user-ID bit gain nothing",
        ),
        Promise("no descriptors", "descriptors:0 1 2 3" in lines, "only 0, 1 and 2", "nothing that leads out is held"),
        Promise("no network", "devices:lo" in lines, "only loopback", "neither the host nor the internet is reached"),
        Promise("first process closed", "readable" not in lines, "not readable", "its memory is out of reach"),
        Promise("nothing survives", left == "2", f"{left} processes", "after kill_processes only what came later runs"),
    ]
