from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError

from evsys_sdk.backends.client import ModelSpec
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.errors import BackendError, DataError
from evsys_sdk.registry import get_backend, schema_for

DATUM = Datum.supervised(list(b"some text"), [1] * 9)


def test_it_is_registered_and_every_param_is_explained() -> None:
    assert get_backend("mock") is MockBackend
    properties = schema_for("backend", "mock")["properties"]
    assert set(properties) == {"hidden", "context_length", "latency_ms"}
    assert all(field["description"] for field in properties.values())


def test_bad_params_are_refused() -> None:
    with pytest.raises(ValidationError):
        MockBackend(hiden=3)
    with pytest.raises(ValidationError):
        MockBackend(latency_ms=-1)


def test_a_plain_model_config_is_enough(tmp_path: Path) -> None:
    model = SimpleNamespace(name="Qwen/Qwen3-4B", load_checkpoint_path=None, renderer_name=None)
    backend = MockBackend()
    handles = backend.prepare(model=model, run_dir=tmp_path)
    try:
        client = handles["training_client"]
        assert client.model_name == "Qwen/Qwen3-4B"
        assert client.forward([DATUM]).result().loss > 0
        assert not list(tmp_path.iterdir()), "nothing is written before something is saved"
    finally:
        backend.teardown(handles)
        backend.teardown(handles)
        backend.teardown({})


def test_base_weights_follow_from_the_name_and_little_from_the_seed(tmp_path: Path) -> None:
    def logprobs(name: str, seed: int) -> np.ndarray:
        handles = MockBackend().prepare(model=ModelSpec(name, seed=seed), run_dir=tmp_path)
        try:
            return handles["training_client"].forward([DATUM]).result().logprobs[0]
        finally:
            MockBackend().teardown(handles)

    first, again, reseeded, other = logprobs("a", 0), logprobs("a", 0), logprobs("a", 1), logprobs("b", 0)
    assert np.array_equal(first, again)
    assert 0 < np.abs(first - reseeded).max() < np.abs(first - other).max()


def test_the_context_length_is_a_param(tmp_path: Path) -> None:
    handles = MockBackend(context_length=16).prepare(model=ModelSpec("m"), run_dir=tmp_path)
    client = handles["training_client"]
    assert client.capabilities.context_length == 16
    with pytest.raises(DataError, match="do not fit into the context of 16"):
        client.forward([Datum.supervised([1] * 20, [1] * 20)])
    client.close()


def test_resuming_and_initialising_at_once_is_refused(tmp_path: Path) -> None:
    model = ModelSpec("m", load_checkpoint_path="a", init_from_checkpoint="b")
    with pytest.raises(BackendError, match="are both set"):
        MockBackend().prepare(model=model, run_dir=tmp_path)


def test_validating_its_params_does_not_import_numpy() -> None:
    code = (
        "import sys; from evsys_sdk.registry import get_backend; get_backend('mock')(hidden=32); "
        "assert 'numpy' not in sys.modules, 'numpy was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=_env())


def _env() -> dict[str, str]:
    import os

    import evsys_sdk

    return {**os.environ, "PYTHONPATH": str(Path(evsys_sdk.__file__).parents[1])}


SCRIPT = """
import hashlib, sys, tempfile
from pathlib import Path
from evsys_sdk.backends.client import AdamParams, ModelSpec, SamplingParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.mock.backend import MockBackend

with tempfile.TemporaryDirectory() as folder:
    client = MockBackend().prepare(model=ModelSpec("det", seed=5), run_dir=Path(folder))["training_client"]
    encode = client.tokenizer.encode
    texts = [encode(f"question {n}: what is it? answer {n * n}") for n in range(40)]
    data = [Datum.supervised(text, [1] * len(text)) for text in texts]
    digest = hashlib.sha256()
    for _ in range(4):
        output = client.forward_backward(data, "cross_entropy")
        client.optim_step(AdamParams(1e-3, weight_decay=0.01, grad_clip_norm=5.0))
        digest.update(b"".join(lp.tobytes() for lp in output.result().logprobs))
        sampler = client.sampler().result()
        operations = [sampler.sample(encode(f"question {n}:"), 2, SamplingParams(12)) for n in range(9)]
        digest.update(repr([sample.tokens for op in operations for sample in op.result()]).encode())
    print(digest.hexdigest())
    client.close()
"""


def test_results_are_the_same_bits_in_every_process_and_with_any_number_of_threads() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            check=True,
            capture_output=True,
            text=True,
            env={**_env(), "OPENBLAS_NUM_THREADS": threads, "PYTHONHASHSEED": seed},
        ).stdout
        for threads, seed in (("1", "1"), ("4", "2"))
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_a_process_that_forgets_to_close_ends_all_the_same() -> None:
    script = SCRIPT.replace("    client.close()\n", "")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=_env())
    assert (done.returncode, done.stderr) == (0, "")
