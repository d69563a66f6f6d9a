from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evsys_sdk.backends.client import AdamParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.mock.client import MockTrainingClient
from evsys_sdk.errors import BackendError

type MakeClient = Callable[..., MockTrainingClient]

DATUM = Datum.supervised(list(b"the answer is forty two"), [0] * 14 + [1] * 9)


def _train(client: MockTrainingClient, steps: int = 2) -> np.ndarray:
    for _ in range(steps):
        client.forward_backward([DATUM], "cross_entropy")
        client.optim_step(AdamParams(1e-3))
    return client.forward([DATUM]).result().logprobs[0]


@pytest.fixture
def saved(make_client: MakeClient) -> tuple[MockTrainingClient, Path]:
    client = make_client()
    _train(client)
    return client, Path(client.save_state("first").result())


def test_a_checkpoint_lies_in_the_run_folder_and_says_what_it_is(
    saved: tuple[MockTrainingClient, Path], tmp_path: Path
) -> None:
    _, folder = saved
    assert folder == tmp_path / "checkpoints" / "first" / "state"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["model"] == "any/model"
    assert (manifest["lora_rank"], manifest["steps"], manifest["optimizer"]) == (32, 2, True)
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: (f / "weights.npz").write_bytes((f / "weights.npz").read_bytes()[:-100]),
            r"weights\.npz is damaged",
        ),
        (lambda f: (f / "weights.npz").unlink(), r"weights\.npz cannot be read"),
        (lambda f: (f / "manifest.json").unlink(), r"manifest\.json is missing"),
        (lambda f: (f / "manifest.json").write_text("{", encoding="utf-8"), r"manifest\.json cannot be read"),
        (lambda f: (f / "manifest.json").write_text("{}", encoding="utf-8"), "is not a checkpoint of the mock backend"),
    ],
)
def test_damage_is_noticed_named_and_leaves_the_live_state_alone(
    saved: tuple[MockTrainingClient, Path], damage: Callable[[Path], object], message: str
) -> None:
    client, folder = saved
    damage(folder)
    before = client.forward([DATUM]).result().logprobs[0]
    with pytest.raises(BackendError, match=message) as refused:
        client.load_state(str(folder)).result()
    assert str(folder) in str(refused.value)
    assert "earlier checkpoint" in str(refused.value)
    assert np.array_equal(client.forward([DATUM]).result().logprobs[0], before)


def test_one_flipped_bit_is_noticed(saved: tuple[MockTrainingClient, Path]) -> None:
    client, folder = saved
    content = bytearray((folder / "weights.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "weights.npz").write_bytes(content)
    with pytest.raises(BackendError, match="do not match the checksum"):
        client.load_state(str(folder)).result()


def test_what_a_killed_process_left_half_written_is_replaced(make_client: MakeClient, tmp_path: Path) -> None:
    half = tmp_path / "checkpoints" / "first" / "state"
    half.mkdir(parents=True)
    (half / "weights.npz").write_bytes(b"half")
    client = make_client()
    trained = _train(client)
    ref = client.save_state("first").result()
    other = make_client(load_checkpoint_path=ref)
    assert np.array_equal(other.forward([DATUM]).result().logprobs[0], trained)


def test_a_name_is_used_once_for_a_state_and_once_for_a_sampler(saved: tuple[MockTrainingClient, Path]) -> None:
    client, _ = saved
    assert client.sampler("first").result().ref.endswith("first/sampler")
    with pytest.raises(BackendError, match="the checkpoint 'first' exists already"):
        client.save_state("first")
    with pytest.raises(BackendError, match="the checkpoint 'first' exists already"):
        client.sampler("first")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "sp ace"])
def test_names_that_are_no_file_names_are_refused(client: MockTrainingClient, name: str) -> None:
    with pytest.raises(BackendError, match="cannot be called"):
        client.save_state(name)


def test_another_model_or_size_is_refused(saved: tuple[MockTrainingClient, Path], make_client: MakeClient) -> None:
    _, folder = saved
    with pytest.raises(BackendError, match=r"saved with model='any/model', but this client has 'other/model'"):
        make_client(name="other/model", load_checkpoint_path=str(folder))
    with pytest.raises(BackendError, match="hidden=64, but this client has 32"):
        make_client(params={"hidden": 32}, init_from_checkpoint=str(folder))


def test_weights_alone_cannot_restore_an_optimizer(saved: tuple[MockTrainingClient, Path]) -> None:
    client, _ = saved
    ref = client.sampler("weights").result().ref
    with pytest.raises(BackendError, match=r"holds weights only.*with_optimizer=False"):
        client.load_state(ref).result()
    client.load_state(ref, with_optimizer=False).result()


def test_a_run_with_another_seed_can_start_from_a_checkpoint(
    saved: tuple[MockTrainingClient, Path], make_client: MakeClient
) -> None:
    client, folder = saved
    expected = client.forward([DATUM]).result().logprobs[0]
    other = make_client(seed=9, init_from_checkpoint=str(folder))
    assert np.array_equal(other.forward([DATUM]).result().logprobs[0], expected)
    again = make_client(seed=9, load_checkpoint_path=other.save_state("second").result())
    assert np.array_equal(_train(again), _train(other))


def test_what_was_never_trained_is_not_stored(saved: tuple[MockTrainingClient, Path]) -> None:
    client, folder = saved
    whole = sum(array.nbytes for array in client.sampler().result()._weights.values())
    assert (folder / "weights.npz").stat().st_size < whole / 10
