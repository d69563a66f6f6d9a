"""Frozen weights to sample from and score with; the types of prompts, examples and answers."""

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
"""One user message, a conversation, or tokens."""
type Example = Datum | SampledTurn | Sequence[Message] | Mapping[str, Any] | tuple[Prompt, str | Sequence[int]]
"""A training example: a datum, an answer, a conversation, a chat row, or a prompt with its completion."""


class SampleOptions(TypedDict, total=False):
    """Sampling options; all are optional."""

    max_tokens: int
    """Maximum answer length, by default 256; limited by the context length."""
    temperature: float
    top_k: int
    top_p: float
    stop: Sequence[str] | Sequence[int]
    """Stop sequences besides the end of a turn; an empty list stops only at `max_tokens`."""
    seed: int
    """The same seed gives the same answers; without one, every call differs."""
    top_logprobs: int
    """Number of most probable tokens to report per position, in `top`."""
    logit_bias: Mapping[int, float]
    """Token -> value added to its logit. Log-probabilities stay those of the model."""
    processors: Sequence[LogitsProcessor]
    """Functions of (tokens so far, next log-probabilities) that return changed log-probabilities, as NumPy arrays."""
    schema: Mapping[str, Any]
    """JSON schema of every answer; needs the extra `grammar`."""
    make_filter: Callable[[], TokenFilter]
    """Creates a custom filter for each answer."""


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
        """A training datum: with an advantage for policy losses, without one as a supervised target."""
        if advantage is not None:
            return Datum.policy(self.prompt_tokens, self.tokens, self.logprobs, advantage)
        weights = [0.0] * len(self.prompt_tokens) + [1.0] * len(self.tokens)
        return Datum.supervised([*self.prompt_tokens, *self.tokens], weights)


class FrozenModel:
    """Frozen weights to sample from and score with."""

    def __init__(
        self,
        sampler: Operation[SamplingClient] | None,
        renderer: Renderer | DataError,
        tokenizer: Any,
        capabilities: Capabilities,
    ) -> None:
        """`renderer` may be the error of its creation; token ids work without a renderer."""
        self._frozen = sampler
        self._renderer, self.tokenizer, self.capabilities = renderer, tokenizer, capabilities
        self.tokens_sampled = 0

    @property
    def renderer(self) -> Renderer:
        """Converts conversations to tokens and back, by the chat template."""
        if isinstance(self._renderer, DataError):
            raise DataError(f"{self._renderer} Or use token ids.")
        return self._renderer

    def sample(
        self, prompts: Sequence[Prompt], n: int = 1, **options: Unpack[SampleOptions]
    ) -> list[list[SampledTurn]]:
        """`n` answers to each prompt, all sampled together."""
        return self.sample_async(prompts, n, **options).result()

    def sample_async(
        self, prompts: Sequence[Prompt], n: int = 1, **options: Unpack[SampleOptions]
    ) -> Operation[list[list[SampledTurn]]]:
        """`sample` without waiting."""
        encoded = [self.encode(prompt) for prompt in _several(prompts, "prompts")]
        params = [self._params(len(prompt), index, options) for index, prompt in enumerate(encoded)]

        def start(sampler: SamplingClient) -> Operation[list[list[Sample]]]:
            return gather([sampler.sample(prompt, n, param) for prompt, param in zip(encoded, params, strict=True)])

        def finish(batches: list[list[Sample]]) -> list[list[SampledTurn]]:
            stops = [stop for stop in options.get("stop", ()) if isinstance(stop, str)]
            self.tokens_sampled += sum(len(sample.tokens) for samples in batches for sample in samples)
            return [
                [self._turn(prompt, tokens, sample, stops) for sample in samples]
                for prompt, tokens, samples in zip(prompts, encoded, batches, strict=True)
            ]

        return self._sampler().follow(start).then(finish)

    def logprobs(self, examples: Sequence[Example]) -> list[Floats]:
        """Log-probabilities of each example's completion, token by token."""
        return self.logprobs_async(examples).result()

    def logprobs_async(self, examples: Sequence[Example]) -> Operation[list[Floats]]:
        """`logprobs` without waiting."""
        data = self.datums(examples)

        def start(sampler: SamplingClient) -> Operation[list[Floats]]:
            return gather([sampler.logprobs(_whole(datum)) for datum in data])

        return (
            self._sampler()
            .follow(start)
            .then(lambda rows: [row[1:][datum.weights != 0] for row, datum in zip(rows, data, strict=True)])
        )

    def distil(
        self,
        examples: Sequence[Example],
        k: int = 20,
        *,
        logit_bias: Mapping[int, float] | None = None,
        processors: Sequence[LogitsProcessor] = (),
    ) -> list[Datum]:
        """Soft targets: this model's distribution, optionally with changed logits, at each completion position.

        The completion stays unchanged; the `k` most probable tokens at its positions become the targets, weighted by
        their probabilities. Train on them with any model of the same tokenizer.
        """
        data = self.datums(examples)
        tops = self.topk_logprobs_async(data, k, logit_bias=logit_bias, processors=processors).result()
        return [datum.soften(top.tokens, top.logprobs) for datum, top in zip(data, tops, strict=True)]

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
            .then(lambda tops: [TopLogprobs(top.tokens[1:], top.logprobs[1:]) for top in tops])
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt: texts and conversations by the chat template, tokens unchanged."""
        if isinstance(prompt, str):
            return self.renderer.prompt([{"role": "user", "content": prompt}])
        if _is_tokens(prompt):
            return [int(token) for token in cast("Sequence[int]", prompt)]
        return self.renderer.prompt(cast("Sequence[Message]", prompt))

    def token(self, text: str) -> int:
        """The single token of a text, e.g. for `logit_bias`; refuses texts of several tokens."""
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        if len(tokens) != 1:
            parts = [decode(self.tokenizer, [token]) for token in tokens]
            raise DataError(
                f"{show(text)} is {len(tokens)} tokens ({show(parts)}). Choose one of them, or use encode()."
            )
        return int(tokens[0])

    def datums(self, examples: Sequence[Example], supervise: Supervise = "all_assistant") -> list[Datum]:
        """Datums of any supported examples: see `Example`."""
        return [datum for example in _several(examples, "examples") for datum in self._datums(example, supervise)]

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
                    f"examples: {show(cast('Any', example))} is not an example. Give a flat list of answers, "
                    "pairs of prompt and completion, conversations, chat rows or datums."
                )
        limit = LengthLimit.of(None, "error", self.capabilities)
        return to_datums(
            render_chats(rows, client=cast("Any", self), renderer=self.renderer, supervise=supervise, limit=limit)
        )

    def _pair(self, prompt: Prompt, completion: str | Sequence[int]) -> list[Datum]:
        """The datums of a prompt with its completion; texts become turns of the chat template."""
        if isinstance(completion, str) and not _is_tokens(prompt):
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            row = {"messages": [*cast("Sequence[Message]", messages), {"role": "assistant", "content": completion}]}
            return self._datums(row, "last_assistant")
        text = isinstance(completion, str)
        tokens = self.tokenizer.encode(completion, add_special_tokens=False) if text else list(completion)
        return [SampledTurn({}, self.encode(prompt), tokens).datum()]

    def _sampler(self) -> Operation[SamplingClient]:
        assert self._frozen is not None
        return self._frozen

    def _params(self, length: int, index: int, options: SampleOptions) -> SamplingParams:
        params: dict[str, Any] = {**options}
        check_options("sample", params, SampleOptions)
        available = self.capabilities.context_length - length
        params["max_tokens"] = min(options.get("max_tokens", 256), max(1, available))
        params["stop"] = self._stop(options.get("stop"))
        if (seed := options.get("seed")) is not None:
            params["seed"] = stream_of(seed, index) >> 1  # seeds have 63 bits
        if (schema := params.pop("schema", None)) is not None:
            from ..inference.grammar import answer_grammar

            params["make_filter"] = answer_grammar(self.tokenizer, schema=schema, ends=self.renderer.stop)
        return SamplingParams(**params)

    def _stop(self, stop: Sequence[str] | Sequence[int] | None) -> Sequence[str] | Sequence[int]:
        end: Any = getattr(self.tokenizer, "eos_token_id", None)
        bare = [] if end is None else [int(end)]
        ends = bare if isinstance(self._renderer, DataError) else self._renderer.stop
        if not stop or isinstance(stop, str):
            return ends if stop is None else stop
        if all(isinstance(end, int) for end in [*stop, *ends]):
            return cast("list[int]", [*ends, *stop])
        # A backend accepts texts or tokens, not both.
        return [end if isinstance(end, str) else decode(self.tokenizer, [end]) for end in (*ends, *stop)]

    def _turn(self, prompt: Prompt, tokens: list[int], sample: Sample, stops: Sequence[str]) -> SampledTurn:
        if isinstance(self._renderer, DataError):
            message = {"role": "assistant", "content": decode(self.tokenizer, sample.tokens, skip_special_tokens=True)}
        else:
            message = self._renderer.parse(sample.tokens)
        text = text_of(message)
        cut = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
        message = {**message, "content": text[:cut]}
        question = decode(self.tokenizer, tokens) if _is_tokens(prompt) else prompt
        context = (
            [{"role": "user", "content": question}]
            if isinstance(question, str)
            else cast("Sequence[Message]", question)
        )
        return SampledTurn(
            message=message,
            messages=[*context, message],
            prompt_tokens=tokens,
            completion_tokens=sample.tokens,
            logprobs=sample.logprobs,
            stop_reason=sample.stop_reason,
            input_tokens=len(tokens),
            output_tokens=len(sample.tokens),
            text=text[:cut],
            top=sample.top,
        )


def check_options(call: str, options: Mapping[str, Any], known: type) -> None:
    """Refuse unknown options of a call, as type checkers do."""
    names = list(known.__annotations__)
    for unknown in options.keys() - set(names):
        hint = suggest({"lr": "learning_rate"}.get(unknown, unknown), names) or f"Options: {', '.join(names)}."
        raise BackendError(f"{call}() has no option {unknown!r}. {hint}")


def _several(value: Any, what: str) -> Sequence[Any]:
    """`value` if it is a list; a single text or mapping would be iterated by mistake."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise DataError(f"{what} must be a list (got {show(cast('Any', value))}). Write [...] around a single one.")
    return cast("Sequence[Any]", value)


def _is_tokens(prompt: Any) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and not isinstance(prompt[0], Mapping)


def _whole(datum: Datum) -> list[int]:
    """A datum's tokens with the last target, as a sequence to score."""
    if datum.target_tokens.ndim != 1:
        raise DataError(
            "this datum already has soft targets, so it has no single text to score. Give the answer instead."
        )
    return [*datum.tokens.tolist(), int(datum.target_tokens[-1])]
