"""`evsys list` and `evsys schema`: what can be named in a config, and the params it takes."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from evsys_sdk import register_agent, register_transform, schema_for
from evsys_sdk.builtins import BUILTINS, Builtin
from evsys_sdk.cli.main import main
from evsys_sdk.registry import KINDS, registry


class Step(BaseModel):
    kind: str
    weight: float = 1.0


class Shout:
    """Puts everything in capitals."""

    class Config(BaseModel, extra="forbid", use_attribute_docstrings=True):
        loud: bool
        """Whether to mean it."""
        fields: list[str] | str | None = None
        """Where."""
        mode: Literal["all", "some"] = "all"
        """How much."""
        steps: list[Step] = []
        """What else."""
        first: Step | None = None
        rate: float = Field(default=0.5, gt=0)
        anything: Any = None
        names: dict[str, int] = {}


@pytest.fixture(autouse=True)
def _shout() -> None:
    register_transform("shout")(Shout)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_the_list_has_a_heading_for_each_kind_that_has_entries(capsys: pytest.CaptureFixture[str]) -> None:
    headings = [line for line in output(capsys, "list").splitlines() if not line.startswith(" ")]
    assert headings == [KINDS[kind] for kind in KINDS if registry(kind).entries()]


def test_names_and_summaries_stand_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "list", "transforms").splitlines()
    assert lines[0] == "transforms"
    (line,) = [line for line in lines if line.split()[0] == "shout"]
    column = line.index("Puts everything in capitals.")
    width = max(len(name) for name in registry("transform").names())
    assert column == 2 + width + 2
    assert all(line[:column].count("  ") >= 1 and line[column:][:1] != " " for line in lines[1:])
    assert [line.split()[0] for line in lines[1:]] == registry("transform").names()


@pytest.mark.parametrize(
    "arguments", [("transform",), ("transforms",), ("--kind", "transforms"), ("--kind", "transform")]
)
def test_one_kind_by_any_of_its_spellings(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "list", *arguments) == output(capsys, "list", "transforms")


def test_a_kind_without_entries_says_how_to_add_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry("agent"), "_builtins", {})
    monkeypatch.setattr(registry("agent"), "_registered", {})  # what ran before in this process may have used some
    assert output(capsys, "list", "agents") == 'agents\n  none yet; add yours with @register_agent("name")\n'
    assert "agents" not in output(capsys, "list")
    register_agent("solo")(type("Solo", (), {"__doc__": "Works alone."}))
    assert output(capsys, "list", "agents") == "agents\n  solo  Works alone.\n"


def test_the_list_as_json_has_every_kind_and_every_built_in(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(output(capsys, "list", "--json"))
    assert list(answer) == list(KINDS.values())
    for kind, rows in BUILTINS.items():
        assert set(rows) <= {row["name"] for row in answer[KINDS[kind]]}
    (row,) = [row for row in answer["transforms"] if row["name"] == "shout"]
    assert row == {
        "kind": "transform",
        "name": "shout",
        "source": "registered",
        "summary": "Puts everything in capitals.",
        "problem": "",
        "available": True,
    }


def test_what_needs_an_extra_is_listed_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evsys_sdk.builtins.EXTRA_MODULES", {"big": ("no_such_module_anywhere",)})
    rows = {"large": Builtin("data.transforms.rows:IdentityRows", extra="big")}
    monkeypatch.setattr(registry("agent"), "_builtins", rows)
    monkeypatch.setattr(registry("agent"), "_registered", {})
    lines = output(capsys, "list", "agents").splitlines()
    assert lines[1].startswith("  large  ")
    assert lines[2] == f"{'':9}not available: pip install 'evsys-sdk[big]'"
    assert main(["schema", "agent", "large"]) == 1
    assert capsys.readouterr().err.startswith("agent 'large' needs the extra 'big'. Install it with: pip install")


def test_an_unknown_kind_is_refused_with_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "transfroms"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("'transfroms' is not a kind of extension; did you mean 'transforms'? Kinds: transform, ")
    assert main(["list", "transforms", "--kind", "metrics"]) == 1
    assert "KIND is given twice: 'transforms' and 'metrics'" in capsys.readouterr().err


def test_a_schema_is_json_with_and_without_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    plain, flagged = (
        output(capsys, "schema", "transform", "shout"),
        output(capsys, "schema", "transform", "shout", "--json"),
    )
    assert plain == flagged
    assert json.loads(plain) == schema_for("transform", "shout") == Shout.Config.model_json_schema()


def test_a_schema_as_a_table_speaks_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "schema", "transforms", "shout", "--fields").splitlines()
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    assert cells[0] == ["param", "type", "default", "meaning"]
    assert cells[2:] == [
        ["loud", "boolean", "required", "Whether to mean it."],
        ["fields", "list of string | string | null", "null", "Where."],
        ["mode", "all | some", '"all"', "How much."],
        ["steps", "list of {kind, weight}", "[]", "What else."],
        ["first", "{kind, weight} | null", "null"],
        ["rate", "number", "0.5"],
        ["anything", "any", "null"],
        ["names", "object", "{}"],
    ]


def test_an_extension_without_params_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    register_transform("quiet")(type("Quiet", (), {}))
    assert output(capsys, "schema", "transform", "quiet", "--fields") == "transform 'quiet' takes no params.\n"
    assert json.loads(output(capsys, "schema", "transform", "quiet"))["properties"] == {}


def test_an_unknown_name_is_refused_with_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "transform", "shuot", "--json"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("transform 'shuot' is not registered; did you mean 'shout'? Registered: ")
    assert json.loads(out)["error"] == "UnknownNameError"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, rows in BUILTINS.items() for name, row in rows.items() if row.missing_extra is None],
)
def test_every_built_in_has_a_schema_and_a_table(kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(output(capsys, "schema", kind, name))["type"] == "object"
    assert output(capsys, "schema", kind, name, "--fields")
