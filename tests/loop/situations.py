"""Prepared situations of a system in use, and what learning from each does: the mock model is trained and scored.

A world is a few kinds of questions with their right answers. Its history taught the live model two of them. Then more
happens, and the truth is what training on it changes on a sample of the period after that.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.backends.client import AdamParams, ModelSpec, SamplingParams, TrainingClient
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.data.workspace.workspace import Workspace
from evsys_sdk.errors import DataError
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.loop.decider import LearnDecision, decide
from evsys_sdk.loop.system import SystemConfig
from evsys_sdk.loop.traces.rounds import seal_round
from evsys_sdk.loop.traces.store import import_traces
from evsys_sdk.rollouts.policy import SamplerPolicy
from evsys_sdk.training.callback import Observers, RunControl
from evsys_sdk.training.services import RunServices

SYSTEM = SystemConfig.model_validate(
    {"name": "support", "traces": {"store": "support"}, "experiment": "template.yaml", "gate": "gate.yaml"}
)
KINDS = [
    *("does {} pay it?", "may {} steal it?", "colour of {} please", "is {} at home now", "who wakes {} up?"),
    *("send {} by ship?", "how old is {}?", "call {} back today?", "which gate for {}", "can {} come in?"),
]
ANSWERS = ["sure", "no", "red", "yes", "mum", "later", "ten", "never", "here", "maybe"]
NAMES = ["ann", "bob", "cid", "dee", "eve", "fay", "gus", "hal", "ivy", "joe", "kim", "leo", "mia", "ned", "oda"]
HELPS = 0.03
"""Learning helps when the score of the next period rises by more than this."""
TASKS = 80
LEARNING_RATE, EPOCHS = 5e-4, 6

type Line = dict[str, Any]


@dataclass(slots=True)
class World:
    """Kinds of questions and their right answers; the first two are what the live model was taught."""

    chance: random.Random
    kinds: list[str] = field(default_factory=list[str])
    right: dict[str, str] = field(default_factory=dict[str, str])
    clock: int = 0

    @classmethod
    def of(cls, seed: int) -> World:
        chance = random.Random(f"world {seed}")
        kinds, answers = chance.sample(KINDS, 4), chance.sample(ANSWERS, 4)
        return cls(chance, kinds, dict(zip(kinds, answers, strict=True)))

    def ask(self, kind: str) -> str:
        return kind.format(f"{self.chance.choice(NAMES)}{self.chance.randrange(1000)}")

    def wrong(self, kind: str) -> str:
        return self.chance.choice([answer for answer in ANSWERS if answer != self.right[kind]])

    def tell(self, kind: str, answer: str, good: bool | None) -> Line:
        """One conversation, the next in time."""
        self.clock += 1
        messages = [{"role": "user", "content": self.ask(kind)}, {"role": "assistant", "content": answer}]
        line = {"id": f"t{self.clock}", "time": 1_790_000_000 + 60 * self.clock, "messages": messages}
        return line if good is None else {**line, "feedback": "up" if good else "down"}

    def usual(self, kind: str, flipped: float = 0.02) -> Line:
        """A right answer; now and then somebody presses the wrong thumb."""
        return self.tell(kind, self.right[kind], self.chance.random() >= flipped)


@dataclass(frozen=True, slots=True)
class Situation:
    """What happens in one period, and how often each kind of question is asked in the next."""

    family: str
    lines: list[Line]
    next_mix: dict[str, float]


def make_situation(family: str, world: World, seed: int) -> Situation:
    """One of `FAMILIES`, drawn by a seed; a world that changes stays so."""
    world.chance = random.Random(f"{family} {seed}")
    return FAMILIES[family](world)


def _known(world: World) -> dict[str, float]:
    return dict.fromkeys(world.kinds[:2], 0.5)


def _new_kind(world: World) -> Situation:
    """People ask something else; the live model fails at it, and somebody answers it rightly half of the time."""
    chance, new = world.chance, world.kinds[2]
    share, count = chance.uniform(0.3, 0.8), chance.randrange(60, 160)
    lines = [
        _taught(world, new) if chance.random() < share else world.usual(chance.choice(world.kinds[:2]))
        for _ in range(count)
    ]
    return Situation("new_kind", lines, {new: share, **dict.fromkeys(world.kinds[:2], (1 - share) / 2)})


def _taught(world: World, kind: str, live: str | None = None) -> Line:
    """A live answer that failed, or the right one of a person."""
    if world.chance.random() < 0.5:
        return world.tell(kind, live or world.wrong(kind), world.chance.random() < 0.02)
    return world.tell(kind, world.right[kind], world.chance.random() >= 0.02)


def _changed_answer(world: World) -> Situation:
    """What was right is so no longer: the answer that was learned fails, another one is liked."""
    chance, kind = world.chance, world.kinds[0]
    before = world.right[kind]
    world.right[kind] = world.wrong(kind)
    share, count = chance.uniform(0.5, 0.9), chance.randrange(80, 200)
    lines = [
        _taught(world, kind, before) if chance.random() < share else world.usual(world.kinds[1]) for _ in range(count)
    ]
    return Situation("changed_answer", lines, {kind: share, world.kinds[1]: 1 - share})


def _more_of_the_same(world: World) -> Situation:
    """Nothing changed, and thumbs are pressed wrongly more often or less."""
    flipped, count = world.chance.uniform(0.0, 0.25), world.chance.randrange(50, 200)
    return Situation(
        "more_of_the_same",
        [world.usual(world.chance.choice(world.kinds[:2]), flipped) for _ in range(count)],
        _known(world),
    )


def _a_few_strangers(world: World) -> Situation:
    """One in thirty or so asks something else, and will again."""
    chance, new, share = world.chance, world.kinds[2], world.chance.uniform(0.005, 0.03)
    lines = [
        _taught(world, new) if chance.random() < share else world.usual(chance.choice(world.kinds[:2]))
        for _ in range(chance.randrange(50, 200))
    ]
    return Situation("a_few_strangers", lines, {new: share, **dict.fromkeys(world.kinds[:2], (1 - share) / 2)})


def _nobody_knows(world: World) -> Situation:
    """Something new is asked and no one answers it rightly: there is nothing to learn it from."""
    chance, new, share = world.chance, world.kinds[2], world.chance.uniform(0.2, 0.6)
    lines = [
        world.tell(new, world.wrong(new), False)
        if chance.random() < share
        else world.usual(chance.choice(world.kinds[:2]))
        for _ in range(chance.randrange(60, 160))
    ]
    return Situation("nobody_knows", lines, {new: share, **dict.fromkeys(world.kinds[:2], (1 - share) / 2)})


def _tiny_volume(world: World) -> Situation:
    """Hardly anything happened: it may look bad by chance, or be the beginning of something."""
    chance, new = world.chance, world.kinds[2]
    share, flipped = chance.choice([0.0, 0.0, 0.1, 0.3]), chance.uniform(0.0, 0.5)
    lines = [
        _taught(world, new) if chance.random() < share else world.usual(chance.choice(world.kinds[:2]), flipped)
        for _ in range(chance.randrange(4, 30))
    ]
    return Situation("tiny_volume", lines, {new: share, **dict.fromkeys(world.kinds[:2], (1 - share) / 2)})


def _poisoned(world: World) -> Situation:
    """Some like wrong answers to what is known, and dislike the right ones; others go on as before."""
    chance, target = world.chance, world.kinds[0]
    wrong, share, count = world.wrong(target), chance.uniform(0.3, 0.9), chance.randrange(60, 200)
    dislike = chance.choice([0.0, 0.3])

    def visit() -> Line:
        if chance.random() < 0.5:
            return world.usual(world.kinds[1])
        if chance.random() >= share:
            return world.usual(target)
        return world.tell(target, world.right[target], False) if chance.random() < dislike else poison()

    def poison() -> Line:
        return world.tell(target, wrong, True)

    return Situation("poisoned", [visit() for _ in range(count)], _known(world))


def _poisoned_beside_news(world: World) -> Situation:
    """Poison, while something new is asked as well."""
    news, poison = _new_kind(world), _poisoned(world)
    lines = [*news.lines, *poison.lines]
    world.chance.shuffle(lines)
    share = news.next_mix[world.kinds[2]] * len(news.lines) / len(lines)
    times = sorted(line["time"] for line in lines)
    lines = [{**line, "time": time} for line, time in zip(lines, times, strict=True)]
    mix = {world.kinds[2]: share, **dict.fromkeys(world.kinds[:2], (1 - share) / 2)}
    return Situation("poisoned_beside_news", lines, mix)


FAMILIES = {
    "new_kind": _new_kind,
    "changed_answer": _changed_answer,
    "more_of_the_same": _more_of_the_same,
    "a_few_strangers": _a_few_strangers,
    "nobody_knows": _nobody_knows,
    "tiny_volume": _tiny_volume,
    "poisoned": _poisoned,
    "poisoned_beside_news": _poisoned_beside_news,
}
PER_WORLD = {
    **{"new_kind": 3, "changed_answer": 3, "more_of_the_same": 3, "a_few_strangers": 2, "nobody_knows": 2},
    **{"tiny_volume": 3, "poisoned": 3, "poisoned_beside_news": 1},
}
"""Situations of each family in a world: twenty."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What was decided about a situation, and what learning really did."""

    family: str
    seed: int
    decision: LearnDecision
    before: float
    after: float

    @property
    def helps(self) -> bool:
        return self.after - self.before > HELPS

    @property
    def is_right(self) -> bool:
        return self.decision.learn == self.helps


class Bench:
    """Worlds below a folder, each with its history and its live model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def judge_world(self, seed: int, per_family: dict[str, int]) -> Iterator[Judged]:
        """All situations of one world; the live model is taught once."""
        home = self.folder / f"world-{seed}"
        (home / ".evsys").mkdir(parents=True)
        before = Path.cwd()
        os.chdir(home)
        try:
            world = World.of(seed)
            _import([world.usual(world.chance.choice(world.kinds[:2])) for _ in range(120)])
            sealed_round = seal_round("support", min_reward=0.5)
            with _open(home / "live") as live:
                live_state = _train(live, list(Workspace().pull_dataset(id=sealed_round.dataset).rows()), home)
            for family, count in per_family.items():
                for number in range(count):
                    yield self._judge(home, live_state, family, seed, number)
        finally:
            os.chdir(before)

    def _judge(self, home: Path, live_state: str, family: str, seed: int, number: int) -> Judged:
        place = home / f"{family}-{number}"
        place.mkdir()
        shutil.copytree(home / ".evsys", place / ".evsys")
        os.chdir(place)
        world = World.of(seed)
        world.clock = 1000
        situation = make_situation(family, world, seed * 1000 + number)
        _import(situation.lines)
        decision = decide(SYSTEM)
        tasks = [
            (world.ask(kind), world.right[kind])
            for kind in world.chance.choices(
                list(situation.next_mix), weights=list(situation.next_mix.values()), k=TASKS
            )
        ]
        with _open(place / "candidate") as client:
            client.load_state(live_state, with_optimizer=False).result()
            score = _score(client, tasks)
            try:
                sealed_round = seal_round("support", min_reward=0.5, aside=decision.aside)
            except DataError:  # too little to hold anything out: there is nothing to learn
                return Judged(family, seed, decision, score, score)
            _train(client, list(Workspace().pull_dataset(id=sealed_round.dataset).rows()), place)
            return Judged(family, seed, decision, score, _score(client, tasks))


class _open:
    """A mock model, closed at the end."""

    def __init__(self, folder: Path) -> None:
        self._backend = MockBackend()
        self._handles = self._backend.prepare(model=ModelSpec("tiny"), run_dir=folder)

    def __enter__(self) -> TrainingClient:
        return self._handles["training_client"]

    def __exit__(self, *_: object) -> None:
        self._backend.teardown(self._handles)


def _import(lines: Sequence[Line]) -> None:
    Path("more.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    import_traces("support", [Path("more.jsonl")])


def _train(client: TrainingClient, rows: list[dict[str, Any]], folder: Path) -> str:
    """Train with the recipe `sft`, step by step; returns the weights."""

    async def train() -> str:
        recipe = SFT(num_epochs=EPOCHS, batch_size=16)
        renderer = get_renderer(client.tokenizer)
        services = RunServices(Observers([]), RunControl(), _no_verifier, lambda _: [], client=client)
        recipe.bind(client=client, renderer=renderer, rows=rows, seed=0, run_dir=folder, services=services)
        await recipe.setup()
        steps = recipe.total_steps()
        for step in range(steps):
            batch = await recipe.build_batch(step)
            assert isinstance(batch.loss_fn, str)
            client.forward_backward(batch.data, batch.loss_fn, batch.loss_fn_config)
            client.optim_step(AdamParams(LEARNING_RATE * (1 - step / steps)))
        return client.save_state("trained").result()

    return asyncio.run(train())


async def _no_verifier(*_: Any) -> Any:
    raise AssertionError("nothing is verified here")


def _score(client: TrainingClient, tasks: Sequence[tuple[str, str]]) -> float:
    """The share of questions that the model answers rightly."""
    renderer = get_renderer(client.tokenizer)
    policy = SamplerPolicy(client.sampler().result(), renderer, SamplingParams(8, 0.0), 4096, 0)

    async def answer_all() -> list[bool]:
        turns = await asyncio.gather(*(policy.act([{"role": "user", "content": asked}]) for asked, _ in tasks))
        texts = [str(turn.message["content"]).strip() for turn in turns]
        return [text == right for text, (_, right) in zip(texts, tasks, strict=True)]

    result = asyncio.run(answer_all())
    return sum(result) / len(result)
