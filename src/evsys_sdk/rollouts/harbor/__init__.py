"""Rollouts as Harbor trials: Harbor's task folders, agents and environments, with our policy and verifiers.

    from evsys_sdk.rollouts.harbor.engine import HarborEngine

    engine = HarborEngine(EngineLimits(concurrency=32))
    rollouts = await engine.run([RolloutRequest(task, sample=0, policy=policy, harness=harness, verify=verify)])

`engine.py` has the engine, `task_folder.py` reads tasks in Harbor's format, and Harbor instantiates the bridges by
import path. Harbor is an optional extra, imported only when an engine runs.
"""
