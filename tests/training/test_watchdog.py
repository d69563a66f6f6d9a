import math

import pytest

from evsys_sdk.errors import TrainingError
from evsys_sdk.training.watchdog import Watchdog


@pytest.mark.parametrize("metrics", [{"loss": math.nan}, {"loss": math.inf}, {"loss": 1.0, "grad_norm": math.nan}])
def test_a_number_that_is_not_finite_stops_the_run(metrics: dict[str, float]) -> None:
    with pytest.raises(TrainingError, match=r"at step 7.*learning_rate"):
        Watchdog().check_step(7, metrics)


def test_a_loss_that_stays_far_above_its_best_stops_the_run() -> None:
    dog = Watchdog(exploding_factor=10, patience=3)
    for step, loss in enumerate([2.0, 1.0, 11.0, 12.0]):
        dog.check_step(step, {"loss": loss})
    with pytest.raises(TrainingError, match=r"exploded: 13 at step 4 after a best of 1"):
        dog.check_step(4, {"loss": 13.0})


def test_a_single_spike_is_forgiven() -> None:
    dog = Watchdog(exploding_factor=10, patience=2)
    for loss in [1.0, 50.0, 1.0, 50.0, 1.0]:
        dog.check_step(0, {"loss": loss})
    assert dog.state()["exploded"] == 0


def test_tiny_losses_may_jump() -> None:
    dog = Watchdog(exploding_factor=20, patience=1)
    for loss in [1e-6, 0.5]:
        dog.check_step(0, {"loss": loss})
    assert dog.state()["best"] == 1e-6


def test_empty_batches_in_a_row_stop_the_run_and_a_full_one_resets_the_count() -> None:
    dog = Watchdog(max_empty_batches=2)
    dog.check_empty(1)
    dog.check_step(2, {"loss": 1.0})
    dog.check_empty(3)
    with pytest.raises(TrainingError, match=r"2 batches in a row up to step 4"):
        dog.check_empty(4)


def test_a_resumed_watchdog_remembers() -> None:
    dog = Watchdog()
    for loss in [1.0, 30.0]:
        dog.check_step(0, {"loss": loss})
    again = Watchdog()
    again.restore(dog.state())
    assert again.state() == dog.state() == {"exploded": 1, "empty": 0, "best": 1.0}
