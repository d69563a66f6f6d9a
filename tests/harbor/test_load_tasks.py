"""Reading task folders. Harbor itself is not needed here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from evsys_sdk.data.types import HarborTask
from evsys_sdk.errors import DataError
from evsys_sdk.rollouts.harbor.task_folder import load_harbor_tasks

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


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda f: (f / "instruction.md").unlink(), "has no instruction.md"),
        (lambda f: (f / "task.toml").write_text("a = ", encoding="utf-8"), "task.toml: cannot be read"),
        (lambda f: (f / "task.toml").write_text('[[steps]]\nname = "x"', encoding="utf-8"), "[[steps]]"),
        (lambda f: (f / "task.toml").unlink(), "holds no task in Harbor's format"),
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
    with pytest.raises(DataError, match="two tasks are called 'acme/same'"):
        load_harbor_tasks(tmp_path)
