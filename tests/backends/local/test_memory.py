"""Memory: what is estimated before loading, recomputation, and what happens when there really is too little."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import SamplingParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.local import memory, memory_plan  # noqa: E402
from evsys_sdk.backends.local.memory_plan import Estimate, Needs, Sizes  # noqa: E402
from evsys_sdk.backends.local.training import passes, recompute  # noqa: E402
from evsys_sdk.errors import BackendError  # noqa: E402

from .conftest import save_tiny  # noqa: E402

type MakeClient = Callable[..., Any]


def some_data(seed: int = 0, *, shared: int = 20, lengths: Sequence[int] = (5, 23, 40, 31, 12)) -> list[Datum]:
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 256, shared).tolist()
    data: list[Datum] = []
    for length in lengths:
        ids = [*start, *rng.integers(0, 256, length).tolist()]
        data.append(Datum.supervised(ids, [0.0] * shared + [1.0] * length))
    return data


def randomise(client: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, b in client._state.adapter.weights.values():
            b.copy_(torch.randn(b.shape, generator=generator) * 0.05)


def gradient(client: Any) -> list[Any]:
    return [tensor.clone() for tensor in client._state.optimizer._gradient]


def assert_equal(one: Sequence[Any], other: Sequence[Any]) -> None:
    assert any(bool(tensor.any()) for tensor in one)
    for first, second in zip(one, other, strict=True):
        assert torch.equal(first, second)


@pytest.fixture
def layers_run(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes the second runs of layers."""
    runs: list[str] = []
    restored = recompute._restore

    @contextlib.contextmanager
    def noted(*args: Any) -> Iterator[None]:
        with restored(*args):
            runs.append("again")
            yield

    monkeypatch.setattr(recompute, "_restore", noted)
    return runs


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("arch", ["llama", "qwen3", "mistral", "gemma3_text"])
def test_recomputed_layers_give_the_same_gradient_to_the_last_bit(
    arch: str, dropout: float, tiny: Callable[[str], str], make_client: MakeClient, layers_run: list[str]
) -> None:
    gradients: list[Any] = []
    losses: list[float] = []
    for recompute_ in ("never", "always"):
        assert not layers_run
        client = make_client(name=tiny(arch), params={"recompute": recompute_, "lora_dropout": dropout})
        randomise(client)
        for seed in (0, 1):
            losses.append(client.forward_backward(some_data(seed), "cross_entropy").result().loss)
        gradients.append(gradient(client))
    assert layers_run == ["again"] * 4
    assert losses[:2] == losses[2:]
    assert_equal(*gradients)


def child(work: str, argument: Any) -> Any:
    """What `memory_child` finds out, in a separate process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(Path(__file__).with_name("memory_child.py")), work, json.dumps(argument)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

WIDE = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "initializer_range": 0.05,
}


@linux_only
def test_the_estimate_is_what_a_run_takes(tmp_path: Path) -> None:
    plain = save_tiny(tmp_path / "llama", **WIDE)
    deep = save_tiny(tmp_path / "qwen3", "qwen3", **{**WIDE, "num_hidden_layers": 8, "vocab_size": 5000})
    rows = [256] * 4
    cases = [
        {"folder": plain, "rank": 8, "lengths": rows, "params": {"exact": True, "tokens_at_once": 1024}},
        {
            "folder": plain,
            "rank": 8,
            "lengths": [512] * 4,
            "params": {"exact": True, "tokens_at_once": 2048, "recompute": "always"},
        },
        {"folder": deep, "rank": 64, "lengths": rows, "params": {"dtype": "bfloat16", "tokens_at_once": 1024}},
    ]
    estimates = child("estimate", cases)
    for estimate in estimates:
        assert 0.7 < estimate["peak"] / estimate["estimate"] < 1.3
    assert estimates[1]["peak"] < estimates[0]["peak"]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What happened in a process that was not allowed to map what it needed."""
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    return child("limits", save_tiny(tmp_path_factory.mktemp("limited"), **WIDE))


def test_a_row_that_does_not_fit_is_split_and_gives_the_same(limited: Any) -> None:
    rows = limited["rows"]
    assert rows["loss"] == pytest.approx(1, abs=1e-6)
    assert rows["gap"] < 1e-5
    assert rows["tokens_at_once"] < 4 * 256
    assert rows["recompute_from"] is None
    assert rows["warnings"][0] > 0
    assert rows["warnings"][1] == 0, "the second pass knows what fits"


def test_a_sequence_that_does_not_fit_is_recomputed_and_gives_the_same_to_the_last_bit(limited: Any) -> None:
    sequence = limited["sequence"]
    assert (sequence["loss"], sequence["gap"]) == (1, 0)
    assert sequence["recompute_from"] == 1024
    assert sequence["warnings"] == [1, 0]


def test_a_sequence_that_never_fits_is_an_error_that_changes_nothing(limited: Any) -> None:
    outcome = limited["never"]
    for name in ("alone", "last"):
        assert "a sequence of 1024 tokens does not fit into the memory of cpu" in outcome[name]
    assert outcome["short"] == ""
    assert outcome["unchanged"]
    assert outcome["usable"]


def test_a_step_or_a_checkpoint_without_memory_loses_nothing(limited: Any) -> None:
    optimizer = limited["optimizer"]
    assert "too little memory for the optimizer step" in optimizer["step"]
    assert optimizer["unchanged"]
    assert optimizer["steps"] == 0
    assert "too little memory for a stored state" in optimizer["load"]
    assert optimizer["kept"]
    assert optimizer["restored"]


GIB = 1024**3
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def large() -> Any:
    """The sizes of a model of 8 billion weights."""
    from transformers import AutoConfig

    shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    return Sizes.of(AutoConfig.for_model("llama", **shape, num_key_value_heads=8, vocab_size=128256))


def needs(**changes: Any) -> Needs:
    wanted = Needs(torch.device("cuda"), torch.bfloat16, 32, None, 8192, 262144, merge=True, recompute=False)
    return dataclasses.replace(wanted, **changes)


def with_free(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: int(free))


def test_sizes_are_those_of_the_model(large: Any) -> None:
    assert large.parameters == 8_030_261_248
    assert (large.queries, large.keys, large.inner, large.layers) == (4096, 1024, 14336, 32)
    numbers, changed = large.adapter(16, ["q_proj", "v_proj"])
    assert numbers == 32 * 16 * (4096 + 4096 + 4096 + 1024)
    assert changed == 32 * 4096 * (4096 + 1024)


def test_what_fits_stays_as_it_is(
    large: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_free(monkeypatch, 139 * GIB)
    with caplog.at_level("WARNING", logger="evsys_sdk"):
        assert memory_plan.fit(large, needs(), fixed=(), model="m") == needs()
    assert not caplog.text


@pytest.mark.parametrize("free", [80, 60, 40, 24, 20])
def test_what_does_not_fit_is_made_to_fit(
    free: int, large: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_free(monkeypatch, free * GIB)
    with caplog.at_level("WARNING", logger="evsys_sdk"):
        chosen = memory_plan.fit(large, needs(), fixed=(), model="m")
    assert Estimate.of(large, chosen).total <= free * GIB
    assert "memory is short: this run would take 101.1 GiB, and cuda has" in caplog.text
    assert (f"tokens_at_once is {chosen.tokens_at_once} (not 8192)" in caplog.text) == (chosen.tokens_at_once != 8192)
    assert (f"of rows of {chosen.recompute_from} tokens or more" in caplog.text) == chosen.recompute
    assert ("without a merged copy" in caplog.text) == (not chosen.merge)
    assert chosen.recompute == (free <= 24)
    assert chosen.merge == (free > 40)


def test_what_the_config_sets_is_kept(large: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 60 * GIB)
    chosen = memory_plan.fit(large, needs(), fixed={"tokens_at_once", "merge_samplers"}, model="m")
    assert (chosen.tokens_at_once, chosen.merge, chosen.recompute) == (8192, True, True)
    fixed = {"tokens_at_once", "merge_samplers", "recompute"}
    with_free(monkeypatch, 75 * GIB)
    chosen = memory_plan.fit(large, needs(), fixed=fixed, model="m")
    assert (chosen.tokens_at_once, chosen.merge, chosen.recompute) == (8192, True, False)
    assert chosen.cached_tokens < 262144


def test_what_can_never_fit_is_refused_with_the_numbers(large: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 16 * GIB)
    with pytest.raises(BackendError, match=r"training m takes about 17\.7 GiB, and cuda has 16\.0 GiB free") as error:
        memory_plan.fit(large, needs(), fixed=(), model="m")
    for line in ("14.96 for weights as bfloat16", "a row of 256 tokens, recomputed", "no merged weights"):
        assert line in str(error.value)
    assert "lower lora_rank" in str(error.value)
    with_free(monkeypatch, 5 * GIB)  # a base that is there already takes nothing more
    assert memory_plan.fit(large, needs(loaded=True), fixed=(), model="m").recompute


def test_a_client_does_as_was_chosen_and_gives_the_same(
    tmp_path: Path,
    make_client: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    layers_run: list[str],
) -> None:
    folder = save_tiny(tmp_path / "model")
    plain = make_client(name=folder)
    randomise(plain)
    data = some_data(lengths=[200], shared=0)
    plain.forward_backward(data, "cross_entropy").result()
    sizes = Sizes.of(plain._base.model.config)
    least = Needs(CPU, torch.float32, 8, None, 256, 4096, merge=False, recompute=True, loaded=True)
    with_free(monkeypatch, Estimate.of(sizes, least).total / 0.9 + 1)
    with caplog.at_level("WARNING", logger="evsys_sdk"):
        small = make_client(name=folder, run_dir=tmp_path / "small")
    assert "memory is short" in caplog.text
    settings = small._settings
    assert (settings.passes.tokens_at_once, settings.passes.recompute, settings.merge) == (256, "auto", False)
    assert 0 < small._state.fitting.recompute_from < 256
    assert settings.sampling.cached_tokens == 4096
    randomise(small)
    small.forward_backward(data, "cross_entropy").result()
    assert len(layers_run) == 2
    assert_equal(gradient(plain), gradient(small))
    assert len(small.sampler().result().sample([1, 2], 2, SamplingParams(5, stop=[])).result()) == 2


def test_what_cannot_fit_on_a_cpu_is_not_even_begun(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, layers_run: list[str]
) -> None:
    """The system would end the process when it runs out of memory, and no error would be raised."""
    client = make_client()
    randomise(client)
    data = some_data(lengths=[100, 110, 120, 130], shared=0)
    client.forward_backward(data, "cross_entropy").result()
    plain = gradient(client)
    client._state.optimizer.forget_gradient()
    bytes_per_token, again = client._state.settings.bytes_per_token
    assert 0 < again < bytes_per_token
    monkeypatch.setattr(passes, "_WORTH_CHECKING", 0)
    with_free(monkeypatch, bytes_per_token * 0.8 * 125)
    output = client.forward_backward(data, "cross_entropy").result()
    assert client._state.fitting.recompute_from == 129
    assert client._state.fitting.tokens_at_once < 400
    assert layers_run
    assert np.isfinite(output.loss)
    largest = max(float(tensor.abs().max()) for tensor in plain)
    for first, other in zip(gradient(client), plain, strict=True):
        assert float((first - other).abs().max()) < 1e-5 * largest
    before = gradient(client)
    with_free(monkeypatch, again * 0.8 * 100)
    with pytest.raises(BackendError, match=r"a sequence of .* tokens does not fit into the memory of cpu"):
        client.forward_backward(data, "cross_entropy").result()
    assert_equal(gradient(client), before)
    assert np.isfinite(client.forward(data).result().loss)
