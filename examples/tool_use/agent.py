"""A harness of one's own: the policy calls a tool, reads what it returned, and answers.

Three turns: the assistant opens a drawer, is shown what lies in it, and says what it takes out. Only that last word is
rewarded, so the model has to learn both which drawer to open and how to read the result.

The harness decides what the model is shown: here the second question stands alone, without the call before it.
"""

from evsys_sdk.data.types import HarborTask
from evsys_sdk.rollouts.environment import Environment
from evsys_sdk.rollouts.rollout import Message, Policy, opening, text_of

DRAWERS = {
    "open_upper": "dust, spoon, paper",
    "open_middle": "dust, candle, paper",
    "open_lower": "dust, marble, paper",
}


class DrawerAgent:
    """Lets the policy open one drawer and asks what it takes out of it."""

    name = "drawers"

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> list[Message]:
        asked = opening(task)
        call = await policy.act(asked)
        found = DRAWERS.get(text_of(call.message).strip())
        if found is None:
            return [*asked, call.message]  # there is no such tool: nothing was opened, nothing is taken out
        result: Message = {"role": "tool", "content": f"Take one of them, {found}"}
        answer = await policy.act([result])
        return [*asked, call.message, result, answer.message]
