"""A harness of one's own: the policy calls a tool, reads what it returned, and answers.

Three turns: the assistant opens a drawer, is shown what lies in it, and says what it takes out. Only that last word is
rewarded, so the model has to learn both which drawer to open and how to read the result.
"""

from evsys_sdk.data.types import HarborTask
from evsys_sdk.rollouts.environment import Environment
from evsys_sdk.rollouts.rollout import Message, Policy, opening, text_of

DRAWERS = {
    "open_upper": "spoon",
    "open_middle": "candle",
    "open_lower": "marble",
}


class DrawerAgent:
    """Lets the policy open one drawer and asks what it takes out of it."""

    name = "drawers"

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> list[Message]:
        messages = opening(task)
        call = await policy.act(messages)
        messages.append(call.message)
        found = DRAWERS.get(text_of(call.message).strip())
        if found is None:
            return messages  # there is no such tool: nothing was opened, nothing is taken out
        messages.append({"role": "tool", "content": f"In the drawer: {found}"})
        answer = await policy.act(messages)
        return [*messages, answer.message]
