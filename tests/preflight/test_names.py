"""Small things that a newcomer runs into: log level, imports that a command needs again, a comma in a claim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evsys_sdk import ConfigError, validate_yaml
from evsys_sdk.cli.main import main

CONFIG = """\
name: shouted
run:
  name: r
  data: { source_kind: in_memory, rows: [{ text: a }], transforms: [{ kind: shouted_rows }] }
  model: { name: tiny }
  algorithm: { kind: mock_sft, params: { max_steps: 1 } }
"""
OWN = """\
from evsys_sdk import register_transform

@register_transform("shouted_rows")
class Shouted:
    def __call__(self, rows):
        for row in rows:
            asked = {"role": "user", "content": row["text"]}
            yield {"messages": [asked, {"role": "assistant", "content": row["text"].upper()}]}
"""


@pytest.mark.e2e
@pytest.mark.parametrize(("level", "logged"), [("info", "shown"), ("error", ""), ("nonsense", "")])
def test_the_variable_for_the_log_level_holds_in_scripts_too(level: str, logged: str) -> None:
    code = "import evsys_sdk; evsys_sdk.get_logger('x').info('shown')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"EVSYS_LOGGING_LEVEL": level}, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip().endswith(logged)
    assert bool(done.stderr) == bool(logged)


def test_commands_that_repeat_an_experiment_import_what_it_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, "utf-8")
    (tmp_path / "own_shouted.py").write_text(OWN, "utf-8")
    assert main(["run", "config.yaml", "--quiet", "--import", "own_shouted.py"]) == 0
    capsys.readouterr()
    assert main(["show", "shouted", "--json"]) == 0
    command = json.loads(capsys.readouterr().out)["commands"]["reproduce"]
    assert command == "evsys run outputs/shouted/config.json --fresh --import own_shouted.py"


def test_a_comma_in_an_unquoted_claim_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{CONFIG}metadata: {{ hypothesis: {{ claim: It learns, and soon }} }}\n", "utf-8")
    with pytest.raises(ConfigError, match=r"unknown key 'and soon'\. .*put that whole text in quotes"):
        validate_yaml(path)
