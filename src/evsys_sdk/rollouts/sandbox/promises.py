"""What sandboxes can promise on this machine: read from the kernel, and tried out in its own sandbox.

promises = await check_promises()
[promise.name for promise in promises if promise.held is False]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ..environment import SandboxError, running
from ..environments.bwrap import BwrapEnvironment
from .control_group import make_group
from .start_problems import not_installed
from .supervisor.seccomp import MACHINES

_OLDEST_KERNEL, _OLDEST_BWRAP = (5, 11), (0, 6)
_LOOK = """
awk '/^(NoNewPrivs|Seccomp|CapBnd):/ {print FILENAME ":" $1 $2}' /proc/self/status /proc/1/status
echo descriptors:$(ls /proc/self/fd)
echo devices:$(tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ')
cat /proc/1/environ 2>/dev/null && echo readable
"""
_NO_CAPABILITIES = "0" * 16


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing a sandbox promises, and whether it does here."""

    name: str
    held: bool | None
    """None where it is good to have and not needed."""
    found: str
    meaning: str


_HOOKS = Promise(
    "hooks of coding agents",
    None,
    "none under `codex exec`",
    "reminders only; sealed copies of task files and the audit hold without them",
)


async def check_promises() -> list[Promise]:
    """Everything in the order in which it matters; what is missing says what to do."""
    if sys.platform != "linux":
        return [Promise("system", False, sys.platform, not_installed("bwrap"))]
    found = [_kernel(), _bwrap(), _user_namespaces(), _filter(), _yama(), _control_group(), *(await _try_out())]
    return [*found, _HOOKS]


def _kernel() -> Promise:
    release = os.uname().release
    meaning = "Linux 5.11 closes every descriptor at once and lets a supervisor join a process's namespaces"
    return Promise("kernel", _numbers(release) >= _OLDEST_KERNEL, release, meaning)


def _bwrap() -> Promise:
    found = shutil.which("bwrap")
    if found is None:
        return Promise("bubblewrap", False, "missing", not_installed("bwrap"))
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    return Promise("bubblewrap", _numbers(said) >= _OLDEST_BWRAP, said, "builds the file system and the namespaces")


def _user_namespaces() -> Promise:
    most = _read("/proc/sys/user/max_user_namespaces") or "unknown"
    allowed = _read("/proc/sys/kernel/unprivileged_userns_clone") != "0" or os.geteuid() == 0
    restricted = _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0
    meaning = "an ordinary user can make a sandbox, and nobody in it is root of anything else"
    found = (
        f"at most {most}" + ("" if allowed else ", switched off") + (", restricted by AppArmor" if restricted else "")
    )
    return Promise("user namespaces", most != "0" and allowed and (None if restricted else True), found, meaning)


def _filter() -> Promise:
    machine, there = os.uname().machine, "Seccomp:" in (_read("/proc/self/status") or "")
    meaning = "system calls that look into other processes, make namespaces or reach rare corners of the kernel fail"
    return Promise(
        "system call filter", there and machine in MACHINES, f"{machine}{'' if there else ', none'}", meaning
    )


def _yama() -> Promise:
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    meaning = (
        "a second wall: without it, the filter and the kernel's own rules alone keep processes from tracing others"
    )
    return Promise(
        "Yama", None if scope in (None, "0") else True, f"ptrace_scope {scope}" if scope else "none", meaning
    )


def _control_group() -> Promise:
    group = make_group(64 * 1024 * 1024)
    if group is not None:
        group.remove()
    meaning = "the kernel itself limits all memory; without one, the supervisor looks 20 times a second"
    return Promise("control group", True if group else None, "can be made" if group else "cannot be made", meaning)


async def _try_out() -> list[Promise]:
    try:
        async with running(BwrapEnvironment(memory_mb=64, disk_mb=8)) as sandbox:
            await sandbox.exec("setsid -f sleep 3600")
            seen = (await sandbox.exec(_LOOK)).stdout
            await sandbox.kill_processes()
            left = (await sandbox.exec("set -- /proc/[0-9]*; echo $#")).stdout.strip()
    except SandboxError as error:
        return [Promise("a sandbox", False, "did not start", str(error))]
    lines = seen.splitlines()
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


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text("utf-8").strip()
    except OSError:
        return None
