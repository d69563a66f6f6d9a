"""Tensors without torch: what is read is what was written, and an adapter is added in as its formula says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evsys_sdk.deploy.weights import Adapter, Merged, encode, list_tensors, write_safetensors
from evsys_sdk.errors import DataError

type Write = Callable[..., Path]


def test_a_tensor_is_read_as_it_was_written(tmp_path: Path, write_tensors: Write) -> None:
    tensors = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4)}
    found = list_tensors(write_tensors(tmp_path / "x.safetensors", tensors))
    assert {name: one.shape for name, one in found.items()} == {"a": (2, 3), "b": (4,)}
    assert all(np.array_equal(found[name].read(), tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(("dtype", "relative"), [("F16", 2**-11), ("BF16", 2**-8)])
def test_less_precision_rounds_to_the_nearest(
    tmp_path: Path, write_tensors: Write, dtype: str, relative: float
) -> None:
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    back = list_tensors(write_tensors(tmp_path / "x.safetensors", {"a": values}, dtype))["a"].read()
    assert float(np.abs(back / values - 1).max()) <= relative
    again = np.frombuffer(encode(back, dtype), "<u2")
    assert np.array_equal(again, np.frombuffer(encode(values, dtype), "<u2"))


def test_bfloat16_rounds_ties_to_even_and_keeps_what_is_no_number() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x7FC00001, 0x7F800000], dtype=np.uint32)
    assert np.frombuffer(encode(bits.view(np.float32), "BF16"), "<u2").tolist() == [0x3F80, 0x3F82, 0x7FC0, 0x7F80]


def test_a_weight_that_half_precision_cannot_hold_is_refused() -> None:
    with pytest.raises(DataError, match="half precision"):
        encode(np.array([1e6], dtype=np.float32), "F16")


def test_an_adapter_adds_its_scaled_product(tmp_path: Path, write_tensors: Write) -> None:
    random = np.random.default_rng(1)
    weight, a, b = (random.normal(size=shape).astype(np.float32) for shape in ((6, 4), (2, 4), (6, 2)))
    base = write_tensors(tmp_path / "base.safetensors", {"l.weight": weight, "other": np.ones(3)})
    path = write_tensors(tmp_path / "adapter.safetensors",
                         {"base_model.model.l.lora_A.weight": a, "base_model.model.l.lora_B.weight": b})  # fmt: skip
    merged = Merged.of([base], Adapter.read(path, {"r": 2, "lora_alpha": 6}))
    assert np.allclose(merged.read("l.weight"), weight + 3 * b @ a, atol=1e-6)
    assert np.array_equal(merged.read("other"), np.ones(3))
    assert not merged.unties_head


def test_a_base_that_keeps_weights_turned_gets_the_change_turned(tmp_path: Path, write_tensors: Write) -> None:
    a, b, weight = np.ones((1, 3)), np.arange(2.0).reshape(2, 1), np.zeros((3, 2))
    base = write_tensors(tmp_path / "base.safetensors", {"l.weight": weight})
    path = write_tensors(tmp_path / "a.safetensors", {"l.lora_A.weight": a, "l.lora_B.weight": b})
    merged = Merged.of([base], Adapter.read(path, {"r": 1, "lora_alpha": 1, "fan_in_fan_out": True}))
    assert merged.read("l.weight").tolist() == [[0, 1]] * 3


def test_a_changed_output_layer_no_longer_shares_the_embedding(tmp_path: Path, write_tensors: Write) -> None:
    embedding = np.arange(6.0).reshape(3, 2)
    base = write_tensors(tmp_path / "base.safetensors", {"model.embed_tokens.weight": embedding})
    path = write_tensors(
        tmp_path / "a.safetensors", {"lm_head.lora_A.weight": np.ones((1, 2)), "lm_head.lora_B.weight": np.ones((3, 1))}
    )
    merged = Merged.of([base], Adapter.read(path, {"r": 1, "lora_alpha": 1}))
    assert merged.unties_head
    assert np.array_equal(merged.read("lm_head.weight"), embedding + 1)
    assert np.array_equal(merged.read("model.embed_tokens.weight"), embedding)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, write_tensors: Write) -> None:
    base = write_tensors(tmp_path / "base.safetensors", {"l.weight": np.ones((2, 2))})
    low = {"l.lora_A.weight": np.ones((1, 3)), "l.lora_B.weight": np.ones((2, 1))}
    adapter = Adapter.read(write_tensors(tmp_path / "a.safetensors", low), {"r": 1, "lora_alpha": 1})
    with pytest.raises(DataError, match=r"\(2, 3\).*\(2, 2\)"):
        Merged.of([base], adapter).read("l.weight")
    with pytest.raises(DataError, match=r"no weight 'l\.weight'"):
        Merged.of([write_tensors(tmp_path / "b.safetensors", {"m.weight": np.ones(1)})], adapter)


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, (8).to_bytes(8, "little") + b"not json"])
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a safetensors file"):
        list_tensors(path)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"a": (100,)}, {"a": "F32"}, lambda _: np.ones(100, dtype=np.float32))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="cut off"):
        list_tensors(path)
