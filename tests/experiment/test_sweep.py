from collections.abc import Callable

import pytest

from evsys_sdk import ConfigError, Experiment, ExperimentConfig, Sweep

type Config = Callable[..., ExperimentConfig]
RATES = {"algorithm.params.learning_rate": [0.001, 0.01]}


def test_a_sweep_is_a_matrix_over_the_single_run(config: Config) -> None:
    single = config()
    assert single.run is not None
    swept = Experiment(single, sweep=Sweep(RATES, name_template="{base}-{algorithm.params.learning_rate}"))
    base = single.run.model_dump(mode="json", exclude_unset=True)
    written = config(
        matrix={"base_run": base, "axes": RATES, "name_template": "{base}-{algorithm.params.learning_rate}"}
    )
    assert swept.config == Experiment(written).config
    assert [arm.name for arm in swept.arms] == ["r-0p001", "r-0p01"]


def test_equal_work_has_an_equal_id_whatever_it_is_called(config: Config) -> None:
    [first] = Experiment(config()).arms
    [same] = Experiment(config({"name": "other", "tags": ["x"]})).arms
    [other] = Experiment(config({"seed": 7})).arms
    assert first.id == same.id
    assert first.id != other.id


def test_a_sweep_over_several_runs_is_refused(config: Config) -> None:
    with pytest.raises(ConfigError, match="varies a single run"):
        Experiment(config(runs=[{"name": "a"}, {"name": "b"}]), sweep=Sweep(RATES))
