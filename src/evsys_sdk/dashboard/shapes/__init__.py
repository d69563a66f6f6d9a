"""What the read API answers: the same shapes from a project's own disk (`local.py`) and from a server's database.

A `run` is one entry of a config, an `arm` is a run with one seed. Times are seconds since 1970, spend is in the units
its keys name, and null means "not known", never zero. Text that a model, a person or a dataset wrote is data: show it
as plain text.
"""

from __future__ import annotations

from .experiment import (
    Arm,
    Claim,
    ControlRequest,
    Curves,
    Difference,
    Experiment,
    ExperimentDetail,
    Experiments,
    Item,
    Items,
    Live,
    NewControlRequest,
    NewNote,
    Note,
    Overview,
    Run,
    Series,
    Session,
)
from .record import (
    Comparison,
    ConfigDifference,
    DataEntries,
    DataEntry,
    DataRows,
    Edge,
    Event,
    Events,
    Lineage,
    MetricDifference,
    Node,
    Rollout,
    RolloutDetail,
    Rollouts,
    Spend,
    SpendLine,
)
from .shape import Problem, Scope, Shape

__all__ = [
    "Arm",
    "Claim",
    "Comparison",
    "ConfigDifference",
    "ControlRequest",
    "Curves",
    "DataEntries",
    "DataEntry",
    "DataRows",
    "Difference",
    "Edge",
    "Event",
    "Events",
    "Experiment",
    "ExperimentDetail",
    "Experiments",
    "Item",
    "Items",
    "Lineage",
    "Live",
    "MetricDifference",
    "NewControlRequest",
    "NewNote",
    "Node",
    "Note",
    "Overview",
    "Problem",
    "Rollout",
    "RolloutDetail",
    "Rollouts",
    "Run",
    "Scope",
    "Series",
    "Session",
    "Shape",
    "Spend",
    "SpendLine",
]
