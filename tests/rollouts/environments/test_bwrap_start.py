"""A sandbox that cannot start says why and what to do; it never answers a command."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evsys_sdk.rollouts.environment import SandboxError, running
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment
from evsys_sdk.rollouts.sandbox.start_problems import explain

from .bwrap_on_this_machine import StartSandbox
from .waiting import until

linux = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap exists only for Linux")

STATUS_FD = 'for a in "$@"; do [ "$p" = --json-status-fd ] && fd=$a; p=$a; done\n'

FAKES = {
    "refused by the kernel": (
        "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1",
        r"No permissions to create a new namespace.*user namespaces.*kernel\.unprivileged_userns_clone=1",
    ),
    "refused by a container": (
        'echo "bwrap: Can\'t mount proc on /newroot/proc: Operation not permitted" >&2; exit 1',
        r"Can't mount proc.*systempaths=unconfined",
    ),
    "too old": (
        "echo 'bwrap: Unknown option --json-status-fd' >&2; exit 1",
        r"Unknown option --json-status-fd.*too old",
    ),
    "silent": ("exit 0", "ended before the sandbox was ready and said nothing"),
    "hanging": ("echo thinking >&2; sleep 60", r"not ready after 3 s; it said: thinking\. .*start_timeout_s"),
    "without status": ("echo ready; sleep 60", "did not report the process that it started"),
    "lying about the process": (
        STATUS_FD + 'echo "{ \\"child-pid\\": 1 }" >&$fd; echo ready; sleep 60',
        r"named a process that it did not start \(1\)",
    ),
    "not isolating": (
        STATUS_FD + 'sleep 60 & echo "{ \\"child-pid\\": $! }" >&$fd; echo ready; wait',
        "not isolated: it shares the namespaces user, mnt, pid, net, ipc, uts",
    ),
}


def processes_of(folder: Path) -> list[str]:
    """The processes that were started from this folder."""
    pids: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                pids.append(path.parent.name)
    return pids


def program(folder: Path, body: str) -> Path:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@linux
@pytest.mark.parametrize(("body", "message"), FAKES.values(), ids=list(FAKES))
async def test_a_bwrap_that_fails_is_an_error_with_its_words_and_a_remedy(
    body: str, message: str, public_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(public_dir, body)
    monkeypatch.setenv("PATH", f"{public_dir}:/usr/bin:/bin")
    sandbox = BwrapEnvironment(start_timeout_s=3.0 if "thinking" in body else 60.0)
    with pytest.raises(SandboxError, match=f"(?s)The sandbox did not start: .*{message}"):
        await sandbox.start()
    with pytest.raises(SandboxError, match="The sandbox has ended"):
        await sandbox.exec("echo a forged answer")
    await until(lambda: not processes_of(public_dir))  # a killed grandchild ends without being waited for


@linux
async def test_without_bubblewrap_the_commands_that_install_it_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"no program 'bwrap' on PATH.*apt-get install bubblewrap.*dnf install"):
        await BwrapEnvironment().start()


async def test_on_another_system_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError, match=r"needs Linux.*unsafe_host"):
        await BwrapEnvironment().start()


@linux
async def test_a_root_file_system_without_a_shell_is_refused(public_dir: Path) -> None:
    with pytest.raises(SandboxError, match=r"is not an unpacked image: it has no bin/sh.*docker export"):
        await BwrapEnvironment(rootfs=str(public_dir), bwrap="/bin/true").start()


async def test_a_root_file_system_with_a_broken_shell_is_refused(needs_bwrap: None, public_dir: Path) -> None:
    (public_dir / "bin").mkdir()
    (public_dir / "bin" / "sh").write_bytes(b"\x7fELF nonsense")
    (public_dir / "bin" / "sh").chmod(0o755)
    with pytest.raises(SandboxError, match=r"execvp /bin/sh.*The root file system has no usable /bin/sh"):
        await BwrapEnvironment(rootfs=str(public_dir)).start()


async def test_an_unpacked_image_is_used_as_the_system_with_a_writable_copy_of_its_working_folder(
    start_sandbox: StartSandbox, public_dir: Path
) -> None:
    make_image(public_dir)
    sandbox = await start_sandbox(rootfs=str(public_dir), workdir="/work-dir")
    result = await sandbox.exec("echo *; cat data; echo changed > data; echo * > /bin/planted; cat /release")
    assert result.stdout == "data\noriginal\nof the image\n"
    assert "Read-only file system" in result.stderr
    assert await sandbox.read_file("data") == b"changed\n"
    assert (public_dir / "work-dir" / "data").read_text("utf-8") == "original\n"
    assert (await sandbox.exec("cd /usr")).exit_code != 0


def make_image(folder: Path) -> None:
    """A root file system with a shell, a few programs and the libraries that they need."""
    (folder / "bin").mkdir()
    for name in ("sh", "sleep", "cat", "mkdir", "chmod"):
        found = Path(shutil.which(name) or f"/bin/{name}").resolve()
        shutil.copy(found, folder / "bin" / name)
        for word in subprocess.run(["ldd", str(found)], capture_output=True, text=True, check=False).stdout.split():
            if word.startswith("/"):
                target = folder / word.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, target)
    (folder / "work-dir").mkdir()
    (folder / "work-dir" / "data").write_text("original\n", encoding="utf-8")
    (folder / "release").write_text("of the image\n", encoding="utf-8")


@linux
async def test_a_folder_to_show_that_does_not_exist_is_named() -> None:
    with pytest.raises(SandboxError, match="read_only names /no/such/folder, which does not exist"):
        await BwrapEnvironment(read_only=["/no/such/folder"], bwrap="/bin/true").start()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"workdir": "relative"}, "absolute path"),
        ({"workdir": "/app/../usr"}, "absolute path"),
        ({"workdir": "/usr/local/app"}, "belongs to the read-only system"),
        ({"workdir": "/"}, "belongs to the read-only system"),
        ({"memory_mb": 0}, "greater than or equal to 16"),
        ({"network": True}, "Extra inputs are not permitted"),
    ],
)
def test_params_that_make_no_sense_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BwrapEnvironment(**params)


async def test_a_working_folder_below_a_writable_one_is_made(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(workdir="/tmp/deep/work-dir")
    assert (await sandbox.exec("pwd; touch here; echo *")).stdout == "/tmp/deep/work-dir\nhere\n"


async def test_a_working_folder_of_any_other_name_is_made(needs_bwrap: None) -> None:
    async with running(BwrapEnvironment(workdir="/srv/project", files={"a/b.txt": "\x00"})) as sandbox:
        assert (await sandbox.exec("pwd; wc -c < a/b.txt")).stdout == "/srv/project\n1\n"


def test_a_problem_without_a_known_remedy_is_still_told() -> None:
    assert explain("bwrap tripped.") == "The sandbox did not start: bwrap tripped."
