"""A tokenizer that needs no download: one token per UTF-8 byte, plus the control tokens of a ChatML-like template.

Token 0..255 is that byte; the control tokens follow. `decode(encode(text)) == text` for every text, and bytes that do
not form valid UTF-8 (a sample may end inside a character) decode to the replacement character.

    tokenizer = ByteTokenizer()
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    ids = tokenizer.encode(prompt)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from ...data import hermes
from ...errors import DataError, show

END_OF_TEXT: Final = 256
MESSAGE_START: Final = 257
MESSAGE_END: Final = 258
VOCABULARY: Final = 259

_CONTROL: Final = {"<|endoftext|>": END_OF_TEXT, "<|im_start|>": MESSAGE_START, "<|im_end|>": MESSAGE_END}
_CONTROL_TEXT: Final = {token: text.encode() for text, token in _CONTROL.items()}
_SPLIT: Final = re.compile("(" + "|".join(re.escape(text) for text in _CONTROL) + ")")


class ByteTokenizer:
    """Text <-> bytes, with the Hugging Face tokenizer methods that recipes use."""

    own_template_only: Final = True
    """Only this tokenizer's own chat template fits it."""
    vocab_size: Final = VOCABULARY
    eos_token: Final = "<|im_end|>"
    eos_token_id: Final = MESSAGE_END
    pad_token_id: Final = END_OF_TEXT
    all_special_ids: Final = (END_OF_TEXT, MESSAGE_START, MESSAGE_END)

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The tokens of `text`. `add_special_tokens` has no effect: there is no start token."""
        del add_special_tokens
        tokens: list[int] = []
        for part in _SPLIT.split(text):
            control = _CONTROL.get(part)
            tokens.extend(_utf8(part) if control is None else (control,))
        return tokens

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of `ids`; invalid UTF-8 becomes the replacement character."""
        buffer = bytearray()
        for token in ids:
            if 0 <= token < END_OF_TEXT:
                buffer.append(token)
            elif token not in _CONTROL_TEXT:
                raise DataError(
                    f"token {show(token)} is not in the vocabulary of {VOCABULARY} tokens (0..{VOCABULARY - 1})."
                )
            elif not skip_special_tokens:
                buffer += _CONTROL_TEXT[token]
        return buffer.decode("utf-8", errors="replace")

    def convert_tokens_to_ids(self, token: str) -> int:
        """The id of a control token or of a single-byte character."""
        ids = self.encode(token)
        if len(ids) != 1:
            raise DataError(f"{show(token)} is {len(ids)} tokens, not one. Use encode() for text.")
        return ids[0]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> str | list[int]:
        """The conversation as text or tokens, optionally with a generation prompt; tools in Hermes form."""
        conversation = hermes.add_tools([dict(message) for message in messages], tools or ())
        turns = [_turn(number, message) for number, message in enumerate(conversation)]
        text = "".join(turns) + ("<|im_start|>assistant\n" if add_generation_prompt else "")
        return self.encode(text) if tokenize else text


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"text has a lone surrogate {text[error.start]!r} at character {error.start} and is not valid Unicode. "
            "Remove it, or decode the source with errors='replace'."
        ) from None


def _turn(number: int, message: Mapping[str, Any]) -> str:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise DataError(f"message {number} has no role (got {show(role)}). Use system, user, assistant or tool.")
    text = hermes.write_calls({**message, "content": _text(number, message.get("content"))})
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _text(number: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    blocks = cast(Sequence[Any], content) if isinstance(content, Sequence) else ()
    if blocks and all(isinstance(block, Mapping) and "text" in block for block in blocks):
        return "".join(str(block["text"]) for block in blocks)
    raise DataError(
        f"message {number} has content the mock tokenizer cannot render (got {show(cast(object, content))}). "
        "It takes a string or text blocks; images need a backend whose capabilities include vision."
    )
