"""Chat rows -> datums, and the record's page of examples."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeGuard

from ..backends.datum import Datum
from ..data import ChatMessagesRow, has_images
from ..errors import DataError
from ..files import write_text
from ..inference.renderer import Rendered, Renderer, Supervise, preview, row_messages
from ..log import get_logger
from ..record.layout import RunFiles

if TYPE_CHECKING:
    from ..backends.client import Capabilities, TrainingClient

_PREVIEWED = 3

type TooLong = Literal["error", "skip", "truncate"]


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """The maximum example length of a run, and the treatment of longer examples."""

    max_length: int
    too_long: TooLong

    @classmethod
    def of(cls, max_length: int | None, too_long: TooLong, capabilities: Capabilities) -> LengthLimit:
        longest = capabilities.context_length
        return cls(min(max_length or longest, longest), too_long)

    def apply(self, rendered: Rendered, row_number: int) -> Rendered | None:
        """The example to train on, or None if it is skipped."""
        if len(rendered.tokens) <= self.max_length:
            return rendered
        if self.too_long == "error":
            raise DataError(
                f"row {row_number} has {len(rendered.tokens)} tokens, more than the {self.max_length} allowed. "
                "Shorten the row, raise max_length if the model allows it, or set too_long to 'skip' or 'truncate'."
            )
        if self.too_long == "skip":
            return None
        return Rendered(rendered.tokens[: self.max_length], rendered.weights[: self.max_length])


def can_learn_from(example: Rendered | None) -> TypeGuard[Rendered]:
    """Whether any token carries loss; the first cannot, because it has no context."""
    return example is not None and any(example.weights[1:])


@contextmanager
def in_row(number: int) -> Generator[None]:
    """Add the row number to a DataError."""
    try:
        yield
    except DataError as error:
        raise DataError(f"row {number}: {error}") from None


def render_chats(
    chats: Iterable[ChatMessagesRow],
    *,
    client: TrainingClient,
    renderer: Renderer,
    supervise: Supervise,
    limit: LengthLimit,
) -> list[Rendered]:
    """All supervised sequences of the rows, in order; warns about skipped ones."""
    examples: list[Rendered] = []
    skipped = 0
    for number, chat in enumerate(chats, start=1):
        if has_images(chat) and not client.capabilities.vision:
            raise DataError(
                f"row {number} holds an image, but {client.model_name} on this backend reads only text. "
                "Choose a model with vision, or remove the images with a transform."
            )
        with in_row(number):
            sequences = renderer.render(row_messages(chat), supervise, chat.tools)
        for rendered in sequences:
            example = limit.apply(rendered, number)
            if can_learn_from(example):
                examples.append(example)
            else:
                skipped += 1
    warn_left_out(skipped, "examples")
    if not examples:
        raise DataError(
            "no row gives anything to learn from. Check data.path and data.transforms with `evsys dataset show`, and "
            "whether max_length cuts the answers off."
        )
    return examples


def to_datums(examples: Sequence[Rendered]) -> list[Datum]:
    """Rendered sequences shifted by one: position i predicts token i + 1."""
    return [Datum.supervised(example.tokens, example.weights) for example in examples]


def write_preview(run_dir: Path, examples: Sequence[Rendered], client: TrainingClient) -> None:
    """Write the first training examples to the record, with loss marks."""
    pages = [
        f"## Example {number}\n\n{preview(example, client.tokenizer)}\n"
        for number, example in enumerate(examples[:_PREVIEWED], 1)
    ]
    write_text(RunFiles(run_dir).examples, "\n".join(["# What was trained on\n", *pages]))


def warn_left_out(count: int, what: str) -> None:
    """Warn about skipped examples."""
    if count:
        get_logger(__name__).warning("%d %s were skipped: too long, or nothing to train on", count, what)
