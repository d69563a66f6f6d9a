"""Tasks in the form of verifiers, for `vf-eval`: what was said is worth its length."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf


class Question(vf.TaskData):
    number: int


class QuestionTask(vf.Task[Question]):
    @vf.reward(weight=1.0)
    async def length(self, trace: vf.Trace) -> float:
        return float(len(str(trace.branches[-1].messages[-1].content)))


class Questions(vf.Taskset[QuestionTask, vf.TasksetConfig]):
    def load(self) -> Iterator[QuestionTask]:
        for number in range(2):
            yield QuestionTask(Question(prompt=f"{number} + {number} =", number=number), self.config.task)


__all__ = ["Questions"]
