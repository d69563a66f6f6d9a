"""A task of inspect_ai, as its users write them: name the color of a thing. It knows nothing of evsys."""

from __future__ import annotations

from itertools import product

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate

COLORS = {"grass": "green", "blood": "red", "snow": "white", "coal": "black", "lime": "green", "rose": "red"}
PLACES = ("here", "there", "outside", "inside", "far away", "nearby", "at home")
TIMES = ("at dawn", "at noon", "today", "in winter")


@task
def colors(n: int = 100) -> Task:
    samples = [
        Sample(id=f"{thing} {place} {time}", input=f"Color of {thing} {place} {time}?", target=color)
        for (thing, color), place, time in product(COLORS.items(), PLACES, TIMES)
    ]
    return Task(dataset=MemoryDataset(samples[:n]), solver=generate(), scorer=match(location="exact"))
