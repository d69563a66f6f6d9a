"""What was read before is not read again: shared beginnings and later turns, how they give way; always exact."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import AdamParams, SamplingParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.local import memory  # noqa: E402
from evsys_sdk.backends.local.base import attention  # noqa: E402
from evsys_sdk.backends.local.sampling import batch, decoding, reading  # noqa: E402
from evsys_sdk.backends.local.sampling.decoding import KeyValueCache, TokenDecoder  # noqa: E402
from evsys_sdk.backends.local.sampling.prefix_cache import PrefixCache  # noqa: E402

from .conftest import save_tiny  # noqa: E402
from .test_architectures import FAMILIES, build  # noqa: E402


@pytest.fixture(autouse=True)
def no_other_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count only the caches of the test: models of other tests may still be alive in this process."""
    monkeypatch.setattr(memory, "_evictable", weakref.WeakSet[Any]())


type MakeClient = Callable[..., Any]

INSTRUCTIONS = "You are a careful clerk who answers in one word. "
FREE = {"stop": [], "temperature": 1.0}


def train(client: Any, steps: int = 2) -> None:
    ids = client.tokenizer.encode("some text to learn from")
    for _ in range(steps):
        client.forward_backward([Datum.supervised(ids, [1.0] * len(ids))], "cross_entropy").result()
        client.optim_step(AdamParams(3e-3)).result()


def ids(client: Any, text: str) -> list[int]:
    return client.tokenizer.encode(text)


def ask(sampler: Any, prompt: Sequence[int], *, new: int = 12, seed: int = 1, samples: int = 1) -> list[Any]:
    return sampler.sample(prompt, samples, SamplingParams(new, seed=seed, **FREE)).result()


def alone(client: Any, prompt: Sequence[int], **options: Any) -> list[Any]:
    """The same from a sampler that has seen nothing yet."""
    return ask(client.sampler().result(), prompt, **options)


def assert_alike(one: Sequence[Any], other: Sequence[Any]) -> None:
    assert [sample.tokens for sample in one] == [sample.tokens for sample in other]
    for here, there in zip(one, other, strict=True):
        np.testing.assert_allclose(here.logprobs, there.logprobs, atol=1e-5)


class Counted:
    """Prompt tokens that were read and reused since it was made."""

    def __init__(self, client: Any) -> None:
        self._count = client._loop.prompt_tokens
        self._before = (self._count.read, self._count.reused)

    @property
    def read(self) -> int:
        return self._count.read - self._before[0]

    @property
    def reused(self) -> int:
        return self._count.reused - self._before[1]


@pytest.fixture
def warm(make_client: MakeClient) -> Any:
    """A client with an adapter, whose base has tried out its decoders."""
    client = make_client()
    train(client)
    ask(client.sampler().result(), [1, 2], new=2)
    return client


def model_of(arch: str, tiny: Callable[[str], str], folder: Path) -> str:
    if arch == "gemma2":
        capped = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": None}
        return save_tiny(folder / "gemma2", arch, sliding_window=8, query_pre_attn_scalar=16, **capped)
    return tiny(arch)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("arch", ["llama", "qwen3", "mistral", "gemma3_text", "gemma2"])
def test_three_turns_read_only_what_is_new_and_sample_the_same(
    arch: str, merge: bool, tiny: Callable[[str], str], tmp_path: Path, make_client: MakeClient
) -> None:
    """Mistral and the Gemmas here have a window of 8 tokens, far less than what is remembered."""
    client = make_client(name=model_of(arch, tiny, tmp_path), params={"merge_samplers": merge})
    train(client)
    sampler = client.sampler().result()
    prompt = ids(client, INSTRUCTIONS + "First question?")
    for turn in range(3):
        counted = Counted(client)
        reply = ask(sampler, prompt, seed=turn, samples=2)
        if turn:
            assert counted.read == 1 + len(ids(client, f" And question {turn - 1}?"))
            assert counted.reused == 2 * len(prompt) - counted.read
        assert_alike(reply, alone(client, prompt, seed=turn, samples=2))
        prompt = [*prompt, *reply[0].tokens, *ids(client, f" And question {turn}?")]


@pytest.mark.parametrize(
    "family", ["gpt-oss", "DeepSeek V3", "Gemma 3n, shared keys", "GPT-2", "Qwen3-MoE", "Qwen3.5", "LFM2"]
)
def test_other_families_sample_the_same_in_later_turns(family: str, tmp_path: Path, make_client: MakeClient) -> None:
    """Sinks, values of another width than keys, layers without keys, learned positions, experts,
    states."""
    arch, config = FAMILIES[family]
    client = make_client(name=build(tmp_path / "model", arch, **config))
    train(client)
    sampler = client.sampler().result()
    text = list(range(40))
    for turn in range(2):
        reply = ask(sampler, text, seed=turn, new=10, samples=2)
        assert_alike(reply, alone(client, text, seed=turn, new=10, samples=2))
        text = [*text, *reply[0].tokens, 7, 8, 9]
    assert client._loop.prompt_tokens.read == (40 + 4) + (40 + 53)


def test_sampled_logprobs_of_a_later_turn_are_those_of_training(warm: Any) -> None:
    sampler = warm.sampler().result()
    prompt = ids(warm, INSTRUCTIONS)
    prompt = [*prompt, *ask(sampler, prompt)[0].tokens, *ids(warm, "next turn")]
    [sample] = ask(sampler, prompt, new=20)
    whole = [*prompt, *sample.tokens]
    scored = warm.forward([Datum.supervised(whole, [1.0] * len(whole))]).result().logprobs[0]
    np.testing.assert_allclose(sample.logprobs, scored[len(prompt) - 1 :], atol=1e-4)


def test_prompts_that_come_together_read_their_common_beginning_once(
    warm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evsys_sdk.backends.local.sampling.loop._GRACE_S", 0.2)
    prompts = [ids(warm, f"{INSTRUCTIONS}Question {number}: {'why ' * number}?") for number in range(5)]
    expected = [alone(warm, prompt, seed=number) for number, prompt in enumerate(prompts)]
    sampler = warm.sampler().result()
    counted = Counted(warm)
    pending = [sampler.sample(p, 1, SamplingParams(12, seed=number, **FREE)) for number, p in enumerate(prompts)]
    for operation, first in zip(pending, expected, strict=True):
        assert_alike(operation.result(), first)
    common = len(ids(warm, INSTRUCTIONS + "Question "))
    assert counted.read == sum(map(len, prompts)) - 4 * common
    assert counted.reused == 4 * common


def test_a_late_request_takes_over_the_beginning_of_a_running_prompt(
    warm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, late = ids(warm, INSTRUCTIONS + "long"), ids(warm, INSTRUCTIONS + "something else")
    expected = [alone(warm, long, new=60), alone(warm, late, new=5)]
    sampler = warm.sampler().result()
    steps, halfway, joined = [0], threading.Event(), threading.Event()
    real = TokenDecoder.step

    def step(self: Any, tokens: Any, positions: Any) -> Any:
        steps[0] += 1
        if steps[0] == 20:
            halfway.set()
            joined.wait(60)
        return real(self, tokens, positions)

    monkeypatch.setattr(TokenDecoder, "step", step)
    first = sampler.sample(long, 1, SamplingParams(60, seed=1, **FREE))
    assert halfway.wait(60)
    counted = Counted(warm)
    second = sampler.sample(late, 1, SamplingParams(5, seed=1, **FREE))
    joined.set()
    assert_alike(second.result(), expected[1])
    assert counted.read == len(ids(warm, "something else"))
    assert_alike(first.result(), expected[0])


def continued(prompt: list[int], answer: list[int], which: str) -> list[int]:
    text = [*prompt, *answer]
    other = [(token + 1) % 250 for token in answer]
    return {
        "the whole prompt again": prompt,
        "the prompt is the beginning of what is remembered": prompt[:-5],
        "all but one token are remembered": [*text[:-1], 7],
        "exactly what is remembered": text[:-1],
        "one token less than what is remembered": text[:-2],
        "longer than what is remembered": [*text, 5, 6, 7],
        "it diverges in the middle of the answer": [*prompt, *answer[:6], *other[6:], 9],
        "it diverges in the middle of the prompt": [*prompt[:30], *other, 9],
    }[which]


@pytest.mark.parametrize(
    ("which", "read"),
    [
        ("the whole prompt again", 0),
        ("the prompt is the beginning of what is remembered", 1),
        ("all but one token are remembered", 1),
        ("exactly what is remembered", 1),
        ("one token less than what is remembered", 1),
        ("longer than what is remembered", 4),
        ("it diverges in the middle of the answer", 7),
        ("it diverges in the middle of the prompt", 13),
    ],
)
def test_the_longest_known_beginning_is_used_and_the_rest_is_read(which: str, read: int, warm: Any) -> None:
    sampler = warm.sampler().result()
    prompt = ids(warm, INSTRUCTIONS)
    [answer] = ask(sampler, prompt)
    text = continued(prompt, answer.tokens, which)
    for attempt in range(2):  # what the first one has left behind serves the second
        counted = Counted(warm)
        assert_alike(ask(sampler, text, seed=9, samples=3), alone(warm, text, seed=9, samples=3))
        fresh = len(text)
        assert counted.read == (read if not attempt else 0) + fresh


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_same_call_again_gives_the_same_to_the_last_bit(device: str, make_client: MakeClient) -> None:
    """In bfloat16 too, where a token that is read in other company may have other logits."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    client = make_client(params={"device": device, "dtype": "bfloat16", "exact": False})
    train(client)
    sampler = client.sampler().result()
    texts = [ids(client, INSTRUCTIONS), ids(client, INSTRUCTIONS + " something"), ids(client, INSTRUCTIONS + "a")]
    samples = [ask(sampler, text, samples=4, new=30) for text in texts]
    counted = Counted(client)
    assert [ask(sampler, text, samples=4, new=30) for text in texts] == samples
    assert counted.read <= 1


@pytest.mark.parametrize("arch", ["llama", "qwen3", "mistral"])
def test_later_turns_on_a_gpu_have_the_logprobs_of_training(
    arch: str, tiny: Callable[[str], str], make_client: MakeClient
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    client = make_client(name=tiny(arch), params={"device": "cuda", "dtype": "bfloat16", "exact": False})
    train(client)
    sampler = client.sampler().result()
    texts = [ids(client, f"{INSTRUCTIONS}{'why ' * number}?") for number in range(5)]
    for turn in range(3):
        counted = Counted(client)
        pending = [sampler.sample(text, 3, SamplingParams(20, seed=turn, **FREE)) for text in texts]
        found = [operation.result() for operation in pending]
        if turn:
            assert counted.read <= 5 * 13
        for number, (text, samples) in enumerate(zip(texts, found, strict=True)):
            for sample in samples:
                datum = Datum.supervised([*text, *sample.tokens], [0.0] * len(text) + [1.0] * 20)
                [again] = client.forward([datum]).result().logprobs
                assert np.abs(again[-20:] - np.array(sample.logprobs)).mean() < 0.1
            texts[number] = [*text, *samples[0].tokens, *ids(client, f"turn {turn}, go on")[:12]]


def test_other_weights_share_nothing(warm: Any) -> None:
    prompt = ids(warm, INSTRUCTIONS)
    old = warm.sampler().result()
    before = ask(old, prompt)
    train(warm)
    new = warm.sampler().result()
    counted = Counted(warm)
    after = ask(new, prompt)
    assert counted.read == len(prompt)
    assert counted.reused == 0
    assert_alike(after, alone(warm, prompt))
    assert after[0].logprobs != before[0].logprobs
    assert_alike(ask(old, prompt), before)


def test_more_texts_than_room_forget_the_least_recently_used(make_client: MakeClient) -> None:
    client = make_client(params={"cached_tokens": 200})
    sampler = client.sampler().result()
    prompts = [ids(client, f"{number} {'x' * 40} {number}") for number in range(5)]
    ask(sampler, prompts[0])
    for prompt in prompts[1:]:
        ask(sampler, prompts[0])
        ask(sampler, prompt)
        assert remembered_tokens() <= 200
    counted = Counted(client)
    ask(sampler, prompts[0])
    ask(sampler, prompts[4])
    assert counted.read == 0, "both were used a moment ago"
    ask(sampler, prompts[1])
    assert counted.read == len(prompts[1]), "it was used longest ago"


def test_remembered_texts_give_way_to_those_that_run(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(params={"cached_tokens": 256, "samples_at_once": 4})
    sampler = client.sampler().result()
    prompts = [ids(client, f"{number} {'y' * 30}") for number in range(4)]
    for prompt in prompts:
        ask(sampler, prompt, new=2)
    assert remembered_tokens() > 100
    least: list[int] = []
    real = TokenDecoder.step

    def step(self: Any, tokens: Any, positions: Any) -> Any:
        least.append(remembered_tokens() + len(tokens) * (len(prompts[0]) + 30))
        return real(self, tokens, positions)

    monkeypatch.setattr(TokenDecoder, "step", step)
    pending = [sampler.sample(p, 1, SamplingParams(30, seed=1, **FREE)) for p in prompts]
    assert [len(operation.result()[0].tokens) for operation in pending] == [30] * 4
    assert max(least) <= 256


def test_texts_take_no_more_than_a_part_of_the_free_memory(warm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    token_bytes = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, width, float32
    monkeypatch.setattr(batch.memory, "available_bytes", lambda _: (100 - remembered_tokens()) * token_bytes)
    monkeypatch.setattr(batch, "_SHARE_OF_MEMORY", 1)
    sampler = warm.sampler().result()
    for number in range(10):
        ask(sampler, ids(warm, f"{number} {'z' * 40}"), new=4)
        assert 40 < remembered_tokens() <= 100


def test_running_out_of_memory_forgets_first_and_loses_nothing(warm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = warm.sampler().result()
    prompt = ids(warm, INSTRUCTIONS)
    [answer] = ask(sampler, prompt)
    prompt += [*answer.tokens, 1, 2, 3]
    expected = alone(warm, prompt, samples=4)
    widths: list[int] = []
    real = TokenDecoder.step

    def step(self: Any, tokens: Any, positions: Any) -> Any:
        widths.append(len(tokens))
        if len(widths) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory, on purpose")
        return real(self, tokens, positions)

    monkeypatch.setattr(TokenDecoder, "step", step)
    counted = Counted(warm)
    assert_alike(ask(sampler, prompt, samples=4), expected)
    assert widths[-1] == 4, "as many at once as before: what was remembered made room"
    assert counted.read > len(prompt), "read anew after it was forgotten"
    assert_alike(ask(sampler, prompt, samples=4), expected)


def test_a_fault_in_the_middle_leaves_nothing_half_read_behind(warm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = warm.sampler().result()
    prompt = ids(warm, INSTRUCTIONS)
    expected = ask(sampler, prompt)
    with monkeypatch.context() as patch:
        patch.setattr(decoding.StepLayout, "attend_tokens", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ask(sampler, prompt)
    assert_alike(ask(sampler, prompt), expected)


def test_a_new_sampler_at_every_step_does_not_pile_up_memory(make_client: MakeClient) -> None:
    client = make_client(params={"cached_tokens": 400})
    prompt = ids(client, INSTRUCTIONS)
    snapshots: list[weakref.ref[Any]] = []
    caches_before = len(list(living()))
    for _ in range(8):
        train(client, steps=1)
        sampler = client.sampler().result()
        ask(sampler, prompt, samples=3)
        snapshots.append(weakref.ref(sampler._snapshot))
        assert remembered_tokens() <= 400
    del sampler
    gc.collect()
    assert sum(snapshot() is not None for snapshot in snapshots) <= 2
    assert len(list(living())) <= caches_before + 2
    client.close()
    gc.collect()
    assert all(snapshot() is None for snapshot in snapshots)
    assert len(list(living())) == caches_before


def test_all_samplers_of_a_client_share_the_room_and_the_latest_goes_first(make_client: MakeClient) -> None:
    client = make_client(params={"cached_tokens": 100})
    old, new = client.sampler().result(), client.sampler().result()
    prompt = ids(client, INSTRUCTIONS)
    for sampler in (old, new):
        ask(sampler, prompt)
    new.logprobs(prompt).result()  # answered after everything before it is settled
    assert remembered_tokens() <= 100
    counted = Counted(client)
    ask(new, prompt)
    assert counted.read == 0
    ask(old, prompt)
    assert counted.read == len(prompt), "it gave way"


def living() -> Iterator[PrefixCache]:
    gc.collect()
    return (one for one in list(memory._evictable) if isinstance(one, PrefixCache))


def remembered_tokens() -> int:
    return sum(one.tokens for one in list(memory._evictable) if isinstance(one, PrefixCache))


class Tape(KeyValueCache):
    """A cache whose keys are the tokens themselves, to see what comes out of it."""

    def read(self, slot: int, text: Sequence[int], known: int = 0) -> None:
        for place in range(known, len(text)):
            column = torch.full((1, 1, 1), float(text[place]))
            keys, values = self.layer(0, column, column)
            keys[slot, :, place], values[slot, :, place] = text[place], -text[place]

    def content(self, slot: int, length: int) -> list[int]:
        keys, values = self.layers[0]
        assert torch.equal(keys[slot], -values[slot])
        return [int(token) for token in keys[slot, 0, :length, 0]]


def test_what_several_texts_begin_with_is_kept_once() -> None:
    tape, remembered = Tape(), PrefixCache()
    tape.reserve(1, 400)
    beginning = list(range(100, 200))
    for number in range(10):
        text = np.array([*beginning, *[number + 1] * 20])
        tape.read(0, text.tolist())
        remembered.keep(text, tape, 0)
    assert remembered.tokens == 100 + 10 * 20
    remembered.shrink(150)
    assert remembered.find(np.array(beginning)).length == 100, "the ends go first"


@pytest.mark.parametrize("arch", ["llama", "mistral"])
def test_prompts_with_known_beginnings_give_the_logits_of_plain_ones(
    arch: str, tiny: Callable[[str], str], make_client: MakeClient
) -> None:
    base = make_client(name=tiny(arch))._base
    rng = np.random.default_rng(3)
    for _ in range(6):
        stem = rng.integers(1, 250, 40).tolist()
        branch = [stem[: rng.integers(20, 40)] + rng.integers(1, 250, 25).tolist() for _ in range(3)]
        prompts = [branch[n % 3][: rng.integers(22, 60)] + rng.integers(1, 250, n + 1).tolist() for n in range(6)]
        known = [int(rng.integers(0, len(prompt))) if rng.random() < 0.7 else 0 for prompt in prompts]
        with torch.inference_mode():
            plain, knowing = TokenDecoder(base, {}), TokenDecoder(base, {})
            for decoder in (plain, knowing):
                decoder.cache.reserve(6, 128)
            expected = torch.cat([plain.prefill([p], [slot]) for slot, p in enumerate(prompts)])
            for slot, prompt in enumerate(prompts):
                if known[slot]:
                    knowing.prefill([prompt[: known[slot]]], [slot])
            before = knowing.tokens_read
            logits = knowing.prefill(prompts, range(6), known)
            assert knowing.tokens_read - before <= sum(map(len, prompts)) - sum(known)
            assert torch.allclose(logits, expected, atol=1e-4)
            steps = [d.step([3] * 6, [len(p) for p in prompts]) for d in (plain, knowing)]
            assert torch.allclose(steps[0], steps[1], atol=1e-4)


def test_rows_for_the_kernels_of_a_gpu_see_the_same_keys(
    tiny: Callable[[str], str], make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels themselves need a GPU; here plain attention takes their place."""

    def varlen(q: Any, k: Any, v: Any, index: Any, traits: attention.Traits) -> Any:
        queries, keys = index.queries.tolist(), index.keys.tolist()
        parts = []
        for (a, b), (c, d) in zip(itertools.pairwise(queries), itertools.pairwise(keys), strict=True):
            mask = attention._causal(b - a, d - c, traits.window, q.device)
            rows = [tensor.transpose(0, 1)[None] for tensor in (q[a:b], k[c:d], v[c:d])]
            parts.append(attention.masked_attention(*rows, mask, traits)[0].transpose(0, 1))
        return torch.cat(parts)

    monkeypatch.setattr(attention, "_varlen", lambda: varlen)
    monkeypatch.setattr(reading, "has_triton", lambda: False)
    base = make_client(name=tiny("mistral"))._base
    prompts = [[*range(40), 5, 6], [*range(40), 9], [*range(30), 8, 8], [1, 2, 3]]
    plain, rows = TokenDecoder(base, {}), TokenDecoder(base, {})
    for decoder in (plain, rows):
        decoder.cache.reserve(4, 64)
        decoder.prefill([prompts[0][:20], prompts[1][:20], prompts[2][:20]], [0, 1, 2])
    expected = plain.prefill(prompts, range(4), [20, 20, 20, 0])

    def attend(self: Any, query: Any, key: Any, value: Any, traits: Any) -> Any:
        self._cache.layer(traits.layer, key, value)
        return self.attend_rows(*(tensor.transpose(0, 1) for tensor in (query, key, value)), traits).transpose(0, 1)

    monkeypatch.setattr(decoding.PromptLayout, "attend", attend)
    assert torch.allclose(rows.prefill(prompts, range(4), [20, 20, 20, 0]), expected, atol=1e-4)
    assert torch.allclose(rows.step([1] * 4, [42, 41, 32, 3]), plain.step([1] * 4, [42, 41, 32, 3]), atol=1e-4)
