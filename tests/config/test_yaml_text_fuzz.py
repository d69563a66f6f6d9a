"""Generated input: whatever is written reads back the same, and whatever is read is a document or a ConfigError."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from evsys_sdk.config.yaml_text import Document, read_yaml
from evsys_sdk.config.yaml_write import write_yaml
from evsys_sdk.errors import ConfigError

FRAGMENTS = [
    *" \t\n\r:-?,[]{}#&*!|>'\"%@`\\~.0123456789eExob_yn=<+/",
    ": ",
    " #",
    "- ",
    "\n\n",
    "<<",
    "null",
    "on",
    "---",
    "...",
]
TEXT = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT)
DATA = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=15
)


def same(one: Any, other: Any) -> bool:
    """Strict equality: 1 is neither 1.0 nor True, 0.0 is not -0.0, the order of keys counts, and nan equals nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one == other


def check_round_trip(data: Any) -> None:
    text = write_yaml(data)
    assert same(read_yaml(text).data, data)
    assert same(read_yaml(text.encode()).data, data)
    assert same(read_yaml(text.replace("\n", "\r\n")).data, data)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=DATA)
def test_data_comes_back_exactly(data: Any) -> None:
    check_round_trip(data)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=DATA)
def test_data_comes_back_exactly_without_libyaml(data: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(yaml, "CSafeLoader", raising=False)
        check_round_trip(data)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=DATA)
def test_written_data_means_the_same_to_a_yaml_1_1_reader(data: Any) -> None:
    assert same(yaml.safe_load(write_yaml(data)), data)


CONFIG = """\
# One experiment: does a longer schedule help?
name: longer_schedule
version: 1
metadata:
  hypothesis: "Twice the steps give a better score: at least +2 points"
  tags: [sft, mock, 'it''s small']
  benchmark:
    - {name: arithmetic, split: test, run_every: null}
    - name: arithmetic
      split: val
      run_every: 50
base: &base
  model: {name: org/model-0.5B, lora_rank: 8}
  backend: {kind: mock}
  algorithm:
    kind: sft
    params: {lr: 1e-4, steps: 100, betas: [0.9, 0.95]}
runs:
  - <<: *base
    name: short
  - <<: *base
    name: long
    algorithm:
      kind: sft
      params:
        lr: 1.0e-04
        steps: 200   # the only change
        prompt: |
          Answer with a number.

            No words.
        note: >-
          folded
          text
seeds: [0, 1, 2]
success_metric: ~
output_dir: ./outputs
"""


def test_the_config_that_is_mutated_below_is_valid() -> None:
    data = read_yaml(CONFIG).data
    assert [run["algorithm"]["params"]["steps"] for run in data["runs"]] == [100, 200]
    assert data["runs"][1]["model"] == {"name": "org/model-0.5B", "lora_rank": 8}
    assert same(read_yaml(write_yaml(data)).data, data)


def mutated(text: str, source: random.Random) -> str:
    """`text` after a few edits of the kind that people, agents and disks make."""
    for _ in range(source.randint(1, 4)):
        lines = text.split("\n")
        at, line = source.randrange(len(text) + 1), source.randrange(len(lines))
        match source.randrange(8):
            case 0:
                text = text[:at] + source.choice(FRAGMENTS) + text[at:]
            case 1:
                text = text[:at] + text[at + source.randint(1, 5) :]
            case 2:
                text = text[:at]
            case 3:
                lines[line] = source.choice([" ", "  ", "\t"]) + lines[line]
                text = "\n".join(lines)
            case 4:
                lines[line] = lines[line][source.randint(1, 3) :]
                text = "\n".join(lines)
            case 5:
                lines.insert(source.randrange(len(lines)), lines[line])
                text = "\n".join(lines)
            case 6:
                text = text[:at] + chr(source.choice([0, 7, 0x85, 0x2028, 0xD800, 0xFEFF, 0x1F600, 0xE9])) + text[at:]
            case _:
                other = source.randrange(len(text) + 1)
                text = text[:at] + text[other : other + source.randint(1, 30)] + text[at:]
    return text


def survives(source: str | bytes, outcomes: set[type]) -> None:
    """Read `source`; whatever happens must be a document that can be written again, or problems with a message."""
    try:
        document = read_yaml(source, file="config.yaml")
    except ConfigError as error:
        problems = error.problems
    else:
        assert same(read_yaml(write_yaml(document.data)).data, document.data)
        assert document.position(("runs", 0, "name")) is not None
        outcomes.add(Document)
        return
    assert problems
    assert all(problem.message and problem.file == "config.yaml" for problem in problems)
    outcomes.add(ConfigError)


def test_a_damaged_config_is_a_document_or_a_config_error() -> None:
    source, outcomes = random.Random(1), set[type]()
    for _ in range(400):
        text = mutated(CONFIG, source)
        survives(text, outcomes)
    assert outcomes == {Document, ConfigError}


def test_noise_is_a_document_or_a_config_error() -> None:
    source, outcomes = random.Random(2), set[type]()
    for _ in range(500):
        length = source.randint(0, 60)
        survives(source.randbytes(length), outcomes)
        survives(bytes(source.choices(range(32, 127), k=length)), outcomes)
        survives("".join(source.choices(FRAGMENTS, k=length // 3)), outcomes)
        survives("".join(chr(source.randrange(0x3000)) for _ in range(length // 6)), outcomes)
    assert outcomes == {Document, ConfigError}
