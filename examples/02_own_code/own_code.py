"""Three extensions: how a row becomes a conversation, what an answer is worth, and how that is summed up."""

from evsys_sdk import register_metric, register_transform, register_verifier

COURTESIES = ("hey, ", "could you help: ", "ok now ", " thanks", " please")
TOPICS = {
    "send_email": "people",
    "call_contact": "people",
    "book_flight": "travel",
    "weather_lookup": "travel",
    "play_music": "home",
    "set_alarm": "home",
    "find_recipe": "home",
    "convert_currency": "money",
}


@register_transform("to_the_point")
class ToThePoint:
    """Ask for the tool in the fewest words: courtesies are dropped, and a request is shown once."""

    def __call__(self, rows):
        seen = set()
        for row in rows:
            request = row["query"]
            for courtesy in COURTESIES:
                request = request.replace(courtesy, "")
            if request not in seen:
                seen.add(request)
                answer = {"role": "assistant", "content": row["tool_slug"]}
                yield {"messages": [{"role": "user", "content": request}, answer]}


@register_verifier("tool_or_topic")
def tool_or_topic(completion: str, expected: str) -> float:
    """1 for the right tool, 0.5 for another one of the same topic."""
    said = completion.strip()
    if said == expected:
        return 1.0
    return 0.5 if TOPICS.get(said) == TOPICS[expected] else 0.0


@register_metric("near_misses")
class NearMisses:
    """Share of tasks that got the topic right and the tool wrong."""

    name = "near_misses"

    def compute(self, task_rewards: list[list[float]]) -> float:
        return sum(max(rewards) == 0.5 for rewards in task_rewards) / len(task_rewards)
