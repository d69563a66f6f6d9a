"""Extensions of the project's own, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from evsys_sdk import register_backend, register_callback, register_transform

from .project import task


@register_backend("own_local")
class OwnBackend:
    """A backend that nothing is known about."""

    def prepare(self, *, model: Any, run_dir: Any) -> dict[str, Any]:
        raise AssertionError("nothing is prepared before everything was checked")

    def teardown(self, handles: dict[str, Any]) -> None: ...


@register_callback("own_misspelt")
class Misspelt:
    def on_stpe(self, step: int, metrics: Mapping[str, float]) -> None: ...


@register_callback("own_deaf")
class Deaf:
    def hear(self) -> None: ...


@register_callback("own_bare")
class Bare:
    """One hook and no base class."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None: ...


@register_transform("own_raises")
class Raises:
    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            yield {"messages": row["mesages"]}


@register_transform("own_none")
class PutsOutNothing:
    def __call__(self, rows: Iterable[Any]) -> Any:
        return None


@register_transform("own_tasks")
class MakesTasks:
    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        for at, row in enumerate(rows):
            yield task(str(at), row["query"], row["tool"], fn_name="own_verifeir")
