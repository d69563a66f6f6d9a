"""Mistakes of meaning are reported before anything is spent, with their cause; honest configs hear nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from evsys_sdk.config.yaml_write import write_yaml
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment.preflight import check_file

from .meaning import HONEST, MEANINGS, Files, Meaning, write_data
from .project import Config


def said_about(config: Config) -> list[str]:
    """Everything that the check before a run says."""
    Path("config.yaml").write_text(write_yaml(config), encoding="utf-8")
    try:
        return list(check_file("config.yaml").warnings)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]


@pytest.mark.parametrize("mistake", [one for one in MEANINGS if one.before], ids=lambda one: one.name)
def test_a_mistake_of_meaning_is_named_with_its_place_and_remedy(mistake: Meaning, tmp_path: Path) -> None:
    write_data(tmp_path, mistake.files)
    said = said_about(mistake.config)
    assert any(mistake.says in one for one in said), said
    assert all(one.startswith("config.yaml:") for one in said), said
    assert len(said) <= 4, said


@pytest.mark.parametrize(("config", "files"), HONEST.values(), ids=HONEST)
def test_an_honest_config_hears_nothing(config: Config, files: Files, tmp_path: Path) -> None:
    write_data(tmp_path, files)
    assert said_about(config) == []


def test_there_are_many_of_both() -> None:
    assert len({one.name for one in MEANINGS}) == len(MEANINGS) >= 100
    assert sum(one.before for one in MEANINGS) >= 80
    assert len(HONEST) >= 60
