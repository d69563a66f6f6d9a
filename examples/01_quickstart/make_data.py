"""Writes the rows of the quickstart: short requests, and the tool that should answer each.

Held-out requests use phrasings and names that training never shows together. Run it to see how the data came about:

    python examples/01_quickstart/make_data.py
"""

import json
import random
from pathlib import Path

FILLERS = {
    "city": ["Berlin", "Lagos", "Osaka", "Quito", "Perth", "Oslo", "Lima", "Cairo", "Turin", "Porto"],
    "person": ["Ada", "Bruno", "Chidi", "Dana", "Emeka", "Farah", "Goran", "Hana", "Iris", "Jonas"],
    "amount": ["12", "35", "80", "140", "260", "450", "900", "1200", "3400", "7000"],
    "song": ["Blue Rain", "Night Drive", "Paper Moon", "Slow Tide", "Red Dust", "Cold Sun", "Old Stars"],
    "dish": ["pasta", "soup", "rice", "pancakes", "bread", "curry", "salad", "noodles", "stew"],
    "time": ["6am", "7am", "8am", "9am", "noon", "2pm", "5pm", "8pm", "10pm"],
}
TOOLS = {
    "weather_lookup": [
        "what is the weather in {city}", "will it rain in {city} today", "how cold does it get in {city}",
        "weather forecast for {city} please", "do i need an umbrella in {city}", "is it sunny in {city} right now",
        "give me the {city} weather", "any rain expected in {city}",
    ],
    "send_email": [
        "email {person} about the report", "write an email to {person}", "send {person} an email saying thanks",
        "reply to the email from {person}", "draft an email for {person}", "forward this email to {person}",
        "email the notes to {person}", "send an email to {person} now",
    ],
    "convert_currency": [
        "convert {amount} dollars to euros", "how many euros are {amount} dollars", "change {amount} yen into pounds",
        "what are {amount} pounds in dollars", "exchange {amount} euros for yen", "{amount} dollars in pounds please",
        "convert {amount} euros into dollars", "how many yen are {amount} pounds",
    ],
    "play_music": [
        "play the song {song}", "put on {song}", "play some music by {person}", "i want to hear the song {song}",
        "start playing {song}", "queue the song {song} next", "play {song} again", "play me the music of {person}",
    ],
    "set_alarm": [
        "wake me up at {time}", "set an alarm for {time}", "alarm at {time} tomorrow", "i need to wake up at {time}",
        "set my alarm to {time}", "please wake me at {time}", "make an alarm for {time}", "new alarm {time}",
    ],
    "book_flight": [
        "book a flight to {city}", "find flights from {city} to {city}", "i need a flight to {city} on friday",
        "cheapest flight to {city}", "fly me to {city}", "reserve a flight for {person} to {city}",
        "book flights to {city} for two", "get me a flight to {city}",
    ],
    "call_contact": [
        "call {person}", "phone {person} please", "ring {person} back", "make a phone call to {person}",
        "dial {person}", "call {person} on the phone", "give {person} a call", "phone {person} now",
    ],
    "find_recipe": [
        "how do i cook {dish}", "recipe for {dish}", "what do i need to cook {dish}", "find a recipe for {dish}",
        "show me a {dish} recipe", "i want to cook {dish}", "a good recipe for {dish}", "how to cook {dish}",
    ],
}  # fmt: skip
HELD_OUT_PHRASINGS = 2
FRAMES = ["{}", "hey, {}", "{} thanks", "could you help: {}", "ok now {}"]
N_TRAIN, N_TEST = 320, 96
REWORDED = {
    "how do i cook noodles thanks": "please look up a recipe for noodles",
    "ok now play the song Blue Rain": "please put on the song Blue Rain",
}
"""Rows that nearly say what a held-out request says, which `evsys contamination` found, and what they are instead."""


def rows(rng: random.Random, *, held_out: bool, n: int) -> list[dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    tools = sorted(TOOLS)
    while len(found) < n:
        tool = tools[len(found) % len(tools)]
        phrasings = TOOLS[tool][-HELD_OUT_PHRASINGS:] if held_out else TOOLS[tool][:-HELD_OUT_PHRASINGS]
        text = rng.choice(FRAMES).format(rng.choice(phrasings))
        for key, values in FILLERS.items():
            while f"{{{key}}}" in text:
                text = text.replace(f"{{{key}}}", rng.choice(values), 1)
        found.setdefault(text, {"query": REWORDED.get(text, text), "tool_slug": tool})
    return list(found.values())


def main() -> None:
    folder = Path(__file__).parent / "data"
    for name, held_out, n in (("train", False, N_TRAIN), ("test", True, N_TEST)):
        lines = [json.dumps(row) for row in rows(random.Random(name), held_out=held_out, n=n)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
