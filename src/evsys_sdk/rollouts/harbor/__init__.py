"""Rollouts as trials of Harbor: its task folders, its agents, its environments, with our policy and our verifiers.

    from evsys_sdk.rollouts.harbor.engine import HarborEngine

    engine = HarborEngine(EngineLimits(concurrency=32))
    rollouts = await engine.run([RolloutRequest(task, sample=0, policy=policy, harness=harness, verify=verify)])

`engine.py` has the engine, `task_folder.py` reads tasks in Harbor's format, and the bridges are what Harbor itself
makes, by their import path. Harbor is an optional extra: nothing imports it before an engine has work to do.
"""
