"""bwrap arguments for a sandbox's file system: read-only parts of the host or of an unpacked image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..environment import SandboxError

HARBOR_FOLDERS = ("/tests", "/logs", "/solution")
"""Folders of tests, results and reference solution in the Harbor task format."""

USER, UID = "agent", 1000

GENERATED: Mapping[str, str] = {
    "/etc/passwd": f"{USER}:x:{UID}:{UID}::/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
    "/etc/group": f"{USER}:x:{UID}:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""Generated replacements of files that would reveal information about the host."""

_HOST_TREES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_HOST_SETTINGS = (
    "alternatives",
    "java*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "perl",
    "protocols",
    "python3*",
    "services",
    "terminfo",
)
"""Patterns of files in /etc that programs in /usr need; the rest of /etc is not visible."""

_OWN = {"dev", "proc", "sys", "tmp", "run"}


def host_mounts() -> list[str]:
    """Return bwrap arguments that mount the host's programs read-only."""
    etc = Path("/etc")
    settings = sorted(path for pattern in _HOST_SETTINGS for path in etc.glob(pattern))
    system = _mounts(Path("/"), (Path("/", name) for name in _HOST_TREES))
    return [*system, "--perms", "0755", "--dir", "/etc", *_mounts(etc, settings, "/etc")]


def image_mounts(rootfs: Path, writable: Iterable[str]) -> list[str]:
    """Return bwrap arguments that mount an unpacked image read-only."""
    if not (rootfs / "bin" / "sh").exists() and not (rootfs / "bin" / "sh").is_symlink():
        raise SandboxError(
            f"rootfs {rootfs} is not an unpacked image: it has no bin/sh. Unpack one there, for instance with: "
            "docker export $(docker create IMAGE) | tar -x -C FOLDER"
        )
    hidden = _OWN | {folder.strip("/") for folder in writable}
    return _mounts(rootfs, (path for path in sorted(rootfs.iterdir()) if path.name not in hidden))


def extra_mounts(paths: Iterable[str], writable: Iterable[str]) -> list[str]:
    """Return bwrap arguments that mount further host folders read-only at the same path."""
    for path in paths:
        if not Path(path).exists():
            raise SandboxError(f"read_only names {path}, which does not exist on this machine.")
        for folder in writable:
            if Path(path).is_relative_to(folder):
                raise SandboxError(
                    f"read_only names {path}, which the writable folder {folder} would hide. Move it, or copy what is "
                    "needed into the sandbox with `files`."
                )
    return [argument for path in paths for argument in ("--ro-bind", path, path)]


def _mounts(root: Path, paths: Iterable[Path], prefix: str = "") -> list[str]:
    arguments: list[str] = []
    for path in paths:
        target = f"{prefix}/{path.relative_to(root)}"
        if path.is_symlink():  # e.g. `bin -> usr/bin`; it must be resolved inside the sandbox, not on the host
            arguments += ["--symlink", str(path.readlink()), target]
        elif path.exists():
            arguments += ["--ro-bind", str(path), target]
    return arguments
