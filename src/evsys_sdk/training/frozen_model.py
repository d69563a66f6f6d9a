"""Weights that do not change, to sample from and to score with; and what a prompt, an example and an answer are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from ..backends.client import SamplingParams, TopLogprobs
from ..backends.datum import Datum
from ..backends.future import Operation, gather
from ..backends.seeds import stream_of
from ..data import TargetFormat, parse_rows
from ..errors import BackendError, DataError, show, suggest
from ..inference.renderer import Renderer, Supervise, decode
from ..rollouts.rollout import Message, Turn, text_of
from .examples import LengthLimit, render_chats, to_datums

if TYPE_CHECKING:
    from ..backends.client import Capabilities, LogitsProcessor, Sample, SamplingClient, TokenFilter
    from ..backends.datum import Floats

type Prompt = str | Sequence[Message] | Sequence[int]
"""One user message, a conversation, or tokens as they are."""
type Example = Datum | SampledTurn | Sequence[Message] | Mapping[str, Any] | tuple[Prompt, str | Sequence[int]]
"""Something to train on: a datum, an answer, a conversation, a chat row, or a prompt with its completion."""


class SampleOptions(TypedDict, total=False):
    """How to sample; every one may be left out."""

    max_tokens: int
    """Longest answer, 256 unless given; less where the context is full before."""
    temperature: float
    top_k: int
    top_p: float
    stop: Sequence[str] | Sequence[int]
    """Ends an answer, next to the end of a turn; an empty list ends it at `max_tokens` only."""
    seed: int
    """The same seed gives the same answers; without one, the model counts on from its own."""
    top_logprobs: int
    """Report so many of the most probable tokens at each position, in `top`."""
    logit_bias: Mapping[int, float]
    """Token -> added to its logit. Log-probabilities stay those of the model."""
    processors: Sequence[LogitsProcessor]
    """Functions of (tokens so far, log-probabilities of the next) that return changed ones, as NumPy arrays."""
    schema: Mapping[str, Any]
    """JSON schema that every answer keeps; needs the extra `grammar`."""
    make_filter: Callable[[], TokenFilter]
    """Makes your own filter for each answer."""


@dataclass(frozen=True, slots=True)
class SampledTurn(Turn):
    """One answer of a model, with its tokens."""

    text: str = ""
    top: TopLogprobs | None = None
    messages: list[Message] = field(default_factory=list[Message])
    """The conversation with this answer."""

    @property
    def tokens(self) -> list[int]:
        """The sampled tokens."""
        return self.completion_tokens

    def datum(self, advantage: float | Sequence[float] | None = None) -> Datum:
        """To train on: with an advantage for policy losses, without one towards the answer itself."""
        if advantage is not None:
            return Datum.policy(self.prompt_tokens, self.tokens, self.logprobs, advantage)
        weights = [0.0] * len(self.prompt_tokens) + [1.0] * len(self.tokens)
        return Datum.supervised([*self.prompt_tokens, *self.tokens], weights)


class FrozenModel:
    """Weights that do not change: sample from them and score with them."""

    def __init__(
        self,
        sampler: Operation[SamplingClient] | None,
        renderer: Renderer | DataError,
        tokenizer: Any,
        capabilities: Capabilities,
    ) -> None:
        """In place of a renderer: why there is none. Tokens can be read and written without it."""
        self._frozen = sampler
        self._renderer, self.tokenizer, self.capabilities = renderer, tokenizer, capabilities
        self.tokens_sampled = 0

    @property
    def renderer(self) -> Renderer:
        """Turns conversations into tokens and back, by the chat template."""
        if isinstance(self._renderer, DataError):
            raise DataError(f"{self._renderer} Or give token ids.")
        return self._renderer

    def sample(
        self, prompts: Sequence[Prompt], n: int = 1, **options: Unpack[SampleOptions]
    ) -> list[list[SampledTurn]]:
        """`n` answers to each prompt, all sampled together."""
        return self.sample_async(prompts, n, **options).result()

    def sample_async(
        self, prompts: Sequence[Prompt], n: int = 1, **options: Unpack[SampleOptions]
    ) -> Operation[list[list[SampledTurn]]]:
        """The same, submitted only."""
        asked = [self.encode(prompt) for prompt in _several(prompts, "prompts")]
        params = [self._params(len(prompt), index, options) for index, prompt in enumerate(asked)]

        def start(sampler: SamplingClient) -> Operation[list[list[Sample]]]:
            return gather([sampler.sample(prompt, n, one) for prompt, one in zip(asked, params, strict=True)])

        def finish(found: list[list[Sample]]) -> list[list[SampledTurn]]:
            stops = [stop for stop in options.get("stop", ()) if isinstance(stop, str)]
            self.tokens_sampled += sum(len(sample.tokens) for samples in found for sample in samples)
            return [
                [self._turn(prompt, tokens, sample, stops) for sample in samples]
                for prompt, tokens, samples in zip(prompts, asked, found, strict=True)
            ]

        return self._sampler().follow(start).then(finish)

    def logprobs(self, examples: Sequence[Example]) -> list[Floats]:
        """Log-probabilities of each example's completion, token by token."""
        return self.logprobs_async(examples).result()

    def logprobs_async(self, examples: Sequence[Example]) -> Operation[list[Floats]]:
        """The same, submitted only."""
        data = self.datums(examples)

        def start(sampler: SamplingClient) -> Operation[list[Floats]]:
            return gather([sampler.logprobs(_whole(datum)) for datum in data])

        return (
            self._sampler()
            .follow(start)
            .then(lambda found: [row[1:][datum.weights != 0] for row, datum in zip(found, data, strict=True)])
        )

    def distil(
        self,
        examples: Sequence[Example],
        k: int = 20,
        *,
        logit_bias: Mapping[int, float] | None = None,
        processors: Sequence[LogitsProcessor] = (),
    ) -> list[Datum]:
        """Soft targets: what this model, with changed logits if you like, would say at each completed position.

        Each example's completion is read as it is; the `k` most probable tokens at its positions become the targets,
        with their probabilities as weights. Train on them with any model of the same tokenizer.
        """
        data = self.datums(examples)
        found = self.topk_logprobs_async(data, k, logit_bias=logit_bias, processors=processors).result()
        return [datum.soften(top.tokens, top.logprobs) for datum, top in zip(data, found, strict=True)]

    def topk_logprobs_async(
        self,
        data: Sequence[Datum],
        k: int,
        *,
        logit_bias: Mapping[int, float] | None = None,
        processors: Sequence[LogitsProcessor] = (),
    ) -> Operation[list[TopLogprobs]]:
        """The `k` most probable tokens for the target of each position."""

        def start(sampler: SamplingClient) -> Operation[list[TopLogprobs]]:
            return gather([sampler.topk_logprobs(_whole(datum), k, logit_bias, processors) for datum in data])

        return (
            self._sampler()
            .follow(start)
            .then(lambda found: [TopLogprobs(top.tokens[1:], top.logprobs[1:]) for top in found])
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt: of a text or a conversation by the chat template, of tokens themselves."""
        if isinstance(prompt, str):
            return self.renderer.prompt([{"role": "user", "content": prompt}])
        if _is_tokens(prompt):
            return [int(token) for token in cast("Sequence[int]", prompt)]
        return self.renderer.prompt(cast("Sequence[Message]", prompt))

    def token(self, text: str) -> int:
        """The one token of a text, e.g. for `logit_bias`; refuses text of several tokens."""
        found = self.tokenizer.encode(text, add_special_tokens=False)
        if len(found) != 1:
            parts = [decode(self.tokenizer, [one]) for one in found]
            raise DataError(f"{show(text)} is {len(found)} tokens ({show(parts)}). Name one of them, or use encode().")
        return int(found[0])

    def datums(self, examples: Sequence[Example], supervise: Supervise = "all_assistant") -> list[Datum]:
        """What is trained on, from anything that can be: see `Example`."""
        return [datum for one in _several(examples, "examples") for datum in self._datums(one, supervise)]

    def _datums(self, example: Example, supervise: Supervise) -> list[Datum]:
        match example:
            case Datum():
                return [example]
            case SampledTurn():
                return [example.datum()]
            case Mapping():
                rows = parse_rows([dict(example)], TargetFormat.CHAT_MESSAGES)
            case [Mapping(), *_]:
                rows = parse_rows([{"messages": list(example)}], TargetFormat.CHAT_MESSAGES)
            case tuple() if len(example) == 2:
                return self._pair(*cast("tuple[Any, Any]", example))
            case _:
                raise DataError(
                    f"examples: {show(cast('Any', example))} is none. Give answers, pairs of prompt and completion, "
                    "conversations, chat rows or datums, each by itself and not in groups."
                )
        limit = LengthLimit.of(None, "error", self.capabilities)
        return to_datums(
            render_chats(rows, client=cast("Any", self), renderer=self.renderer, supervise=supervise, limit=limit)
        )

    def _pair(self, prompt: Prompt, completion: str | Sequence[int]) -> list[Datum]:
        """A prompt with its completion; of a text, the turn that the chat template makes of it."""
        if isinstance(completion, str) and not _is_tokens(prompt):
            asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            row = {"messages": [*cast("Sequence[Message]", asked), {"role": "assistant", "content": completion}]}
            return self._datums(row, "last_assistant")
        text = isinstance(completion, str)
        tokens = self.tokenizer.encode(completion, add_special_tokens=False) if text else list(completion)
        return [SampledTurn({}, self.encode(prompt), tokens).datum()]

    def _sampler(self) -> Operation[SamplingClient]:
        assert self._frozen is not None
        return self._frozen

    def _params(self, length: int, index: int, options: SampleOptions) -> SamplingParams:
        given: dict[str, Any] = {**options}
        check_options("sample", given, SampleOptions)
        room = self.capabilities.context_length - length
        given["max_tokens"] = min(options.get("max_tokens", 256), max(1, room))
        given["stop"] = self._stop(options.get("stop"))
        if (seed := options.get("seed")) is not None:
            given["seed"] = stream_of(seed, index) >> 1  # a seed has 63 bits
        if (schema := given.pop("schema", None)) is not None:
            from ..inference.grammar import answer_grammar

            given["make_filter"] = answer_grammar(self.tokenizer, schema=schema, ends=self.renderer.stop)
        return SamplingParams(**given)

    def _stop(self, stop: Sequence[str] | Sequence[int] | None) -> Sequence[str] | Sequence[int]:
        end: Any = getattr(self.tokenizer, "eos_token_id", None)
        bare = [] if end is None else [int(end)]
        ends = bare if isinstance(self._renderer, DataError) else self._renderer.stop
        if not stop or isinstance(stop, str):
            return ends if stop is None else stop
        if all(isinstance(one, int) for one in [*stop, *ends]):
            return cast("list[int]", [*ends, *stop])
        # A backend stops at texts or at tokens, not at both.
        return [one if isinstance(one, str) else decode(self.tokenizer, [one]) for one in (*ends, *stop)]

    def _turn(self, prompt: Prompt, tokens: list[int], sample: Sample, stops: Sequence[str]) -> SampledTurn:
        if isinstance(self._renderer, DataError):
            message = {"role": "assistant", "content": decode(self.tokenizer, sample.tokens, skip_special_tokens=True)}
        else:
            message = self._renderer.parse(sample.tokens)
        text = text_of(message)
        cut = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
        message = {**message, "content": text[:cut]}
        asked = decode(self.tokenizer, tokens) if _is_tokens(prompt) else prompt
        before = [{"role": "user", "content": asked}] if isinstance(asked, str) else cast("Sequence[Message]", asked)
        return SampledTurn(
            message=message,
            messages=[*before, message],
            prompt_tokens=tokens,
            completion_tokens=sample.tokens,
            logprobs=sample.logprobs,
            stop_reason=sample.stop_reason,
            input_tokens=len(tokens),
            output_tokens=len(sample.tokens),
            text=text[:cut],
            top=sample.top,
        )


def check_options(call: str, given: Mapping[str, Any], known: type) -> None:
    """Refuse options that a call does not have; type checkers do the same."""
    names = list(known.__annotations__)
    for unknown in given.keys() - set(names):
        hint = suggest({"lr": "learning_rate"}.get(unknown, unknown), names) or f"It takes {', '.join(names)}."
        raise BackendError(f"{call}() takes no {unknown!r}. {hint}")


def _several(given: Any, what: str) -> Sequence[Any]:
    """A sequence of several; one alone would be taken for its parts."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise DataError(f"{what} must be a list of several (got {show(cast('Any', given))}). Write [it] for one.")
    return cast("Sequence[Any]", given)


def _is_tokens(prompt: Any) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and not isinstance(prompt[0], Mapping)


def _whole(datum: Datum) -> list[int]:
    """A datum's tokens with the last target, which a sequence to score ends with."""
    if datum.target_tokens.ndim != 1:
        raise DataError("this datum has soft targets already, and no one text to score. Give the answer itself.")
    return [*datum.tokens.tolist(), int(datum.target_tokens[-1])]
