"""A run is resumed on the rows and with the code it was started with, or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment import Experiment
from evsys_sdk.files import write_json
from evsys_sdk.record.layout import ExperimentFiles
from evsys_sdk.record.values import read_json

TO_CHAT = {"kind": "jsonl_to_chat", "params": {"user_template": "{q}", "assistant_template": "{a}"}}


def write_rows(path: Path, answers: str) -> None:
    path.write_text("".join(f'{{"q": "ask {at}", "a": "{answers}{at}"}}\n' for at in range(6)), "utf-8")


def test_changed_rows_are_refused_by_resume_and_begin_a_new_attempt_otherwise(
    config: Callable[..., ExperimentConfig], tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, "x")
    original = config({"data": {"path": str(path), "transforms": [TO_CHAT]}})
    first = Experiment(original).run()
    assert Experiment(original).run(resume=True).path == first.path
    write_rows(path, "y")
    with pytest.raises(ConfigError, match=r"the rows of .*rows.jsonl changed since"):
        Experiment(original).run(resume=True)
    assert Experiment(original).run().path != first.path
    write_rows(path, "x")


@pytest.mark.parametrize(("where", "name"), [("own_code", "transform 'jsonl_to_chat'")])
def test_changed_code_of_a_transform_is_refused(
    where: str, name: str, config: Callable[..., ExperimentConfig], tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, "x")
    original = config({"data": {"path": str(path), "transforms": [TO_CHAT]}})
    first = Experiment(original).run()
    identity: Any = ExperimentFiles(first.path).run("r").identity
    write_json(identity, {**read_json(identity), where: {name: "the code of last week"}})
    with pytest.raises(ConfigError, match="the code of transform 'jsonl_to_chat' changed since"):
        Experiment(original).run(resume=True)
