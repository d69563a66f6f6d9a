from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.training.batch import BatchOrder

orders = st.builds(BatchOrder, st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**62))


@given(orders)
def test_an_epoch_visits_every_example_once(order: BatchOrder) -> None:
    indices = [index for step in range(order.steps_per_epoch) for index in order.indices(step)]
    assert sorted(indices) == list(range(order.n_examples))


@given(orders, st.integers(0, 100))
def test_a_step_sees_the_same_examples_whenever_it_is_asked(order: BatchOrder, step: int) -> None:
    assert order.indices(step) == BatchOrder(order.n_examples, order.batch_size, order.seed).indices(step)


def test_epochs_and_seeds_differ_in_order() -> None:
    order = BatchOrder(50, 50, seed=1)
    assert order.indices(0) != order.indices(1)
    assert order.indices(0) != BatchOrder(50, 50, seed=2).indices(0)


def test_the_last_batch_of_an_epoch_may_be_smaller() -> None:
    order = BatchOrder(10, 4, seed=0)
    assert [len(order.indices(step)) for step in range(4)] == [4, 4, 2, 4]
    assert order.epoch(2) == 1.0
