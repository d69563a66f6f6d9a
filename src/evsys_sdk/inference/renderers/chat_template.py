"""Rendering with the tokenizer's own chat template: what nearly every instruction-tuned model ships.

A template writes text, and text does not say which tokens a sampler produced. So a conversation is cut where the
assistant starts to speak and after the mark that ends its turn, and each piece is tokenized by itself: a sampled
completion starts at a token boundary, whatever the text on both sides would merge to.

    ChatML:  <|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n | hello<|im_end|> | \\n
                                                          no loss       loss            no loss
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...data.types import Message
from ...errors import DataError
from ...log import get_logger
from ..control_tokens import ControlTokens, cut
from ..conversation import Supervise, find_supervised_turns, split_thinking, text_messages, without_empty_thinking
from ..renderer import Rendered, Tokenizer, decode

# What a tokenizer's chat template writes around an assistant turn, found by asking the template itself.
#
# Templates are programs; the only way to know their marks is to render a small conversation and look. `ChatFormat` is
# what was seen: where a turn starts, the mark that ends it, and what follows that mark before the next turn.
#
#     template = ChatTemplate(tokenizer)
#     format = ChatFormat.of(template)      # ChatML: close "<|im_end|>", trailer "\n"

_QUESTION: Message = {"role": "user", "content": "Which city?"}
_ANSWER = "Paris"


class ChatTemplate:
    """A tokenizer's chat template as a function; what it refuses becomes a `DataError`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Hugging Face tokenizers always have the method, and `chat_template` is None where there is nothing to apply.
        if not hasattr(tokenizer, "apply_chat_template") or getattr(tokenizer, "chat_template", "") is None:
            raise DataError(
                f"the tokenizer ({type(tokenizer).__name__}) has no chat template to render conversations with. "
                "Set model.renderer_name (needs the package tinker-cookbook), give the tokenizer a chat_template, or "
                "use the instruction-tuned variant of the model."
            )
        self.tokenizer = tokenizer
        self.eos: int | None = getattr(tokenizer, "eos_token_id", None)

    def __call__(self, messages: Sequence[Message], *, generate: bool = False) -> str:
        """The conversation as text; with `generate`, up to where the assistant starts to speak."""
        try:
            text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=generate)
        except (ImportError, DataError):
            raise
        except Exception as error:  # a template may raise anything; it is the data that it does not accept
            roles = ", ".join(message["role"] for message in messages) or "no messages"
            reason = str(error).rstrip(".") or type(error).__name__
            raise DataError(
                f"the chat template refuses a conversation of {roles}: {reason}. "
                "Change the messages to what the template accepts, or set model.renderer_name."
            ) from error
        return text

    def end_of_mark(self, text: str) -> int | None:
        """Where the first control token in a short `text` ends; None when there is none."""
        tokens = self.encode(text)
        at = next((at for at, token in enumerate(tokens, 1) if self.is_control(token)), None)
        # Decoding the token would do for most tokenizers, but not all of them give back the text they were given.
        ends = () if at is None else range(1, len(text) + 1)
        return next((end for end in ends if self.encode(text[:end]) == tokens[:at]), None)

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`, and no others."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def is_control(self, token: int) -> bool:
        """Whether a token marks structure (end of turn, end of text) and is not part of what is said."""
        if token == self.eos:
            return True
        return not decode(self.tokenizer, [token], skip_special_tokens=True) and bool(decode(self.tokenizer, [token]))


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The marks around an assistant turn."""

    header: str = ""
    """Start of the turn, where the template does not write it although a generation prompt is asked for."""
    indent: str = ""
    """Blanks between the generation prompt and the content, which the model samples."""
    close: str = ""
    """From the content to the end of the mark that ends the turn; empty when the template writes no mark."""
    trailer: str = ""
    """After that mark; context for later turns, never sampled."""
    prefill: str = ""
    """An opened thinking block at the end of the generation prompt: the model goes on from there."""
    stop_tokens: tuple[int, ...] = ()
    """Control tokens that end a turn."""
    stop_texts: tuple[str, ...] = ()
    """What to stop at where the mark is ordinary text and not a token of its own."""

    @classmethod
    def of(cls, template: ChatTemplate) -> ChatFormat:
        """The format of a template, seen in a conversation of one question and one answer."""
        end_of_text = () if template.eos is None else (template.eos,)
        try:
            prompt, asked = template([_QUESTION], generate=True), template([_QUESTION])
            told = template([_QUESTION, {"role": "assistant", "content": _ANSWER}])
        except DataError:  # the template wants another kind of conversation; real ones will show what it does
            return cls(stop_tokens=end_of_text)
        at = told.rfind(_ANSWER)
        if at < 0:
            return cls(stop_tokens=end_of_text)
        lead = told[len(prompt) : at] if told.startswith(prompt) else ""
        header = lead if prompt == asked and lead.strip() else ""
        after = told[at + len(_ANSWER) :]
        end = template.end_of_mark(after)
        close = after.rstrip() if end is None else after[:end]
        marks = () if end is None else template.encode(close)[-1:]
        return cls(
            header=header,
            indent=lead if lead.isspace() else "",
            close=close,
            trailer=after[len(close) :],
            prefill=_open_thinking(prompt.removeprefix(asked)),
            stop_tokens=(*marks, *(token for token in end_of_text if token not in marks)),
            # A mark of ordinary text is no token; stops are all texts or all tokens, so the end of text is one, too.
            stop_texts=(close.strip(), *(decode(template.tokenizer, [token]) for token in end_of_text))
            if close and end is None
            else (),
        )


def _open_thinking(generation_prompt: str) -> str:
    at = generation_prompt.rfind("<think>")
    return "" if at < 0 or "</think>" in generation_prompt[at:] else generation_prompt[at:]


_log = get_logger(__name__)

CHAT_TEMPLATE = "chat_template"

_CONTEXT = 64
"""Characters before a piece that can change its tokens: more than the longest control token has."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """One assistant turn: the text the model had before it, and what it said."""

    index: int
    before: str
    said: str
    """The completion with the mark that ends it."""
    add_eos: bool
    """The template writes no such mark, so the end-of-text token takes its place."""

    def stands_in(self, text: str) -> bool:
        """Whether `text` holds this turn exactly as it was sampled."""
        return not self.add_eos and text.startswith(self.before) and text.startswith(self.said, len(self.before))


class ChatTemplateRenderer:
    """Renders with `tokenizer.apply_chat_template`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.name = CHAT_TEMPLATE
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self._controls = ControlTokens(tokenizer)
        self._format = ChatFormat.of(self._template)
        # SentencePiece models of the older kind put a space before any text, also where it continues another.
        encode = self._template.encode
        self._adds_space = encode("\nx") != encode("\n") + encode("x")
        self.stop: list[str] | list[int] = list(self._format.stop_texts) or list(self._format.stop_tokens)
        if not self.stop:
            raise DataError(
                f"the chat template of the tokenizer ({type(tokenizer).__name__}) writes no mark after an assistant "
                "turn and there is no eos_token, so sampling would never stop. Set the tokenizer's eos_token, or "
                "model.renderer_name."
            )

    def render(self, messages: Sequence[Mapping[str, Any]], supervise: Supervise = "all_assistant") -> list[Rendered]:
        conversation = self._guard(messages)
        wanted = find_supervised_turns(conversation, supervise)
        turns = self._turns(conversation[: wanted[-1] + 1])
        last = turns[-1]
        supervised = [turn for turn in turns if turn.index in wanted]
        if all(turn.stands_in(last.before) for turn in supervised[:-1]):
            return [self._sequence(last, turns, set(wanted))]
        return [self._sequence(turn, turns, {turn.index}) for turn in supervised]

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        conversation = self._guard(messages)
        text = self._before(conversation)
        pieces = self._pieces(text, self._turns(conversation))
        return [token for encoded in self._encode_pieces(piece for piece, _ in pieces) for token in encoded]

    def parse(self, tokens: Sequence[int]) -> Message:
        marks = self._format
        end = next((at for at, token in enumerate(tokens) if token in marks.stop_tokens), len(tokens))
        text = decode(self._tokenizer, tokens[:end], skip_special_tokens=True)
        for mark in marks.stop_texts:
            text = text.partition(mark)[0]
        blank = marks.close[: len(marks.close) - len(marks.close.lstrip())]
        text = marks.prefill + text.removesuffix(blank).removeprefix(marks.indent)
        return {"role": "assistant", "content": without_empty_thinking(text)}

    def _sequence(self, last: _Turn, turns: Sequence[_Turn], supervised: Collection[int]) -> Rendered:
        """Everything up to and including the turn `last`, with loss on the supervised turns."""
        tokens: list[int] = []
        weights: list[float] = []
        earlier = [turn for turn in turns if turn.index < last.index]
        pieces = [*self._pieces(last.before, earlier), (last.said, last)]
        for (_, turn), encoded in zip(pieces, self._encode_pieces(piece for piece, _ in pieces), strict=True):
            tokens += encoded
            weights += [float(turn is not None and turn.index in supervised)] * len(encoded)
        if last.add_eos and self._template.eos is not None:
            tokens.append(self._template.eos)
            weights.append(1.0)
        if not any(weights):
            raise DataError(f"messages[{last.index}] renders to no token to learn. Fill its content or drop the turn.")
        return Rendered(tokens, weights)

    def _pieces(self, text: str, turns: Sequence[_Turn]) -> list[tuple[str, _Turn | None]]:
        """`text` cut at the turns it holds unchanged; a turn that the template rewrote stays in its neighbours."""
        pieces: list[tuple[str, _Turn | None]] = []
        done = 0
        for turn in turns:
            start = len(turn.before)
            if start >= done and turn.stands_in(text):
                pieces += [(text[done:start], None), (turn.said, turn)]
                done = start + len(turn.said)
        return [(piece, turn) for piece, turn in [*pieces, (text[done:], None)] if piece]

    def _guard(self, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
        """The conversation with everything guarded that would become structure."""
        conversation = text_messages(messages)
        for index, message in enumerate(conversation):
            # Only the mark: the text behind it is that of the end-of-text token, which can be guarded.
            for mark in self._format.stop_texts[:1]:
                if mark in message["content"]:  # ordinary text cannot be guarded from ordinary text
                    _log.warning("messages[%d] holds %r, by which this chat template ends a turn.", index, mark)
        return self._controls.guard(conversation)

    def _turns(self, messages: Sequence[Message]) -> list[_Turn]:
        return [self._turn(messages, index) for index, message in enumerate(messages) if message["role"] == "assistant"]

    def _turn(self, messages: Sequence[Message], index: int) -> _Turn:
        through = self._template(messages[: index + 1])
        if messages[index].get("tool_calls"):
            self._refuse_lost_calls(messages, index, through)
        try:
            before = self._before(messages[:index])
        except DataError:
            if index:
                raise
            before = self._cut_opening(messages, index, through)  # many templates want at least one message
        if through.startswith(before):
            return _Turn(index, before, *self._sampled_part(through[len(before) :]))
        # The template writes a turn otherwise than it asks for one. What is sampled follows the generation prompt.
        written = through[len(self._cut_opening(messages, index, through)) :]
        if self._format.prefill:
            thinking, written = split_thinking(written)
            message = messages[index]
            thinking = thinking or message.get("reasoning_content") or split_thinking(message["content"])[0]
            written = f"{thinking}\n</think>\n\n{written}"
        return _Turn(index, before, *self._sampled_part(written))

    def _refuse_lost_calls(self, messages: Sequence[Message], index: int, through: str) -> None:
        without = {key: value for key, value in messages[index].items() if key != "tool_calls"}
        if self._template([*messages[:index], without]) == through:
            raise DataError(
                f"messages[{index}] calls tools, and the chat template does not write tool_calls. "
                "Use a model whose template does, or write the calls into the content."
            )

    def _before(self, messages: Sequence[Message]) -> str:
        return self._template(messages, generate=True) + self._format.header

    def _cut_opening(self, messages: Sequence[Message], index: int, through: str) -> str:
        """`through` up to where the content of its last turn starts."""
        # Two answers with nothing in common: at least one of them differs from the real one from its first character.
        others = [self._template([*messages[:index], {"role": "assistant", "content": other}]) for other in ("A", "B")]
        return _common_start([through, *others])

    def _sampled_part(self, completion: str) -> tuple[str, bool]:
        """What is sampled of a completion as the template writes it, and whether it needs an end-of-text token."""
        marks = self._format
        if marks.close and completion.endswith(marks.close + marks.trailer):
            return completion.removesuffix(marks.trailer), False
        # A turn of another kind, such as a tool call, may end with a mark of its own.
        said = completion.rstrip()
        if (tokens := self._encode(said)) and self._template.is_control(tokens[-1]):
            return said, False
        return said if marks.close else completion.removesuffix(marks.trailer), True

    def _encode_pieces(self, pieces: Iterable[str]) -> Iterator[list[int]]:
        """The tokens of each piece of one text."""
        behind = ""
        for piece in pieces:
            yield self._encode(piece, behind)
            behind = piece[-_CONTEXT:]

    def _encode(self, text: str, behind: str = "") -> list[int]:
        tokens: list[int] = []
        for part in cut(text):
            tokens += self._encode_part(part, behind)
            behind = part[-_CONTEXT:]
        return tokens

    def _encode_part(self, text: str, behind: str) -> list[int]:
        # Behind what precedes it; behind something else where the text would merge with that.
        for context in (behind, "x", ".") if behind and self._adds_space else ():
            start, tokens = self._template.encode(context), self._template.encode(context + text)
            if tokens[: len(start)] == start:
                return tokens[len(start) :]
        return self._template.encode(text)


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)  # in alphabetical order; whatever is between them starts as both do
    end = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None)
    return first[:end]
