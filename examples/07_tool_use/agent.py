"""A harness of one's own: three turns with two tools, and a reward for what comes out at the end alone.

Turn 1: the policy opens a drawer, which says what the locked box in it is called. Turn 2: it unlocks the box by that
name, which is another one in every task and drawer, so it has to be read. Turn 3: it is shown what lies in the box and
takes one thing out. A call that cannot be made ends the attempt, so nobody gets to the third turn by skipping one.

The whole conversation is shown at every turn. The same harness serves for training and for evaluation.
"""

import hashlib

from evsys_sdk import Environment, HarborTask, Message, Policy, opening, register_verifier, text_of

DRAWERS = {"open_upper": "spoon", "open_middle": "candle", "open_lower": "marble"}
INSIDE = "Inside is "
TURNS = ["user", "assistant", "tool", "assistant", "tool", "assistant"]


class DrawerAgent:
    """Lets the policy open a drawer, unlock the box in it, and take something out of the box."""

    name = "drawers"

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> list[Message]:
        messages = opening(task)
        drawer = await act(policy, messages)
        if drawer not in DRAWERS:
            return messages  # there is no such tool: nothing was opened
        box = box_in(drawer, task)
        messages.append({"role": "tool", "content": f"A locked box with the name: {box}"})
        if await act(policy, messages) != box:
            return messages  # that unlocks no box
        messages.append({"role": "tool", "content": f"{INSIDE}dust, {DRAWERS[drawer]}, paper"})
        await act(policy, messages)
        return messages


async def act(policy: Policy, messages: list[Message]) -> str:
    """Let the policy answer the conversation; its answer becomes part of it."""
    turn = await policy.act(messages)
    messages.append(turn.message)
    return text_of(turn.message).strip()


def box_in(drawer: str, task: HarborTask) -> str:
    """The name of the box in a drawer: two syllables that follow from the task."""
    digest = hashlib.sha256(f"{task.task_id} {drawer}".encode()).digest()
    return "".join("tnsrlhdm"[digest[at] % 8] + "eaoi"[digest[at + 1] % 4] for at in (0, 2))


@register_verifier("taken_out")
def taken_out(completion: str, expected: str, messages: list[Message]) -> float:
    """1 if the right thing was taken out of an unlocked box that holds it; only naming it is worth nothing."""
    if [message["role"] for message in messages] != TURNS:
        return 0.0
    inside = text_of(messages[-2]).removeprefix(INSIDE).split(", ")
    return float(completion.strip() == expected and expected in inside)
