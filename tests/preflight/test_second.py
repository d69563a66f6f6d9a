"""The second set of mistakes of meaning and honest configs, which was written without a look at the checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from evsys_sdk.config.yaml_write import write_yaml
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment.contamination import contamination_warnings
from evsys_sdk.experiment.preflight import check_file

from .project import Config
from .second import HONEST, MISTAKES, Mistake, write_data


def said_about(config: Config) -> list[str]:
    """Everything that `evsys validate --deep` prints."""
    Path("config.yaml").write_text(write_yaml(config), encoding="utf-8")
    try:
        checked = check_file("config.yaml")
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return [*checked.warnings, *contamination_warnings(checked.config)]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.name)
def test_a_mistake_is_reported_with_its_cause(mistake: Mistake, tmp_path: Path) -> None:
    write_data(tmp_path, mistake.files)
    said = said_about(mistake.config)
    assert any(re.search(mistake.cause, one) for one in said), said
    assert len(said) <= 4, said


@pytest.mark.parametrize(("config", "files"), HONEST.values(), ids=HONEST)
def test_an_honest_config_is_silent(config: Config, files: Mapping[str, Sequence[Config]], tmp_path: Path) -> None:
    write_data(tmp_path, files)
    assert said_about(config) == []
