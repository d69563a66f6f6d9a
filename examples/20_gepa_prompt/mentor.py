"""Two stand-ins, so that a search for a prompt can be watched without a key: one answers, the other one writes prompts.

The desk knows which queue a ticket belongs to only if its prompt explains the queue. The mentor reads what went wrong,
as a strong model would, and adds the explanation of one queue that was missed. With a real model, `task` is left out
(then the run's own model answers) or names a client such as `openai`, and so does `reflection`.
"""

import re

from evsys_sdk import register_inference

RULES = {
    "billing": "Tickets about money go to billing.",
    "access": "Tickets about passwords go to access.",
    "shipping": "Tickets about parcels go to shipping.",
}
WORDS = {"invoice": "billing", "refund": "billing", "password": "access", "login": "access", "parcel": "shipping"}


@register_inference("desk")
class Desk:
    """Sorts a ticket rightly if its prompt has the rule for it, and asks for help otherwise."""

    def generate(self, *, prompt, max_tokens, temperature, stop=None):
        system, _, ticket = prompt.partition("user:")
        queue = next(queue for word, queue in WORDS.items() if word in ticket)
        return queue if RULES[queue] in system else "please help"


@register_inference("mentor")
class Mentor:
    """Adds one rule that the current prompt lacks, for a ticket that was sorted wrongly."""

    def generate(self, *, prompt, max_tokens, temperature, stop=None):
        current = re.findall(r"```(.*?)```", prompt, re.DOTALL)[0].strip()
        missed = (queue for word, queue in WORDS.items() if word in prompt and RULES[queue] not in current)
        rule = next((RULES[queue] for queue in missed), "")
        return f"```\n{current} {rule}\n```"
