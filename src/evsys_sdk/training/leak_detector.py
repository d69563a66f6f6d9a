"""Finds evaluation tasks in the batches that a model is trained on.

    detector = LeakDetector({"test/tools": {"t-1": "start mail 7"}}, client.tokenizer)
    client.on_batch = detector.check     at every backward pass
    detector.summarise()                 {"test/tools": {"n": 1, "first": ["t-1"]}}

The rows of a config are scanned before the run by the same rule. This finds rows that a recipe brings itself, and files
that changed after the scan. A task is reported before the backward pass, so that a killed process cannot lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..data.contamination import ProbeTask, TaskIndex, words_of

if TYPE_CHECKING:
    from ..backends.datum import Datum

_SHORTEST = 3
"""Fewest words of a task that is searched for; a sampled answer has shorter lines by chance."""
_NAMED = 10
"""Tasks that the summary names."""


class LeakDetector:
    """The questions of some benchmarks, and which of them have been trained on."""

    def __init__(
        self,
        tasks: Mapping[str, Mapping[str, str]],
        tokenizer: Any,
        *,
        known: Mapping[str, Sequence[str]] | None = None,
        report: Callable[[dict[str, list[str]]], None] | None = None,
    ) -> None:
        """`tasks`: the text of each task by benchmark and id; `known`: those that were trained on before a resume.

        `report` is called once for each task, by benchmark, before the backward pass.
        """
        self._tokenizer, self._report = tokenizer, report
        self._found = {name: dict.fromkeys(found) for name, found in (known or {}).items()}
        self._checked: set[int] = set()
        probes = (ProbeTask(id, name, text) for name, texts in tasks.items() for id, text in texts.items())
        self._index = TaskIndex(probe for probe in probes if len(words_of(probe.question)) >= _SHORTEST)

    def check(self, data: Sequence[Datum]) -> None:
        """Search each new sequence of a batch; epochs repeat sequences."""
        new: dict[str, list[str]] = {}
        for datum in data if self._index.tasks else ():
            # Only a hash is kept, because the tokens of a whole run are large.
            content = hash(datum.tokens.tobytes())
            if content in self._checked:
                continue
            self._checked.add(content)
            for task in self._index.find([self._tokenizer.decode(datum.tokens.tolist())]):
                found = self._found.setdefault(task.benchmark, {})
                if task.task_id not in found:
                    found[task.task_id] = None
                    new.setdefault(task.benchmark, []).append(task.task_id)
        if new and self._report is not None:
            self._report(new)

    def summarise(self) -> dict[str, dict[str, Any]] | None:
        """How many tasks of each benchmark were trained on, and the first few; None where there are none."""
        return {name: {"n": len(tasks), "first": list(tasks)[:_NAMED]} for name, tasks in self._found.items()} or None
