"""Tasks of the real lm-eval as benchmarks; log-likelihoods equal those of its own model for transformers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import open_model
from evsys_sdk.cli.main import main
from evsys_sdk.data.task_source import build_task_source, locate_rows
from evsys_sdk.errors import DataError, EvalError
from evsys_sdk.eval.benchmark import Benchmark, ScoreSettings
from evsys_sdk.eval.lm_eval_model import open_lm
from evsys_sdk.eval.scored_model import SamplerModel, ScoredModel
from evsys_sdk.testing.foreign_suite_conformance import ForeignSuiteConformance, ScriptedModel

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs the extra lm-eval; run make test-lm-eval"),
    *(pytest.mark.filterwarnings(f"ignore:::{module}") for module in ("torch", "transformers", "datasets", "lm_eval")),
]
EXAMPLE = "examples/28_lm_eval"
ROOT = Path(__file__).parents[2]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{ data_files: {{ test: evals/docs.jsonl }} }}
test_split: test
doc_to_text: "{text}"
"""
CHOICE = 'output_type: multiple_choice\ndoc_to_choice: [" green", " red", " dark white"]\ndoc_to_target: color\n'
CHOICE += "metric_list: [{ metric: acc }, { metric: acc_norm }]\n"
WHOLE = "output_type: loglikelihood_rolling\ndoc_to_target: '{{text}}'\nmetric_list: [{ metric: word_perplexity }]\n"
GREEDY = (
    "output_type: loglikelihood\ndoc_to_target: ' {{text}}'\nmetric_list: [{ metric: acc }, { metric: perplexity }]\n"
)
GENERATED = "output_type: generate_until\ndoc_to_target: '{{text}}'\nmetric_list: [{ metric: exact_match }]\n"
GENERATED += "generation_kwargs: { until: ['\\n'], max_gen_toks: 8, do_sample: false }\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "evals"
    folder.mkdir()
    (tmp_path / ".evsys").mkdir()
    for example in (EXAMPLE, "examples/27_inspect"):
        shutil.copytree(ROOT / example, tmp_path / example)
    docs = [{"thing": f"thing {n}", "color": n % 3, "text": f"it is {n} and {n * n}"} for n in range(12)]
    (folder / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
    texts = {"choice": CHOICE, "whole": WHOLE, "greedy": GREEDY, "generated": GENERATED}
    for name, rest in texts.items():
        template = "" if name == "whole" else "Color of {{thing}}?"
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, text=template) + rest, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny Llama with random weights."""
    torch = pytest.importorskip("torch")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={one: number for number, one in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    folder = str(tmp_path_factory.mktemp("tiny"))
    PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|end|>", pad_token="<|end|>").save_pretrained(folder)
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.25}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=257, eos_token_id=256, bos_token_id=None, **shape)).save_pretrained(folder)
    return folder


@pytest.fixture
def ours(tiny: str) -> Iterator[Any]:
    with open_model(tiny, "local", device="cpu", dtype="float32", exact=True) as model:
        yield open_lm(model.client.sampler().result(), model.capabilities.context_length)


def evaluate(lm: Any, *tasks: str) -> dict[str, list[Any]]:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path="evals", include_defaults=False)
    result = simple_evaluate(lm, tasks=list(tasks), task_manager=manager, bootstrap_iters=0)
    return {name: [(one["doc_id"], one["resps"]) for one in found] for name, found in result["samples"].items()}


def numbers(found: list[Any]) -> list[float]:
    return [float(value[0] if isinstance(value, tuple) else value) for _, answers in found for [value] in answers]


def test_scores_equal_those_of_its_own_model_for_transformers(ours: Any, tiny: str) -> None:
    from lm_eval.models.huggingface import HFLM

    theirs = HFLM(pretrained=tiny, device="cpu", dtype="float32", batch_size=1)
    mine, expected = (evaluate(lm, "choice", "whole", "greedy", "generated") for lm in (ours, theirs))
    assert len(numbers(mine["choice"])) == 36
    assert len(set(numbers(mine["choice"]))) > 30
    for name in ("choice", "whole", "greedy"):
        assert numbers(mine[name]) == pytest.approx(numbers(expected[name]), abs=1e-4), name
    assert [one[1][0][0][1] for one in mine["greedy"]] == [one[1][0][0][1] for one in expected["greedy"]]
    assert mine["generated"] == expected["generated"]


def test_a_continuation_that_the_model_would_write_is_greedy(ours: Any) -> None:
    from lm_eval.api.instance import Instance

    fields = {"request_type": "generate_until", "doc": {}, "idx": 0, "arguments": ("abc", {"max_gen_toks": 3})}
    [written] = ours.generate_until([Instance(**fields)])
    pairs = [Instance("loglikelihood", {}, ("abc", text), 0) for text in (written, "\x01\x01\x01")]
    assert [is_greedy for _, is_greedy in ours.loglikelihood(pairs)] == [True, False]


def mock_model() -> Any:
    return open_model("tiny", "mock")


class TestConformance(ForeignSuiteConformance):
    path = "lm_eval:choice?include=evals"
    samples = 1

    @pytest.fixture(autouse=True)
    def models(self) -> Iterator[None]:
        with mock_model() as model:
            texts = ((" green", " red", " dark white")[n % 3] for n in range(12))
            rows = [(model.tokenizer.encode(f"Color of thing {n}?"), text) for n, text in enumerate(texts)]
            self._wrong = SamplerModel(model.base._sampler().result(), model._renderer, 512, "before")
            for _ in range(60):
                model.train(rows, learning_rate=0.01)
            self._right = SamplerModel(model.client.sampler().result(), model._renderer, 512, "after")
            yield

    def right_model(self) -> ScoredModel:
        return self._right

    def wrong_model(self) -> ScoredModel:
        return self._wrong

    def failing_model(self, task: str) -> ScoredModel:
        return ScriptedModel("answers only", {})


def test_documents_are_tasks_with_the_right_choice() -> None:
    first, second, *_ = build_task_source("lm_eval:choice?include=evals").make_rows()
    assert (first["task_id"], first["instruction"]) == ("choice/0", "Color of thing 0?")
    assert second["verifier"]["expected"] == "red"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("lm_eval:missing_task?include=evals", "missing_task"),
        ("lm_eval:choice?include=nowhere", "no task files"),
        ("lm_eval:choice?include=evals&limit=3", "no param 'limit'"),
    ],
)
def test_wrong_paths_are_errors_that_name_them(path: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        locate_rows(path)
    assert path in str(caught.value)
    assert message in str(caught.value)


def test_a_metric_that_is_no_number_is_refused() -> None:
    benchmark = Benchmark.load(path=locate_rows("lm_eval:whole?include=evals"))
    with mock_model() as model:
        subject = SamplerModel(model.client.sampler().result(), model._renderer, 512, "m")
        with pytest.raises(EvalError, match="Name another metric"):
            benchmark.score(subject, ScoreSettings(metrics=("mean_reward",)))


def test_the_example_runs_and_its_gate_allows_a_canary_that_did_not_get_worse(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", f"{EXAMPLE}/canary.yaml", "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["metrics"]["test/colors/pass@1"] > 0.9
    assert 0 < run["metrics"]["test/canary/mean_reward"] < 1
    policy = f"{EXAMPLE}/gate.yaml"
    assert main(["gate", "lm_eval", "--against", "base", "--policy", policy, "--json"]) == 0
    Path("strict.yaml").write_text(
        Path(policy).read_text(encoding="utf-8").replace("margin: 0.25", "margin: 0.001"), encoding="utf-8"
    )
    capsys.readouterr()
    assert main(["gate", "lm_eval", "--against", "base", "--policy", "strict.yaml", "--json"]) == 2
    assert "canary" in capsys.readouterr().out
