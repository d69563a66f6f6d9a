"""Our Triton kernels in Triton's interpreter, which needs no GPU, against plain torch; a test runs it as a program."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from evsys_sdk.backends.client import SamplingParams
from evsys_sdk.backends.local.base.attention import VarlenIndex
from evsys_sdk.backends.local.base.lora import LoRAAdapter
from evsys_sdk.backends.local.base.packing import pack
from evsys_sdk.backends.local.gpu import choice, decode_kernels, decode_step, joint_decoding
from evsys_sdk.backends.local.gpu.row_kernels import Gather, merge, softmax_, store_rows
from evsys_sdk.backends.local.gpu.training_graphs import Shape, inputs_of
from evsys_sdk.backends.local.sampling.lanes import choose


def check(what: str, found: Any, expected: Any, tolerance: float = 2e-3) -> None:
    gap = float((found - expected).abs().max())
    assert gap <= tolerance, f"{what}: {gap}"


def check_adapters(rows: int, hidden: int, inner: int, rank: int) -> None:
    """The same with several adapters in a bank, some rows without one."""
    decode_kernels._plan = lambda x, height, gate=False, divide=False, pairs=False: decode_kernels._Plan(
        16, 32, 2 if divide else 1, 2
    )
    room = decode_kernels.Room(hidden, torch.device("cpu"))
    x, norms = torch.randn(rows, hidden), [norm_of(hidden) for _ in range(3)]
    both, down = matrix(2 * inner, hidden), matrix(hidden, inner)
    linears = [SimpleNamespace(name=name, out_features=inner) for name in ("gate", "up")]
    linears.append(SimpleNamespace(name="down", out_features=hidden))
    layer: Any = SimpleNamespace(linears={"both": linears[:2], "down": linears[2:]}, both=both, down=down)
    shapes = {"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden)}
    adapters = [
        LoRAAdapter(
            rank, 2.0 * rank, {n: (torch.randn(rank, i) / i, torch.randn(o, rank)) for n, (i, o) in shapes.items()}
        )
        for _ in range(3)
    ]
    base: Any = SimpleNamespace(key=SimpleNamespace(dtype=torch.float32), device=torch.device("cpu"))
    bank = joint_decoding.Bank(base, [layer], adapters[0])
    owners: Any = [Owner(adapter) for adapter in (*adapters, None)]
    places = bank.place(owners)
    owner_of = np.random.default_rng(0).integers(0, 4, rows)
    of_row = np.array(places)[owner_of]

    def changed(values: Any, name: str) -> Any:
        change = torch.zeros(rows, shapes[name][1])
        for row, owner in enumerate(owner_of):
            if owner < 3:
                a, b = adapters[owner].weights[name]
                change[row] = 2.0 * (b @ (a @ values[row]))
        return change

    adapted = decode_kernels.FewRows(x.clone(), norms[0], room, (bank, torch.from_numpy(of_row).int()))
    h = normed(x, norms[0])
    gate, up = F.linear(h, both.weight).chunk(2, dim=1)
    expected = F.silu(gate + changed(h, "gate")) * (up + changed(h, "up"))
    check("adapted gate", adapted.times(both, gate=True), expected)
    adapted.add(expected, down, norms[1])
    check("adapted addition", adapted.x, x + F.linear(expected, down.weight) + changed(expected, "down"))
    many = decode_step.ManyRows(x.clone(), norms[0], (bank, torch.from_numpy(of_row).int()))
    check("adapted gate of many rows", many.times(both, gate=True), expected)
    many.add(expected, down, norms[1])
    check("adapted addition of many rows", many.x, adapted.x)


class Owner:
    """Like a snapshot."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter


def norm_of(width: int) -> Any:
    return SimpleNamespace(weight=torch.rand(width) + 0.5, variance_epsilon=1e-5)


def matrix(height: int, width: int, *, bias: bool = False) -> Any:
    weight = torch.randn(height, width) / width**0.5
    return SimpleNamespace(weight=weight, bias=torch.randn(height) if bias else None)


def normed(x: Any, norm: Any) -> Any:
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def check_products(rows: int, hidden: int, inner: int) -> None:
    """Two layers of products with their norms, gates and additions."""
    decode_kernels._plan = lambda x, height, gate=False, divide=False, pairs=False: decode_kernels._Plan(
        32 if len(x) > 16 else 16, 32, 3 if divide else 1, 2
    )
    room = decode_kernels.Room(hidden, torch.device("cpu"))
    x, norms = torch.randn(rows, hidden), [norm_of(hidden) for _ in range(5)]
    states = decode_kernels.FewRows(x.clone(), norms[0], room)
    for number in (0, 2):
        first, output = matrix(2 * hidden, hidden, bias=True), matrix(hidden, 2 * hidden, bias=number > 0)
        both, down = matrix(2 * inner, hidden), matrix(hidden, inner)
        expected = F.linear(normed(x, norms[number]), first.weight, first.bias)
        check("times", states.times(first), expected)
        states.add(expected, output, norms[number + 1])
        x = x + F.linear(expected, output.weight, output.bias)
        gate, up = F.linear(normed(x, norms[number + 1]), both.weight).chunk(2, dim=1)
        check("gate", states.times(both, gate=True), F.silu(gate) * up)
        states.add(F.silu(gate) * up, down, norms[number + 2])
        x = x + F.linear(F.silu(gate) * up, down.weight)
        check("add", states.x, x)
    assert not room.arrived.any()


def turned(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]


def check_attention(*, norm: bool, window: int | None) -> None:
    """Slots of different length, some of which read their beginning in another one."""
    heads, kv_heads, width, slots, length = 4, 2, 16, 6, 120
    qkv, cos, sin = (
        torch.randn(slots, (heads + 2 * kv_heads) * width),
        torch.randn(slots, width),
        torch.randn(slots, width),
    )
    norms = (norm_of(width), norm_of(width)) if norm else None
    keys, values = torch.randn(slots, kv_heads, length, width), torch.randn(slots, kv_heads, length, width)
    positions, homes, shared = (
        torch.tensor(row) for row in ([90, 30, 12, 110, 88, 66], [0, 1, 2, 0, 0, 1], [86, 20, 9, 86, 86, 20])
    )
    q, k, v = qkv.view(slots, -1, width).split([heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        q, k = normed(q, norms[0]), normed(k, norms[1])
    q, k = turned(q, cos, sin), turned(k, cos, sin)
    expected_keys, expected_values = keys.clone(), values.clone()
    every = torch.arange(slots)
    expected_keys[every, :, positions], expected_values[every, :, positions] = k, v
    expected = torch.empty(slots, heads, width)
    for slot in range(slots):
        own = []
        for whole in (expected_keys, expected_values):
            begins, ends = whole[homes[slot], :, : shared[slot]], whole[slot, :, shared[slot] : positions[slot] + 1]
            own.append(torch.cat([begins, ends], dim=1)[:, -(window or length) :].repeat_interleave(2, dim=0))
        expected[slot] = F.scaled_dot_product_attention(q[slot][:, None], own[0], own[1], scale=0.3)[:, 0]
    traits = SimpleNamespace(scale=0.3, window=window)
    where = (positions, homes, shared)
    for prompts in (False, True):
        output = decode_step.attend(qkv, (cos, sin), norms, (keys, values), where, traits, heads, prompts=prompts)
        check("attention", output.view(slots, heads, width), expected)
    check("keys", keys, expected_keys)
    check("values", values, expected_values, 0)


def check_choice(vocabulary: int) -> None:
    choice._PART = 64
    logits = torch.randn(24, vocabulary) * 3
    uniform = torch.rand(24, dtype=torch.float64)
    uniform[:2] = torch.tensor([0.0, 1 - 2.0**-53])
    logits[4] = float("-inf")
    logits[4, [3, vocabulary - 1]] = 0.0
    params = [SamplingParams(1, temperature=(1, 0, 0.6, 1.7)[row % 4]) for row in range(24)]
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float64)
    biases, bias = torch.randn(2, vocabulary) * 2, torch.arange(24, dtype=torch.int32) % 3
    biases[1, 5] = -100.0
    tokens, logprobs = choice.pick(logits, temperature, uniform, biases, bias)
    expected = logits.log_softmax(dim=1)
    changed = expected + torch.cat([torch.zeros(1, vocabulary), biases])[bias.long()]
    assert torch.equal(tokens.long(), choose(changed, params, uniform))
    check("log-probabilities", logprobs, expected.gather(1, tokens.long()[:, None])[:, 0].double())


def check_gather() -> None:
    """Keys of sequences that share a prefix, as they are and filled up to a shape; what is behind them is no one's."""
    rng = np.random.default_rng(0)
    start = rng.integers(0, 99, 20)
    [row] = pack([np.concatenate([start, rng.integers(0, 99, size)]) for size in (5, 23, 40)], budget=1000)
    shape = Shape.of(row)
    *_, keys, gather, order, ends = (torch.from_numpy(part) for part in inputs_of(row, shape))
    plain = VarlenIndex.of(row.segments, len(row.tokens))
    for index, number in ((plain, len(row.tokens)), (VarlenIndex(keys, keys, 0, 0, gather, order, ends), shape.tokens)):
        assert index.gather is not None
        count = int(index.keys[-1])
        rows = torch.randn(number, 2, 4, requires_grad=True)
        slope = torch.full((len(index.gather), 2, 4), float("nan"))
        slope[:count] = torch.randn(count, 2, 4)
        [gradient] = torch.autograd.grad(Gather.apply(rows, index.gather, index.order, index.ends), rows, slope)
        check("gather", gradient, torch.zeros_like(gradient).index_add_(0, index.gather[:count], slope[:count]))


def check_others() -> None:
    logits = torch.randn(3, 5000) * 4
    logits[1, :4500] = float("-inf")
    expected = logits.clone()
    check("sums", softmax_(logits, replace=False), expected.logsumexp(dim=1))
    assert torch.equal(logits, expected)
    softmax_(logits, replace=True)
    check("softmax", logits, expected.softmax(dim=1), 1e-5)
    for rank in (8, 48):
        weight, a, b, merged = torch.randn(70, 150), torch.randn(rank, 150), torch.randn(70, rank), torch.empty(70, 150)
        merge(weight, a, b, 0.5, merged)
        check("merge", merged, weight + 0.5 * b @ a)
    key, value = torch.randn(9, 3, 8), torch.randn(9, 10, 8)[:, 7:]
    cache, expected = torch.zeros(2, 5, 3, 12, 8), torch.zeros(2, 5, 3, 12, 8)
    slots, positions, places = (torch.tensor(row) for row in ([0, 0, 4, 2], [1, 2, 11, 5], [3, 4, 8, 3]))
    expected[0][slots, :, positions], expected[1][slots, :, positions] = key[places], value[places]
    store_rows(key, value, (cache[0], cache[1]), slots, positions, places)
    assert torch.equal(cache, expected)


def main() -> None:
    warnings.simplefilter("ignore")  # of infinities in the interpreter
    torch.manual_seed(0)
    check_products(5, 48, 40)
    check_products(40, 64, 100)
    for rows in (5, 24, 40):
        check_adapters(rows, 48, 64, rank=8)
    for norm in (False, True):
        for window in (None, 9):
            check_attention(norm=norm, window=window)
    for vocabulary in (64, 259, 1000):
        check_choice(vocabulary)
    check_gather()
    check_others()
    print("all equal")


if __name__ == "__main__":
    main()
