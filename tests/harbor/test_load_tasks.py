"""Reading task folders. Harbor itself is not needed here."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from evsys_sdk.data.types import HarborTask
from evsys_sdk.errors import DataError
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment
from evsys_sdk.rollouts.harbor.native import NativeEnvironment
from evsys_sdk.rollouts.harbor.task_folder import agent_limit, folder_of, load_harbor_tasks, refuse_container

type Make = Callable[..., HarborTask]


def test_a_folder_of_tasks_is_loaded_in_the_order_of_names(make_folder: Make, tmp_path: Path) -> None:
    make_folder(name="b", toml='[metadata]\ndifficulty = "easy"\n')
    make_folder(name="a", toml='[task]\nname = "acme/first"\n')
    (tmp_path / "notes").mkdir()
    first, second = load_harbor_tasks(tmp_path)
    assert (first.task_id, second.task_id) == ("acme/first", "b")
    assert second.instruction == "Copy input.txt to output.txt."
    assert second.metadata == {"difficulty": "easy", "task_dir": str(tmp_path / "b")}


def test_markers_of_provenance_are_not_shown_to_the_policy(make_folder: Make) -> None:
    folder = Path(make_folder().metadata["task_dir"])
    text = "<!-- benchmark canary 123 -->\n# canary GUID 9\n\n# Task\nDo it.\n"
    (folder / "instruction.md").write_text(text, encoding="utf-8")
    assert load_harbor_tasks(folder)[0].instruction == "# Task\nDo it."


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def link(path: Path, target: str = "/etc/hosts") -> None:
    """Put a link where something else may be; what it names reads like the real thing."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if path.name == "task.toml":
        outside = path.parents[1] / "outside.toml"
        outside.write_text('schema_version = "1.4"', encoding="utf-8")
        target = str(outside)
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda f: (f / "instruction.md").unlink(), "has no instruction.md"),
        (lambda f: (f / "task.toml").write_text("a = ", encoding="utf-8"), "task.toml: cannot be read"),
        (lambda f: (f / "task.toml").write_text('[[steps]]\nname = "x"', encoding="utf-8"), "[[steps]]"),
        (lambda f: (f / "task.toml").unlink(), "no task in Harbor's format"),
        (lambda f: (f / "instruction.md").write_bytes(b"\xff\x00\x9f"), "instruction.md: is not UTF-8 text (byte 0)"),
        (lambda f: (f / "instruction.md").write_text("x" * 2_000_000, encoding="utf-8"), "has 2000000 bytes"),
        (lambda f: replace(f / "instruction.md", os.mkfifo), "instruction.md: is not a regular file"),
        (lambda f: replace(f / "instruction.md", os.mkdir), "instruction.md: is not a regular file"),
        (lambda f: (f / "task.toml").write_text("a = " + "[" * 5000, encoding="utf-8"), "task.toml: cannot be read"),
        (lambda f: (f / "task.toml").write_text("a." * 5000 + "b = 1", encoding="utf-8"), "task.toml: cannot be read"),
        (lambda f: (f / "task.toml").write_text("a = " + "9" * 5000, encoding="utf-8"), "task.toml: cannot be read"),
        (lambda f: (f / "task.toml").write_bytes(b"\xff"), "task.toml: is not UTF-8 text"),
        (lambda f: (f / "task.toml").write_text("task = 3", encoding="utf-8"), "'task' is 3, not a table"),
        (lambda f: (f / "task.toml").write_text("metadata = []", encoding="utf-8"), "'metadata' is []"),
        (lambda f: link(f / "instruction.md"), "instruction.md: is a symbolic link to a place outside"),
        (lambda f: link(f / "task.toml"), "task.toml: is a symbolic link to a place outside"),
        (lambda f: link(f / "tests", "/etc"), "tests: is a symbolic link to a place outside"),
        (lambda f: link(f / "tests" / "deep"), "deep: is a symbolic link to a place outside"),
        (lambda f: link(f / "environment" / "relative", "../../../../etc/passwd"), "relative: is a symbolic link"),
        (lambda f: link(f / "solution", "/proc/self/environ"), "solution: is a symbolic link to a place outside"),
    ],
)
def test_a_broken_folder_is_named_with_the_remedy(
    make_folder: Make, break_it: Callable[[Path], None], said: str
) -> None:
    folder = Path(make_folder().metadata["task_dir"])
    break_it(folder)
    with pytest.raises(DataError) as caught:
        load_harbor_tasks(folder)
    assert said in str(caught.value)
    assert str(folder) in str(caught.value)


def test_two_tasks_of_one_name_are_refused(make_folder: Make, tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_folder(name=name, toml='[task]\nname = "acme/same"\n')
    with pytest.raises(DataError, match="two tasks have the name 'acme/same'"):
        load_harbor_tasks(tmp_path)


def test_a_link_within_the_folder_is_fine(make_folder: Make) -> None:
    folder = Path(make_folder().metadata["task_dir"])
    (folder / "tests" / "again.sh").symlink_to("test.sh")
    (folder / "environment" / "other").symlink_to(folder / "environment" / "input.txt")
    assert load_harbor_tasks(folder)[0].instruction == "Copy input.txt to output.txt."


def test_a_task_that_is_itself_a_link_to_elsewhere_is_refused(make_folder: Make, tmp_path: Path) -> None:
    folder = Path(make_folder().metadata["task_dir"])
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "one").symlink_to(folder)
    with pytest.raises(DataError, match="one: is a symbolic link to a place outside"):
        load_harbor_tasks(tmp_path / "tasks")


def test_a_link_made_after_loading_is_refused_too(make_folder: Make) -> None:
    task = make_folder()
    link(Path(task.metadata["task_dir"]) / "tests" / "late")
    with pytest.raises(DataError, match="late: is a symbolic link"):
        folder_of(task)


@pytest.mark.parametrize("limit", ["'soon'", "true", "-1", "0", "[1]"])
def test_a_time_limit_that_is_none_is_refused(make_folder: Make, limit: str) -> None:
    folder = Path(make_folder(toml=f"[agent]\ntimeout_sec = {limit}\n").metadata["task_dir"])
    with pytest.raises(DataError, match=r"task\.toml: agent\.timeout_sec is .*\. Write a number of seconds above 0"):
        agent_limit(folder)


@pytest.mark.parametrize(
    ("file", "toml", "needed"),
    [
        ("Dockerfile", "", "Dockerfile"),
        ("docker-compose.yaml", "", "docker-compose.yaml"),
        ("compose.yml", "", "compose.yml"),
        ("", '[environment]\ndocker_image = "python:3.12"\n', "python:3.12"),
        ("", "", None),
    ],
)
def test_what_needs_a_container_is_known_before_anything_runs(
    make_folder: Make, file: str, toml: str, needed: str | None
) -> None:
    task = make_folder(toml=toml)
    if file:
        (Path(task.metadata["task_dir"]) / "environment" / file).write_text("FROM debian\n", encoding="utf-8")
    refuse_container(task, NativeEnvironment())
    refuse_container(task, BwrapEnvironment(rootfs="/image"))
    if needed is None:
        refuse_container(task, BwrapEnvironment())
    else:
        with pytest.raises(DataError, match=rf"needs a container \({needed}\), which environment 'bwrap' cannot"):
            refuse_container(task, BwrapEnvironment())
