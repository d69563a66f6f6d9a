"""Shipping weights: what is found, what is built, what is written down, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import register_deployer
from evsys_sdk.cli.main import main
from evsys_sdk.deploy.deployer import Built
from evsys_sdk.deploy.deployments import Deployments
from evsys_sdk.deploy.ship import roll_back, ship
from evsys_sdk.deploy.source import Source, find_source
from evsys_sdk.errors import ConfigError, DataError
from evsys_sdk.record.project_files.journals import promotions_file, read_promotions


def test_an_experiment_means_the_first_seed_of_its_best_run(trained: Path) -> None:
    source = find_source("routing")
    assert (source.arm.name, source.backend, source.base_model) == ("sft__seed1", "mock", "tiny")
    assert find_source("routing/sft__seed2", checkpoint="best").arm.name == "sft__seed2"
    assert find_source("outputs/routing/sft__seed2").weights.is_dir()


def test_weights_are_found_where_the_record_was_moved_to(trained: Path) -> None:
    (trained / "outputs").rename(trained / "moved")
    assert find_source("moved/routing").weights.is_relative_to(trained / "moved")


@pytest.mark.parametrize(
    ("reference", "checkpoint", "told"),
    [
        ("rooting", "best", "Did you mean 'routing"),
        ("routing/sft__seed9", "best", "no arm 'sft__seed9'"),
        ("routing", "bst", "Did you mean 'best'"),
    ],
)
def test_what_is_not_there_is_named(trained: Path, reference: str, checkpoint: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        find_source(reference, checkpoint=checkpoint)


def test_a_deployment_says_what_it_came_from(trained: Path) -> None:
    source = find_source("routing")
    deployment = ship(source, "openai_server", name="production")
    folder = Path(deployment.location)
    assert deployment.id == "production.1"
    assert deployment.source["weights_sha256"] == source.sha256
    assert set(deployment.files) == {"README.md", "weights/manifest.json", "weights/weights.npz"}
    assert (folder / "weights" / "weights.npz").read_bytes() == (source.weights / "weights.npz").read_bytes()
    card = (folder / "README.md").read_text("utf-8")
    assert all(text in card for text in ("sft__seed1", source.sha256, "## Data", "Audit:"))
    [event] = read_promotions()
    assert event.part("audit")["clean"] is True


def test_the_last_one_is_live_and_the_one_before_can_come_back(trained: Path) -> None:
    source = find_source("routing")
    for _ in range(3):
        ship(source, "openai_server", name="production")
    ship(source, "openai_server", name="canary")
    assert Deployments.read().live == {"production": "production.3", "canary": "canary.1"}
    back = roll_back("production", reason="live scores fell")
    assert back is not None
    assert back.id == "production.2"
    again = roll_back("production")
    assert again is not None
    assert again.id == "production.1"
    with pytest.raises(DataError, match="first deployment"):
        roll_back("production")
    assert roll_back("production", nothing=True) is None
    assert Deployments.read().live == {"canary": "canary.1"}
    assert ship(source, "openai_server", name="production").id == "production.4"


def test_a_deployment_that_was_taken_back_is_no_place_to_go_back_to(trained: Path) -> None:
    source = find_source("routing")
    for _ in range(2):
        ship(source, "openai_server", name="production")
    roll_back("production")
    ship(source, "openai_server", name="production")
    back = roll_back("production")
    assert back is not None
    assert back.id == "production.1"


def test_going_back_to_files_that_were_changed_is_refused(trained: Path) -> None:
    source = find_source("routing")
    first = ship(source, "openai_server", name="production")
    ship(source, "openai_server", name="production")
    (Path(first.location) / "weights" / "weights.npz").write_bytes(b"other")
    with pytest.raises(DataError, match="was changed since it was shipped"):
        roll_back("production")
    assert Deployments.read().live["production"] == "production.2"


def test_a_list_that_somebody_changed_is_not_gone_on_from(trained: Path) -> None:
    source = find_source("routing")
    for _ in range(2):
        ship(source, "openai_server", name="production")
    file = promotions_file()
    file.write_text(file.read_text("utf-8").replace("sft__seed1", "sft__seed2", 1), "utf-8")
    with pytest.raises(DataError, match="changed by hand"):
        ship(source, "openai_server", name="production")


def test_a_deployer_that_fails_leaves_nothing(trained: Path) -> None:
    @register_deployer("breaks")
    class Breaks:
        library = ""

        def build(self, source: Source, folder: Path) -> Built:
            (folder / "half").write_text("x", "utf-8")
            raise DataError("the place is closed.")

    with pytest.raises(DataError, match="closed"):
        ship(find_source("routing"), "breaks", name="production")
    assert not read_promotions()
    assert not list((trained / ".evsys" / "deployments").rglob("*half*"))


def test_what_a_killed_process_left_is_not_in_the_way(trained: Path) -> None:
    shelf = trained / ".evsys" / "deployments" / "production"
    (shelf / "1").mkdir(parents=True)
    (shelf / "1" / "half").write_text("x", "utf-8")
    (shelf / ".1.9-ab.tmp").mkdir()
    deployment = ship(find_source("routing"), "openai_server", name="production")
    assert sorted(path.name for path in shelf.iterdir()) == ["1"]
    assert "half" not in deployment.files


def test_a_folder_of_ones_own_must_be_empty(trained: Path) -> None:
    out = trained / "out"
    source = find_source("routing")
    assert ship(source, "openai_server", name="production", folder=out).location == str(out)
    with pytest.raises(DataError, match="there is something already"):
        ship(source, "openai_server", name="production", folder=out)


def test_a_record_that_does_not_hold_is_not_shipped(trained: Path) -> None:
    journal = trained / "outputs" / "routing" / "journal.jsonl"
    journal.write_text(journal.read_text("utf-8").replace("sft__seed2", "sft__seed3"), "utf-8")
    with pytest.raises(DataError, match="its record does not hold"):
        ship(find_source("routing"), "openai_server", name="production")
    deployment = ship(find_source("routing"), "openai_server", name="production", despite_audit=True)
    assert "flagged" in (Path(deployment.location) / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["", "a/b", "../up", "a b", "x" * 65])
def test_names_that_are_no_names_are_refused(trained: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot be called"):
        ship(find_source("routing"), "openai_server", name=name)


@pytest.mark.parametrize("kind", ["peft_dir", "merged_safetensors", "gguf", "vllm"])
def test_weights_of_the_mock_are_no_adapter(trained: Path, kind: str) -> None:
    with pytest.raises(DataError, match="weights of the mock backend"):
        ship(find_source("routing"), kind, name="production")


def test_params_that_do_not_fit_are_refused_with_their_place(trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"--param\.bse"):
        ship(find_source("routing"), "peft_dir", name="production", params={"bse": "x"})


def test_an_adapter_is_shipped_with_tokenizer_and_template(as_adapter: Path) -> None:
    deployment = ship(
        find_source("routing"), "peft_dir", name="p", params={"base": str(as_adapter)}, despite_audit=True
    )
    expected = {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
    }
    assert set(deployment.files) == expected
    config = json.loads((Path(deployment.location) / "adapter_config.json").read_text("utf-8"))
    assert (config["base_model_name_or_path"], config["r"]) == ("tiny", 2)


def test_a_base_that_is_not_here_is_named(as_adapter: Path) -> None:
    with pytest.raises(DataError, match=r"'tiny' is not on this disk.*--param base=FOLDER"):
        ship(find_source("routing"), "peft_dir", name="p", despite_audit=True)


def test_vllm_gets_a_command_and_a_rank_that_it_knows(as_adapter: Path) -> None:
    params: dict[str, Any] = {"base": str(as_adapter), "served_name": "mine"}
    deployment = ship(find_source("routing"), "vllm", name="p", params=params, despite_audit=True)
    script = (Path(deployment.location) / "serve.sh").read_text("utf-8")
    assert f"vllm serve {as_adapter}" in script
    assert "--lora-modules mine=" in script
    assert Path(script.split("vllm serve ")[1].split()[0]).is_absolute()  # it is run elsewhere
    assert "max-lora-rank: 8" in (Path(deployment.location) / "vllm.yaml").read_text("utf-8")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_commands_ship_list_show_and_take_back(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = [run(capsys, "deploy", "routing", "--to", "openai_server", "--name", "production") for _ in range(2)]
    assert [(code, made["id"]) for code, made in shipped] == [(0, "production.1"), (0, "production.2")]
    _, listed = run(capsys, "deployments", "list")
    assert [(entry["id"], entry["live"]) for entry in listed] == [("production.1", False), ("production.2", True)]
    code, back = run(capsys, "deployments", "rollback", "production", "--reason", "too slow")
    assert (code, back["live"]) == (0, "production.1")
    code, shown = run(capsys, "deployments", "show", "production")
    assert (code, shown["id"], shown["damage"]) == (0, "production.1", None)
    (Path(shown["location"]) / "weights" / "weights.npz").unlink()
    code, shown = run(capsys, "deployments", "show", "production")
    assert code == 2
    assert "is gone" in shown["damage"]


def test_the_commands_say_it_in_words_too(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deployments", "list"]) == 0
    assert "No deployments yet" in capsys.readouterr().out
    assert main(["deploy", "routing", "--to", "openai_server"]) == 0
    assert capsys.readouterr().out.startswith("routing.1: sft__seed1 of routing-")
    assert main(["deployments", "list"]) == 0
    assert "live" in capsys.readouterr().out
    assert main(["deployments", "show", "nothing"]) == 1
    assert "there is no deployment 'nothing'" in capsys.readouterr().err
