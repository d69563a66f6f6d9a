"""Configs that must pass: they look unusual, or like one of the mistakes, and are right."""

from __future__ import annotations

from typing import Any

from .project import (
    BENCH,
    CLAIM,
    COMBO,
    CONTINUAL,
    DPO,
    EVAL,
    LOCAL,
    MATRIX,
    RL,
    RUNS,
    SDFT,
    SFT,
    TO_CHAT,
    TO_TASK,
    Config,
    assistant,
    change,
    user,
)

_FILTER: Config = {
    "kind": "filter",
    "params": {"conditions": [{"field": "tool", "operator": "eq", "value": "weather"}]},
}
_STOP: Config = {"kind": "early_stopping", "params": {"metric": "val/tools/pass@1", "mode": "max"}}
_PARAMS = "run.algorithm.params"
_TREND: Config = {
    "claim": "longer is better",
    "kind": "trend",
    "axis": "algorithm.params.max_steps",
    "metric": "final_loss",
    "direction": "decrease",
}


def _with(base: Config, **edits: Any) -> Config:
    return change(base, {path.replace("__", "."): value for path, value in edits.items()})


VALID: dict[str, Config] = {
    "sft": SFT,
    "eval": EVAL,
    "benchmark": BENCH,
    "rl": RL,
    "dpo": DPO,
    "sdft": SDFT,
    "combo": COMBO,
    "continual": CONTINUAL,
    "matrix": MATRIX,
    "runs": RUNS,
    "own_backend": LOCAL,
    "claim": CLAIM,
    "pinned_backend_without_its_block": _with(SFT, run__algorithm__kind="mock_sft", run__backend=None),
    "chats_without_transform": _with(SFT, run__data={"path": "data/chats.jsonl"}),
    "rows_in_the_file": _with(
        SFT, run__data={"source_kind": "in_memory", "rows": [{"messages": [user("a"), assistant("b")]}]}
    ),
    "json_list": _with(SFT, run__data__source_kind="json", run__data__path="data/rows.json"),
    "default_batch_larger_than_data": _with(SFT, run__data__path="data/few.jsonl"),
    "batch_of_all_rows": change(SFT, {f"{_PARAMS}.batch_size": 40}),
    "filter_then_chat": _with(SFT, run__data__transforms=[_FILTER, TO_CHAT]),
    "shuffle": _with(SFT, run__data__transforms=[{"kind": "shuffle"}, TO_CHAT]),
    "sample": _with(SFT, run__data__transforms=[{"kind": "sample", "params": {"n": 5}}, TO_CHAT]),
    "dedupe": _with(SFT, run__data__transforms=[{"kind": "dedupe"}, TO_CHAT]),
    "long_rows_are_skipped": change(SFT, {"run.data": {"path": "data/long.jsonl"}, f"{_PARAMS}.too_long": "skip"}),
    "long_rows_are_cut": change(SFT, {"run.data": {"path": "data/long.jsonl"}, f"{_PARAMS}.too_long": "truncate"}),
    "long_rows_in_a_long_context": change(
        SFT, {"run.data": {"path": "data/long.jsonl"}, "run.backend.params": {"context_length": 65536}}
    ),
    "long_rows_on_a_backend_of_ones_own": change(LOCAL, {"run.data": {"path": "data/long.jsonl"}}),
    "max_length_in_tokens_of_another_model": change(
        LOCAL, {"run.data": {"path": "data/long.jsonl"}, f"{_PARAMS}.max_length": 4096}
    ),
    "images_on_a_backend_of_ones_own": change(LOCAL, {"run.data": {"path": "data/image.jsonl"}}),
    "tasks_for_rl": _with(RL, run__data={"path": "data/tasks.jsonl"}),
    "rl_with_ones_own_agent": change(RL, {f"{_PARAMS}.agent_import_path": "agents:Agent"}),
    "rl_with_dotted_agent": change(RL, {f"{_PARAMS}.agent_import_path": "agents.Agent"}),
    "rl_with_named_agent": change(RL, {f"{_PARAMS}.agent": {"kind": "chat"}}),
    "rl_of_an_answer_in_a_tag": _with(
        RL, run__data__transforms=[TO_CHAT, {**TO_TASK, "params": {"params": {"answer_tag": "answer"}}}]
    ),
    "dpo_of_message_lists": _with(
        DPO,
        run__data={
            "source_kind": "in_memory",
            "rows": [{"prompt": [user("a")], "chosen": [assistant("b")], "rejected": [assistant("c")]}],
        },
    ),
    "combo_phases_share_rows": change(COMBO, {f"{_PARAMS}.phases.1": {"kind": "sft", "params": {"max_steps": 1}}}),
    "continual_with_scores": change(
        CONTINUAL,
        {
            "run.continual.stages.0.eval_data": {"path": "data/test.jsonl", "transforms": [TO_CHAT]},
            "run.eval": {"metrics": [{"kind": "exact_match"}]},
        },
    ),
    "continual_stage_params": change(CONTINUAL, {"run.continual.stages.1.params": {"batch_size": 10}}),
    "eval_on_training_rows": _with(EVAL, run__eval__eval_data=None),
    "eval_of_tasks": _with(EVAL, run__eval__eval_data={"path": "data/tasks.jsonl"}),
    "eval_of_some_rows": _with(EVAL, run__eval__n_samples=3),
    "eval_of_the_rows_before_a_bad_one": change(
        EVAL, {"run.eval.eval_data": {"path": "data/no_answer.jsonl"}, "run.eval.n_samples": 5}
    ),
    "eval_mean_reward": _with(EVAL, run__eval__metrics=[{"kind": "mean_reward"}]),
    "eval_switched_off": change(EVAL, {"run.eval.enabled": False, "run.eval.eval_data.path": "data/gone.jsonl"}),
    "success_is_final_loss": _with(SFT, metadata={"success_metric": {"name": "final_loss", "mode": "min"}}),
    "success_of_run_eval": _with(EVAL, metadata={"success_metric": "exact_match"}),
    "success_by_full_name": _with(EVAL, metadata={"success_metric": "eval/exact_match"}),
    "success_on_training_rows_by_name": change(
        EVAL, {"run.eval.eval_data": None, "metadata": {"success_metric": "train_fit/exact_match"}}
    ),
    "success_is_the_reward": _with(RL, metadata={"success_metric": "reward/mean"}),
    "success_by_benchmark": _with(CLAIM, metadata__success_metric="val/tools/pass@1"),
    "success_is_asked_of_the_benchmark": _with(BENCH, metadata__success_metric="mean_reward"),
    "success_of_several_samples": change(
        BENCH,
        {
            "metadata.benchmark.0.metrics": ["pass@1", "pass@4"],
            "metadata.benchmark.0.samples": 4,
            "metadata.success_metric": "pass@4",
        },
    ),
    "benchmark_breakdown": change(BENCH, {"metadata.benchmark.0.breakdown_keys": ["kind"]}),
    "benchmark_of_transformed_rows": change(
        BENCH, {"metadata.benchmark.0": {"name": "t", "path": "data/test.jsonl", "transforms": [TO_CHAT, TO_TASK]}}
    ),
    "base_model_as_baseline": change(
        CLAIM, {"metadata.hypothesis.baseline": "base", "metadata.benchmark.0.models": ["base"]}
    ),
    "baseline_of_the_parent": change(
        CLAIM, {"metadata.hypothesis.baseline": "old_best", "parent_experiment_id": "earlier-1234"}
    ),
    "baseline_is_a_cell": change(
        MATRIX,
        {"metadata": {"hypothesis": {"claim": "x", "baseline": "r__learning_rate0p1__seed1", "metric": "final_loss"}}},
    ),
    "trend": change(RUNS, {"metadata": {"hypothesis": _TREND}, "runs.1.algorithm.params.max_steps": 9}),
    "plain_hypothesis": _with(SFT, metadata={"hypothesis": "It learns."}),
    "selection_by_val": change(
        BENCH, {f"{_PARAMS}.selection_metric": "val/tools/pass@1", "metadata.benchmark.0.run_every": 1}
    ),
    "selection_by_loss": change(SFT, {f"{_PARAMS}.selection_metric": "loss", f"{_PARAMS}.selection_mode": "min"}),
    "early_stopping": change(BENCH, {"metadata.benchmark.0.run_every": 1, "callbacks": [_STOP]}),
    "callback_without_base_class": _with(SFT, callbacks=[{"kind": "own_bare"}]),
    "callbacks_of_the_sdk": _with(SFT, callbacks=[{"kind": "local_logger"}, {"kind": "print_progress"}]),
    "renderer_of_the_model": _with(SFT, run__model__renderer_name="chat_template"),
    "renderer_that_mock_does_not_use": _with(SFT, run__model__renderer_name="qwen3"),
    "checkpoint": _with(SFT, run__model__init_from_checkpoint="checkpoints/mock/state"),
    "checkpoint_on_a_service": change(LOCAL, {"run.model.init_from_checkpoint": "tinker://run/weights/1"}),
    "price_for_a_budget": change(
        LOCAL, {"budget": {"usd": 5, "prices": {"tiny": {"train": 1, "input": 1, "output": 1}}}}
    ),
    "cost_of_a_free_model": change(BENCH, {"metadata.benchmark.0.metrics": ["pass@1", "cost_per_task"]}),
    "axis_of_files": change(MATRIX, {"matrix.axes": {"data.path": ["data/train.jsonl", "data/test.jsonl"]}}),
    "axis_of_batches": change(MATRIX, {"matrix.axes": {"algorithm.params.batch_size": [8, 40]}}),
    "space": change(
        SFT, {"run": None, "base_run": SFT["run"], "search": {"kind": "random", "n": 2, "space": {"seed": [1, 2, 3]}}}
    ),
}
