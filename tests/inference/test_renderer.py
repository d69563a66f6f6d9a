from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from evsys_sdk.backends.mock.tokenizer import ByteTokenizer
from evsys_sdk.errors import DataError
from evsys_sdk.inference import Rendered, Renderer, get_renderer, preview
from evsys_sdk.inference.renderers.cookbook import warn_not_installed

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "Again."},
    {"role": "assistant", "content": ""},
]


class AnyTokenizer(ByteTokenizer):
    """A tokenizer that a named renderer could be used with."""

    own_template_only = False


class BoundTokenizer(ByteTokenizer):
    own_template_only = True


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Log lines of the SDK, also when an earlier test sent them to stderr."""
    monkeypatch.setattr(logging.getLogger("evsys_sdk"), "propagate", True)
    caplog.set_level("INFO", logger="evsys_sdk")
    warn_not_installed.cache_clear()
    return caplog


@pytest.fixture
def _no_cookbook(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tinker_cookbook", "tinker_cookbook.renderers"):
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize("name", [None, "", "chat_template"])
def test_without_a_name_the_tokenizers_own_template_is_used(name: str | None, log: pytest.LogCaptureFixture) -> None:
    renderer = get_renderer(AnyTokenizer(), name)
    assert isinstance(renderer, Renderer)
    assert renderer.name == "chat_template"
    assert log.records == []


@pytest.mark.usefixtures("_no_cookbook")
def test_a_named_renderer_without_the_package_is_replaced_with_one_warning(log: pytest.LogCaptureFixture) -> None:
    names = [get_renderer(AnyTokenizer(), "qwen3").name for _ in range(3)]
    assert names == ["chat_template"] * 3
    assert [record.levelname for record in log.records] == ["WARNING"]
    assert "'qwen3' needs the package tinker-cookbook" in log.text
    assert "pip install tinker-cookbook" in log.text


def test_a_tokenizer_bound_to_its_template_ignores_the_name(log: pytest.LogCaptureFixture) -> None:
    assert get_renderer(BoundTokenizer(), "qwen3").name == "chat_template"
    assert [record.levelname for record in log.records] == ["INFO"]
    assert "'qwen3' is ignored" in log.text


def test_a_tokenizer_without_template_is_refused_with_the_remedy() -> None:
    class HuggingFaceLike(ByteTokenizer):
        chat_template = None

    with pytest.raises(DataError, match=r"HuggingFaceLike\) has no chat template.*model\.renderer_name.*chat_template"):
        get_renderer(HuggingFaceLike())
    with pytest.raises(DataError, match="has no chat template"):
        get_renderer(object())  # pyright: ignore[reportArgumentType]


def test_tokens_and_weights_must_have_one_length() -> None:
    with pytest.raises(DataError, match="2 tokens, but 1 weights"):
        Rendered([1, 2], [0.0])


def test_the_preview_shows_what_is_trained_on() -> None:
    tokenizer = ByteTokenizer()
    (rendered,) = get_renderer(tokenizer).render(CONVERSATION)
    assert preview(rendered, tokenizer).splitlines() == [
        f"{len(rendered.tokens)} tokens, 3 with loss (lines marked +)",
        "| <|im_start|>system↵",
        "| Be brief.<|im_end|>↵",
        "| <|im_start|>user↵",
        "| 2+2?<|im_end|>↵",
        "| <|im_start|>assistant↵",
        "+ 4<|im_end|>",
        "| ↵",
        "| <|im_start|>user↵",
        "| Again.<|im_end|>↵",
        "| <|im_start|>assistant↵",
        "+ <|im_end|>",
    ]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("a\nb\n\n", ["+ a↵", "+ b↵", "+ ↵", "+ <|im_end|>"]),
        ("a\r\nb", ["+ a\\r↵", "+ b<|im_end|>"]),
        ("tab\there", ["+ tab\\there<|im_end|>"]),
        ("\x1b[31mred", ["+ \\x1b[31mred<|im_end|>"]),
        ("↵ and \\n", ["+ \\u21b5 and \\\\n<|im_end|>"]),
        ("```\nfence", ["+ ```↵", "+ fence<|im_end|>"]),
        ("é漢🙂", ["+ é漢🙂<|im_end|>"]),
    ],
)
def test_the_preview_cannot_be_misread_or_act_on_a_terminal(content: str, shown: list[str]) -> None:
    tokenizer = ByteTokenizer()
    (rendered,) = get_renderer(tokenizer).render([*CONVERSATION[:2], {"role": "assistant", "content": content}])
    lines = preview(rendered, tokenizer).split("\n")
    assert [line for line in lines if line.startswith("+")] == shown
    assert all(line[:2] in ("+ ", "| ") for line in lines[1:])


def test_text_is_decoded_as_it_was_sampled() -> None:
    class Tidying(ByteTokenizer):
        """As Hugging Face tokenizers can be set: decoded text is tidied unless configured otherwise."""

        clean_up_tokenization_spaces = True

        def decode(self, ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = True) -> str:
            text = super().decode(ids, skip_special_tokens)
            return text.replace(" .", ".") if clean_up_tokenization_spaces else text

    renderer = get_renderer(Tidying())
    assert renderer.parse(ByteTokenizer().encode("Hi .<|im_end|>")) == {"role": "assistant", "content": "Hi ."}
