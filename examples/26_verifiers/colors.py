"""A taskset of the verifiers library: sort a thing by its color. It knows nothing of evsys."""

from __future__ import annotations

from itertools import product

import verifiers.v1 as vf

COLORS = {"grass": "green", "blood": "red", "snow": "white", "coal": "black", "lime": "green", "rose": "red"}
PLACES = (
    "in the garden",
    "on a table",
    "by the road",
    "at the beach",
    "under a tree",
    "in a picture",
    "near the house",
)
TIMES = ("at dawn", "at noon", "in the evening", "in winter", "in summer", "today")


class ColorData(vf.TaskData):
    answer: str


class ColorTask(vf.Task[ColorData]):
    @vf.reward(weight=1.0)
    async def right_color(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def words(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply.split()))


class ColorConfig(vf.TasksetConfig):
    names: int = len(COLORS)
    """How many things are asked about."""


class ColorTaskset(vf.Taskset[ColorTask, ColorConfig]):
    def load(self):
        things = list(COLORS.items())[: self.config.names]
        for (thing, color), place, time in product(things, PLACES, TIMES):
            choices = "\n".join(f"- {one}" for one in sorted(set(COLORS.values())))
            prompt = f"Color of {thing} {place} {time}?\nAnswers:\n{choices}\nAnswer with one of them."
            yield ColorTask(ColorData(prompt=prompt, answer=color), self.config.task)


__all__ = ["ColorTaskset"]
