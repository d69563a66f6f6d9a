"""Rendering with the tokenizer's own chat template, which most instruction-tuned models ship.

A template writes text, which does not determine the sampled tokens. So a conversation is split before and after each
assistant turn, and each piece is tokenized separately: a sampled completion starts at a token boundary, even where the
joined text would tokenize differently.

    ChatML:  <|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n | hello<|im_end|> | \\n
                                                          no loss       loss            no loss
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ...data import hermes
from ...data.types import Message, ToolDefinition
from ...errors import DataError
from ...log import get_logger
from ..chat_format import MARK, ChatFormat, ChatTemplate
from ..control_tokens import ControlTokens, cut
from ..conversation import Supervise, find_supervised_turns, split_thinking, without_empty_thinking
from ..renderer import Extension, Rendered, Renderer, Tokenizer, decode
from ..tool_parsers import PARSERS, ToolParser, parse_message

_log = get_logger(__name__)

CHAT_TEMPLATE = "chat_template"
WITH_HERMES = "chat_template+hermes"
"""The chat template with tools listed in Hermes form, for templates without tools."""

_CONTEXT = 64
"""Characters of context that can change the tokens of a piece: more than the longest control token."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """One assistant turn: the text before it and its completion."""

    index: int
    before: str
    completion: str
    """With the mark that ends it."""
    add_eos: bool
    """Whether to append the end-of-text token, because the template writes no mark."""

    def occurs_in(self, text: str) -> bool:
        """Whether `text` contains this turn exactly as it was sampled."""
        return not self.add_eos and text.startswith(self.before) and text.startswith(self.completion, len(self.before))


@dataclass(frozen=True, slots=True)
class _Conversation:
    """A conversation as the template reads it."""

    template: ChatTemplate
    format: ChatFormat
    messages: list[Message]
    tools: list[ToolDefinition]

    def before(self, end: int) -> str:
        """The text of the first messages with the generation prompt."""
        return self.template(self.messages[:end], generate=True, tools=self.tools) + self.format.header

    def turns(self, end: int) -> list[_Turn]:
        """The assistant turns among the first messages."""
        return [self._turn(index) for index in range(end) if self.messages[index]["role"] == "assistant"]

    def extension(self, start: int) -> tuple[str, str, bool] | None:
        """The answer before `start`, the text after it, and whether the template keeps everything else."""
        turn, whole = self._turn(start - 1), self.before(len(self.messages))
        if turn.occurs_in(whole):
            return turn.completion, whole[len(turn.before) + len(turn.completion) :], True
        # The template rewrites history. Locate the text after the turn with a placeholder answer.
        marked = replace(self, messages=list(self.messages))
        marked.messages[start - 1] = {**self.messages[start - 1], "content": MARK}
        answer = self._write(marked.messages[:start]).rpartition(MARK)
        following = marked.before(len(self.messages)).rpartition(MARK)
        completion, _ = self._sampled_part(answer[2])
        if not answer[1] or not following[1] or not following[2].startswith(completion):
            return None
        return completion, following[2][len(completion) :], False

    def _write(self, messages: Sequence[Message]) -> str:
        return self.template(messages, tools=self.tools)

    def _turn(self, index: int) -> _Turn:
        message = self.messages[index]
        through = self._write(self.messages[: index + 1])
        if message.get("tool_calls"):
            self._refuse_lost_calls(index, through)
        try:
            before = self.before(index)
        except DataError:
            if index:
                raise
            before = self._cut_opening(index, through)  # many templates want at least one message
        if through.startswith(before):
            return _Turn(index, before, *self._sampled_part(through[len(before) :]))
        # The template writes a turn differently from its generation prompt, which precedes the sampled text.
        written = through[len(self._cut_opening(index, through)) :]
        if self.format.prefill:
            thinking, written = split_thinking(written)
            thinking = thinking or message.get("reasoning_content") or split_thinking(message["content"] or "")[0]
            written = f"{thinking}\n</think>\n\n{written}"
        return _Turn(index, before, *self._sampled_part(written))

    def _refuse_lost_calls(self, index: int, through: str) -> None:
        without = {**self.messages[index], "content": self.messages[index]["content"] or ""}
        del without["tool_calls"]
        if self._write([*self.messages[:index], without]) == through:
            raise DataError(
                f"messages[{index}] has tool_calls, which the chat template does not write. "
                f"Use a model whose template does, or set model.renderer_name to {WITH_HERMES}."
            )

    def _cut_opening(self, index: int, through: str) -> str:
        """`through` up to the start of its last turn's content."""
        # Of two answers with different first characters, at least one differs from the real answer.
        before = self.messages[:index]
        others = [self._write([*before, {"role": "assistant", "content": other}]) for other in ("A", "B")]
        return _common_start([through, *others])

    def _sampled_part(self, completion: str) -> tuple[str, bool]:
        """The sampled part of a completion, and whether it needs an end-of-text token."""
        marks = self.format
        if marks.close and completion.endswith(marks.close + marks.trailer):
            return completion.removesuffix(marks.trailer), False
        # Another kind of turn, such as a tool call, may have its own end mark.
        stripped = completion.rstrip()
        if (tokens := self.template.encode(cut(stripped)[-1])) and self.template.is_control(tokens[-1]):
            return stripped, False
        return stripped if marks.close else completion.removesuffix(marks.trailer), True


class ChatTemplateRenderer(Renderer):
    """Renders with `tokenizer.apply_chat_template`; `own_tools` writes tools into the messages first."""

    def __init__(self, tokenizer: Tokenizer, *, own_tools: bool = False) -> None:
        self.name = WITH_HERMES if own_tools else CHAT_TEMPLATE
        self._own_tools = own_tools
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self._controls = ControlTokens(tokenizer)
        self._format = ChatFormat.of(self._template)
        # Older SentencePiece models prepend a space to every encoded text, even a continuation.
        encode = self._template.encode
        self._adds_space = encode("\nx") != encode("\n") + encode("x")
        self.stop: list[str] | list[int] = list(self._format.stop_texts) or list(self._format.stop_tokens)
        if not self.stop:
            raise DataError(
                f"the chat template of the tokenizer ({type(tokenizer).__name__}) writes no mark after an assistant "
                "turn and there is no eos_token, so sampling would never stop. Set the tokenizer's eos_token, or "
                "model.renderer_name."
            )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        supervise: Supervise = "all_assistant",
        tools: Sequence[ToolDefinition] = (),
    ) -> list[Rendered]:
        if tools and not self._own_tools and not self._template.shows_tools:
            raise DataError(
                f"the chat template of this model does not write tools, but {len(tools)} are given. Use a model whose "
                f"template does, set model.renderer_name to {WITH_HERMES} to list them in the system message, or "
                "remove the tools."
            )
        conversation = self._read(messages, tools)
        supervised_turns = find_supervised_turns(conversation.messages, supervise)
        turns = conversation.turns(supervised_turns[-1] + 1)
        last = turns[-1]
        supervised = [turn for turn in turns if turn.index in supervised_turns]
        if all(turn.occurs_in(last.before) for turn in supervised[:-1]):
            return [self._sequence(last, turns, set(supervised_turns))]
        return [self._sequence(turn, turns, {turn.index}) for turn in supervised]

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolDefinition] = ()) -> list[int]:
        conversation = self._read(messages, tools)
        size = len(conversation.messages)
        pieces = self._pieces(conversation.before(size), conversation.turns(size))
        return [token for encoded in self._encode_pieces(piece for piece, _ in pieces) for token in encoded]

    @property
    def shows_tools(self) -> bool:
        """Whether the template writes tools into the prompt."""
        return self._template.shows_tools

    @property
    def tool_parser(self) -> str | None:
        parser = self._parser()
        return None if parser is None else parser.name

    def extend(
        self,
        messages: Sequence[Mapping[str, Any]],
        start: int,
        sampled: Sequence[int],
        tools: Sequence[ToolDefinition] = (),
    ) -> Extension | None:
        # In Hermes form, the system message with the tools is an additional one.
        conversation = self._read(messages, tools)
        extension = conversation.extension(start + len(conversation.messages) - len(messages))
        if extension is None:
            return None
        completion, suffix, as_template = extension
        marks = self._format
        end = "" if self._is_closed(sampled) else marks.close
        tokens = self._encode(end + suffix, (completion if not end else "x")[-_CONTEXT:])
        return Extension(tokens, as_template)

    def _is_closed(self, sampled: Sequence[int]) -> bool:
        """Whether sampled tokens end with the mark that ends a turn."""
        marks = self._format
        if marks.stop_texts:
            text = decode(self.tokenizer, sampled).rstrip()
            return any(text.endswith(mark) for mark in marks.stop_texts)
        return bool(sampled) and self._template.is_control(sampled[-1])

    def _parser(self) -> ToolParser | None:
        listed = self._own_tools or not self._template.shows_tools
        return PARSERS["hermes"] if listed else self._template.tool_parser

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolDefinition] = ()) -> Message:
        parser = self._parser() if tools else None
        text = self._decode_answer(tokens, keep_marks=parser is not None)
        if parser is not None:
            # Keep control tokens, which mark calls in some formats.
            message = parse_message(text, parser, tools, salt=str(len(tokens)))
            if "tool_calls" in message:
                return message

            text = self._decode_answer(tokens)
        return {"role": "assistant", "content": without_empty_thinking(text)}

    def _decode_answer(self, tokens: Sequence[int], *, keep_marks: bool = False) -> str:
        """The text of an answer; `keep_marks` keeps the control tokens inside it."""
        marks = self._format
        end = next((at for at, token in enumerate(tokens) if token in marks.stop_tokens), len(tokens))
        text = decode(self.tokenizer, tokens[:end], skip_special_tokens=not keep_marks)
        for mark in marks.stop_texts:
            text = text.partition(mark)[0]
        blank = marks.close[: len(marks.close) - len(marks.close.lstrip())]
        return marks.prefill + text.removesuffix(blank).removeprefix(marks.indent)

    def _sequence(self, last: _Turn, turns: Sequence[_Turn], supervised: Collection[int]) -> Rendered:
        """The sequence up to the turn `last`, with loss on the supervised turns."""
        tokens: list[int] = []
        weights: list[float] = []
        earlier = [turn for turn in turns if turn.index < last.index]
        pieces = [*self._pieces(last.before, earlier), (last.completion, last)]
        for (_, turn), encoded in zip(pieces, self._encode_pieces(piece for piece, _ in pieces), strict=True):
            tokens += encoded
            weights += [float(turn is not None and turn.index in supervised)] * len(encoded)
        if last.add_eos and self._template.eos is not None:
            tokens.append(self._template.eos)
            weights.append(1.0)
        if not any(weights):
            raise DataError(f"messages[{last.index}] renders to no trainable token. Fill its content or drop the turn.")
        return Rendered(tokens, weights)

    def _pieces(self, text: str, turns: Sequence[_Turn]) -> list[tuple[str, _Turn | None]]:
        """Split `text` at the turns that it contains unchanged; a rewritten turn stays part of its neighbours."""
        pieces: list[tuple[str, _Turn | None]] = []
        done = 0
        for turn in turns:
            start = len(turn.before)
            if start >= done and turn.occurs_in(text):
                pieces += [(text[done:start], None), (turn.completion, turn)]
                done = start + len(turn.completion)
        return [(piece, turn) for piece, turn in [*pieces, (text[done:], None)] if piece]

    def _read(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolDefinition]) -> _Conversation:
        """The conversation with all control tokens guarded."""
        conversation = self._read_texts(messages)
        if self._own_tools or (tools and not self._template.shows_tools):
            if not self._own_tools:
                _warn_listed()
            conversation, tools = hermes.as_plain_text(conversation, tools), ()
        for index, message in enumerate(conversation):
            # Only the first one: the second is the end-of-text token, which can be guarded.
            for mark in self._format.stop_texts[:1]:
                if mark in message["content"]:  # a textual mark cannot be guarded
                    _log.warning("messages[%d] contains %r, which ends a turn in this chat template.", index, mark)
        guarded = [self._template.form(message) for message in self._controls.guard(conversation)]
        self._template.refuse_dropped(guarded)
        return _Conversation(self._template, self._format, guarded, self._controls.guard_tools(tools))

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
        # Encode after the preceding text, or after another text if the boundary would merge.
        for context in (behind, "x", ".") if behind and self._adds_space else ():
            start, tokens = self._template.encode(context), self._template.encode(context + text)
            if tokens[: len(start)] == start:
                return tokens[len(start) :]
        return self._template.encode(text)


@cache
def _warn_listed() -> None:
    """Warn once that tools are listed in Hermes form."""
    _log.warning(
        "the chat template of this model does not write tools; they are listed in the system message in Hermes form. "
        "Set model.renderer_name to %s to train on rows with tools in the same form.",
        WITH_HERMES,
    )


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)  # all texts sort between these, so they share the common prefix
    end = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None)
    return first[:end]
