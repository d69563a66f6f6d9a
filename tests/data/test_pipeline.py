"""Building and applying transforms: all problems at once, lazily, and every failure names its transform."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from evsys_sdk import register_transform
from evsys_sdk.config import TransformSpec
from evsys_sdk.data import ChatMessagesRow, NoParams, RowTransform, apply_transforms, build_transforms, parse_rows
from evsys_sdk.errors import ConfigError, DataError

Row = dict[str, Any]
ROWS: list[Row] = [{"n": number} for number in range(5)]


def spec(kind: str, **params: Any) -> TransformSpec:
    return TransformSpec(kind=kind, params=params)


def run(rows: Iterable[Row], *specs: TransformSpec) -> list[Row]:
    return list(apply_transforms(rows, build_transforms(specs)))


def failure(rows: Iterable[Row], *specs: TransformSpec) -> DataError:
    with pytest.raises(DataError) as caught:
        run(rows, *specs)
    return caught.value


def test_no_transforms_pass_rows_on() -> None:
    assert run(ROWS) == ROWS


def test_transforms_are_applied_in_order() -> None:
    drop = spec("filter", conditions=[{"field": "n", "operator": "ge", "value": 2}])
    rename = spec("rename_fields", fields={"n": "m"})
    assert run(ROWS, drop, rename) == [{"m": 2}, {"m": 3}, {"m": 4}]
    assert "no field 'n'" in str(failure(ROWS, rename, drop))


def test_every_problem_of_every_spec_is_reported_at_once_with_its_path() -> None:
    specs = [
        spec("jsonl_to_chat", user_templat="x"),
        spec("dedup"),
        spec("sample", n=0, fraction=2),
        spec("filter", conditions=[{"field": "a", "operator": "eqq"}]),
        spec("identity"),
    ]
    with pytest.raises(ConfigError) as caught:
        build_transforms(specs, path="run.data.transforms")
    problems = {problem.path: str(problem) for problem in caught.value.problems}
    assert list(problems) == [
        "run.data.transforms[0].params.user_templat",
        "run.data.transforms[1].kind",
        "run.data.transforms[2].params.n",
        "run.data.transforms[2].params.fraction",
        "run.data.transforms[3].params.conditions[0].operator",
    ]
    assert "Did you mean 'user_template'?" in problems["run.data.transforms[0].params.user_templat"]
    assert "did you mean 'dedupe'?" in problems["run.data.transforms[1].kind"]
    assert "Did you mean 'eq'?" in problems["run.data.transforms[3].params.conditions[0].operator"]


def test_a_problem_of_the_params_as_a_whole_is_placed_at_the_params() -> None:
    with pytest.raises(ConfigError, match=r"transforms\[0\].params: a sample has either n"):
        build_transforms([spec("sample")])


def test_a_class_of_your_own_that_cannot_be_built_is_a_config_error() -> None:
    @register_transform("picky")
    class Picky:
        def __init__(self, size: int) -> None:
            raise OSError("no such dictionary")

        def __call__(self, rows: Iterable[Row]) -> Iterable[Row]:
            return rows

    assert Picky
    with pytest.raises(ConfigError, match=r"params: transform 'picky' could not be built: OSError: no such dictionary"):
        build_transforms([spec("picky", size=1)])
    with pytest.raises(ConfigError, match=r"params\.sise: unknown key 'sise'\. Did you mean 'size'"):
        build_transforms([spec("picky", sise=1)])


def test_a_class_without_call_is_a_config_error() -> None:
    @register_transform("idle")
    class Idle: ...

    assert Idle
    with pytest.raises(ConfigError, match=r"transforms\[0\].kind: transform 'idle' has no __call__"):
        build_transforms([spec("idle")])


def test_the_first_rows_come_out_of_an_endless_source() -> None:
    def endless() -> Iterator[Row]:
        yield from ({"query": f"q{number // 2}", "answer": "a", "n": number} for number in itertools.count())

    @register_transform("double")
    class Double:
        def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
            for row in rows:
                yield {**row, "n": row["n"] * 2}

    assert Double
    transforms = build_transforms(
        [
            spec("identity"),
            spec("double"),
            spec("jsonl_to_chat"),
            spec("dedupe", key="query"),
            spec("sample", fraction=0.5, seed=1),
            spec("split", key="query"),
            spec("filter", conditions=[{"field": "n", "operator": "gt", "value": 10}]),
            spec("add_system_prompt", prompt="be brief"),
        ]
    )
    rows = list(itertools.islice(parse_rows(apply_transforms(endless(), transforms)), 3))
    assert [type(row) for row in rows] == [ChatMessagesRow] * 3
    assert rows[0].messages[0] == {"role": "system", "content": "be brief"}


def test_nothing_is_read_before_a_row_is_requested() -> None:
    def untouchable() -> Iterator[Row]:
        raise AssertionError("read too early")
        yield {}

    apply_transforms(untouchable(), build_transforms([spec("shuffle"), spec("dedupe")]))


def test_a_transform_has_no_memory_of_an_earlier_pass() -> None:
    transforms = build_transforms([spec("dedupe"), spec("sample", n=3), spec("shuffle")])
    first = list(apply_transforms(ROWS, transforms))
    assert list(apply_transforms(ROWS, transforms)) == first
    assert len(first) == 3


@pytest.mark.parametrize("style", ["list", "generator", "twice", "length", "index", "sorted"])
def test_a_transform_may_treat_rows_as_a_list_or_as_a_stream(style: str) -> None:
    @register_transform("mine")
    class Mine:
        def __call__(self, rows: Any) -> Any:
            match style:
                case "list":
                    return [row for row in rows if row["n"] > 2]
                case "generator":
                    return (row for row in rows if row["n"] > 2)
                case "twice":
                    rows = list(rows)
                    return [row for row in rows if row["n"] > len(rows) // 2]
                case "length":
                    return [rows[index] for index in range(len(rows)) if index > 2]
                case "index":
                    return [rows[3], *(row for row in rows if row["n"] == 4)]
                case _:
                    return sorted(rows, key=lambda row: row["n"])[3:]

    assert Mine
    assert run(iter(ROWS), spec("mine"), spec("identity")) == [{"n": 3}, {"n": 4}]


def mine(function: Any) -> TransformSpec:
    """A transform that does what the function does."""

    @register_transform("mine")
    class Mine:
        def __call__(self, rows: Any) -> Any:
            return function(rows)

    assert Mine
    return spec("mine")


def failing_list(rows: Iterable[Row]) -> list[Row]:
    return [{"x": 1 // (2 - row["n"])} for row in rows]


def failing_stream(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        yield {"x": row["missing"] if row["n"] == 2 else 1}


def failing_at_the_end(rows: Iterable[Row]) -> list[Row]:
    items = list(rows)
    raise ValueError(f"{len(items)} rows are too few")


@pytest.mark.parametrize(
    ("function", "says", "cause"),
    [
        (
            failing_list,
            "transform 'mine', row 3: ZeroDivisionError: integer division or modulo by zero",
            ZeroDivisionError,
        ),
        (failing_stream, "transform 'mine', row 3: KeyError: no key 'missing'", KeyError),
        (failing_at_the_end, "transform 'mine': ValueError: 5 rows are too few", ValueError),
    ],
)
def test_an_exception_names_the_transform_and_the_row_where_it_is_known(function: Any, says: str, cause: type) -> None:
    error = failure(ROWS, spec("identity"), mine(function), spec("identity"))
    assert str(error) == says
    assert isinstance(error.__cause__, cause)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda rows: None, "it returned None instead of rows. Return the rows, or use yield"),
        (lambda rows: 7, "it returned 7 instead of rows"),
        (lambda rows: {"a": 1}, "it returned {'a': 1} instead of rows"),
        (lambda rows: [None for _ in rows], "it put out None, which is not a row. Leave a row out"),
        (lambda rows: ["text" for _ in rows], "it put out 'text', which is not a row"),
        (lambda rows: rows.sort(), "rows is a stream and has no 'sort'. Write 'rows = list(rows)' first"),
        (lambda rows: [rows[5]], "IndexError: list index out of range"),
        (lambda rows: [*map(dict, rows), *map(dict, rows)], "it reads its rows twice. Write 'rows = list(rows)'"),
    ],
)
def test_a_transform_that_gives_no_rows_is_reported(function: Any, says: str) -> None:
    message = str(failure(ROWS, mine(function)))
    assert message.startswith("transform 'mine'")
    assert says in message


def test_a_failure_before_a_transform_is_not_its_fault() -> None:
    def broken() -> Iterator[Row]:
        yield {"n": 1}
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        run(broken(), mine(lambda rows: list(rows)), spec("identity"))
    error = failure(ROWS, mine(failing_list), spec("shuffle"), spec("sample", fraction=1))
    assert str(error).count("transform") == 1


def test_interruption_passes_through() -> None:
    def interrupted() -> Iterator[Row]:
        raise KeyboardInterrupt
        yield {}

    with pytest.raises(KeyboardInterrupt):
        run(interrupted(), mine(lambda rows: list(rows)))


def test_typed_rows_from_a_transform_are_welcome() -> None:
    typed = ChatMessagesRow([{"role": "user", "content": "hi"}])
    rows = run([{}], mine(lambda rows: [typed for _ in rows]), spec("add_system_prompt", prompt="p"))
    assert list(parse_rows(rows)) == [
        ChatMessagesRow([{"role": "system", "content": "p"}, {"role": "user", "content": "hi"}])
    ]


class Config(BaseModel):
    fail_at: int = 99


class Stepwise(RowTransform[Config]):
    """Drops odd rows, and fails on request."""

    Config = Config

    def row(self, row: Row) -> Any:
        if row["n"] == self.cfg.fail_at:
            raise DataError("this row is bad")
        return [row] if row["n"] == self.cfg.fail_at + 1 else row if row["n"] % 2 == 0 else None


def test_a_row_transform_of_your_own_may_drop_rows_and_its_failures_are_placed() -> None:
    register_transform("stepwise")(Stepwise)
    assert run(ROWS, spec("stepwise")) == [{"n": 0}, {"n": 2}, {"n": 4}]
    assert str(failure(ROWS[:4], spec("stepwise", fail_at=3))) == "transform 'stepwise', row 4: this row is bad"
    assert "are refused: this row is bad: row 4; " in str(failure(ROWS, spec("stepwise", fail_at=3)))
    message = str(failure(ROWS, spec("stepwise", fail_at=-1)))
    assert (
        message
        == "transform 'stepwise', row 1: it put out [{'n': 0}], which is not a row. Put out dicts or typed rows."
    )


def test_a_subclass_with_its_own_call_is_guarded_like_any_other() -> None:
    @register_transform("both")
    class Both(RowTransform[NoParams]):
        Config = NoParams

        def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
            yield from (1 // row["n"] for row in rows)  # type: ignore[misc]

    assert Both
    assert str(failure(ROWS, spec("both"))).startswith("transform 'both', row 1: ZeroDivisionError")
