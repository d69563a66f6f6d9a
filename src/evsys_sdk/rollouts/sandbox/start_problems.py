"""Error messages with remedies for a sandbox that did not start."""

from __future__ import annotations

import sys

_INSTALL = (
    "Install it with: apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora), "
    "pacman -S bubblewrap (Arch)."
)
_NAMESPACES = (
    "This kernel or container does not let you make user namespaces. As root of the machine: "
    "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000, and on Ubuntu 24.04 or later "
    "kernel.apparmor_restrict_unprivileged_userns=0. In Docker: run the container with --privileged, or with "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined."
)
_PROC = (
    "The container you are in hides parts of /proc, so that no new /proc can be mounted; in Docker, run it with "
    "--security-opt systempaths=unconfined or --privileged."
)

_REMEDIES = (
    ("mount proc", _PROC),
    ("namespace", _NAMESPACES),
    ("uid map", _NAMESPACES),
    ("RTM_NEWADDR", _NAMESPACES),
    ("Operation not permitted", _NAMESPACES),
    ("Unknown option", "This bubblewrap is too old; version 0.6 or later is needed."),
    ("execvp /bin/sh", "The root file system has no usable /bin/sh: is it an image for this kind of processor?"),
    ("not ready after", "The machine may be overloaded; try again, or set `start_timeout_s` higher."),
    ("Permission denied", "A sandbox started by root runs as an unprivileged user, who must be able to read it."),
)


def explain(problem: str) -> str:
    """Return the error message for a sandbox that did not start."""
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in problem), "")
    return f"The sandbox did not start: {problem.rstrip('.')}. {remedy}".rstrip()


def not_installed(name: str) -> str:
    """Return the error message for a machine without bubblewrap."""
    if sys.platform != "linux":
        return (
            "environment 'bwrap' needs Linux: bubblewrap is built on Linux namespaces and exists for no other system. "
            "Use a Linux machine or virtual machine, or environment 'unsafe_host' for code that you trust."
        )
    return f"environment 'bwrap' needs bubblewrap, and there is no program '{name}' on PATH. {_INSTALL}"
