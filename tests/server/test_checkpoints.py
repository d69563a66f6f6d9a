"""Names of saved weights on disk; no server needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evsys_sdk.server.answer import Refusal
from evsys_sdk.server.weights.checkpoints import SAMPLER, WEIGHTS, CheckpointPlace, Checkpoints

RUN = "abc:train:0"


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    store = Checkpoints(tmp_path)
    store.add_run(RUN, {"base_model": "tiny", "lora_rank": 8, "seed": 1, "user_metadata": None})
    return store


def save(checkpoints: Checkpoints, name: str, content: str = "x", kind: str = WEIGHTS, ttl: int | None = None) -> Path:
    folder = checkpoints.engine_dir(RUN) / f"{name}-{content}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(content, "utf-8")
    about = {"base_model": "tiny", "lora_rank": 8}
    checkpoints.add(
        CheckpointPlace(RUN, kind, name), str(folder), ttl_seconds=ttl, user_metadata={"a": "b"}, about=about
    )
    return folder


def test_what_was_saved_is_found_by_its_path(checkpoints: Checkpoints) -> None:
    folder = save(checkpoints, "one")
    assert checkpoints.get(f"tinker://{RUN}/weights/one").ref == str(folder)
    (listed,) = checkpoints.describe_all(RUN)
    assert (listed["checkpoint_id"], listed["checkpoint_type"], listed["size_bytes"]) == ("weights/one", "training", 1)
    with pytest.raises(Refusal):
        checkpoints.get(f"tinker://{RUN}/{SAMPLER}/one")


def test_the_folder_can_be_moved(checkpoints: Checkpoints, tmp_path: Path) -> None:
    save(checkpoints, "one")
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    ref = Checkpoints(moved).get(f"tinker://{RUN}/weights/one").ref
    assert (Path(ref) / "weights").read_text("utf-8") == "x"


def test_a_name_that_is_given_again_replaces_what_it_meant(checkpoints: Checkpoints) -> None:
    old, new = save(checkpoints, "one"), save(checkpoints, "one", "y")
    assert checkpoints.get(f"tinker://{RUN}/weights/one").ref == str(new)
    assert not old.exists()


def test_what_is_deleted_or_has_expired_is_gone(checkpoints: Checkpoints) -> None:
    deleted, expired = save(checkpoints, "deleted"), save(checkpoints, "expired", ttl=3600)
    checkpoints.delete(CheckpointPlace(RUN, WEIGHTS, "deleted"))
    record = checkpoints.run_dir(RUN) / "weights" / "expired.json"
    old = json.loads(record.read_text("utf-8"))
    record.write_text(json.dumps({**old, "expires_at": "2020-01-01T00:00:00+00:00"}), "utf-8")
    for name in ("deleted", "expired"):
        with pytest.raises(Refusal, match="expired"):
            checkpoints.get(f"tinker://{RUN}/weights/{name}")
    assert checkpoints.describe_all() == []
    checkpoints.delete_expired()
    assert not deleted.exists()
    assert not expired.exists()


def test_content_without_a_name_does_not_exist(checkpoints: Checkpoints) -> None:
    """What a killed server leaves behind."""
    (checkpoints.engine_dir(RUN) / "half").mkdir(parents=True)
    assert checkpoints.describe_all() == []


def test_a_damaged_record_is_named(checkpoints: Checkpoints) -> None:
    save(checkpoints, "one")
    (checkpoints.run_dir(RUN) / "weights" / "one.json").write_text("{", "utf-8")
    with pytest.raises(Refusal, match=r"one\.json"):
        checkpoints.get(f"tinker://{RUN}/weights/one")
    assert checkpoints.describe_all() == []


@pytest.mark.parametrize(
    "path",
    [
        "",
        "tinker://",
        "tinker://x/weights/a",
        f"tinker://{RUN}/weights/../../a",
        f"tinker://{RUN}/weights/a/b",
        "/etc/passwd",
    ],
)
def test_paths_that_cannot_be_ours_are_refused(path: str) -> None:
    with pytest.raises(Refusal, match="not a path of saved weights"):
        CheckpointPlace.parse(path)


DAMAGED = {
    "cut off": lambda record: json.dumps(record)[:-9],
    "empty": lambda record: "",
    "a list": lambda record: "[]",
    "no time": lambda record: json.dumps(
        {key: value for key, value in record.items() if key not in ("time", "created")}
    ),
    "a date that is none": lambda record: json.dumps({**record, "expires_at": "tomorrow"}),
    "a run that cannot be": lambda record: json.dumps(record).replace("abc:train:0", "abc:train:1000000000"),
    "of another": lambda record: json.dumps(record).replace("weights/one", "weights/two"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_record_hides_no_other(checkpoints: Checkpoints, damage: str, tmp_path: Path) -> None:
    save(checkpoints, "one")
    save(checkpoints, "sound")
    files = {"runs": checkpoints.run_dir(RUN) / "run.json", "one": checkpoints.run_dir(RUN) / "weights" / "one.json"}
    for file in files.values():
        file.write_text(DAMAGED[damage](json.loads(file.read_text("utf-8"))), "utf-8")
    checkpoints.add_run("abc:train:1", {"base_model": "tiny", "lora_rank": 8, "seed": 1, "user_metadata": None})
    again = Checkpoints(tmp_path)
    again.delete_expired()
    assert "sound" in {checkpoint["checkpoint_id"].partition("/")[2] for checkpoint in again.describe_all()}
    assert [c["tinker_path"] for c in again.describe_all() if c["tinker_path"].endswith("one")] == []
    assert "abc:train:1" in {run.training_run_id for run in again.runs()}


def test_nothing_outside_its_folder_is_ever_removed(checkpoints: Checkpoints, tmp_path: Path) -> None:
    save(checkpoints, "one")
    (tmp_path / "precious").mkdir()
    file = checkpoints.run_dir(RUN) / "weights" / "one.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "ref": "../../../precious"}), "utf-8")
    checkpoints.delete(CheckpointPlace(RUN, WEIGHTS, "one"))
    assert (tmp_path / "precious").exists()
    assert checkpoints.describe_all() == []
