from evsys_sdk.config import ExperimentConfig
from evsys_sdk.experiment.arms.arm import expand_arms

RUN = {
    "name": "r",
    "data": {"path": "x.jsonl"},
    "model": {"name": "m"},
    "algorithm": {"kind": "sft"},
    "seed": 7,
}


def config(**more: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"name": "e", "run": RUN, **more})


def test_one_run_is_one_arm_under_its_own_name_and_seed() -> None:
    [arm] = expand_arms(config())
    assert (arm.name, arm.run.seed) == ("r", 7)


def test_repeats_differ_in_seed_and_name_only() -> None:
    arms = expand_arms(config(n_repeats=3))
    assert [(arm.name, arm.run.seed) for arm in arms] == [("r__seed7", 7), ("r__seed8", 8), ("r__seed9", 9)]
    same = {arm.run.model_copy(update={"name": "", "seed": 0}).model_dump_json() for arm in arms}
    assert len(same) == 1


def test_base_seed_replaces_the_seeds_of_the_runs() -> None:
    assert [arm.run.seed for arm in expand_arms(config(n_repeats=2, base_seed=100))] == [100, 101]


def test_a_matrix_is_repeated_cell_by_cell() -> None:
    matrix = {"base_run": RUN, "axes": {"algorithm.kind": ["sft", "dpo"]}}
    arms = expand_arms(ExperimentConfig.model_validate({"name": "e", "matrix": matrix, "n_repeats": 2}))
    assert [arm.name for arm in arms] == [
        "r__kindsft__seed7",
        "r__kindsft__seed8",
        "r__kinddpo__seed7",
        "r__kinddpo__seed8",
    ]
