"""A roll-out in stages: who answers which requests, and what live scores do about it."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.deploy.catalog import DeployedModels
from evsys_sdk.deploy.deployments import Deployment, Deployments, Staged
from evsys_sdk.deploy.policy import GatePolicy, RolloutPolicy
from evsys_sdk.deploy.rollout import RolloutStep, judge_shadow, judge_stage, take_step
from evsys_sdk.deploy.ship import roll_back, ship
from evsys_sdk.deploy.source import find_source
from evsys_sdk.errors import DataError
from evsys_sdk.record.project_files.journals import broken_promotions

STAGED = Staged("production.2", 0.05, 0.0)


@pytest.fixture
def staged(trained: Path) -> Path:
    source = find_source("routing")
    ship(source, "openai_server", name="production")
    ship(source, "openai_server", name="production", share=0.25)
    return trained


def make_policy(**rollout: object) -> GatePolicy:
    return GatePolicy.model_validate({"target": {"metric": "test/x/pass@1"}, "rollout": rollout})


@dataclass
class Told:
    """Scores that are simply told."""

    scores: dict[str, list[float]]
    by_pair: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def of(self, deployment: Deployment, since: float) -> list[float]:
        return self.scores[deployment.id]

    def pairs(self, candidate: Deployment, live: Deployment, since: float) -> list[tuple[float, float]]:
        assert (candidate.id, live.id) == ("production.2", "production.1")
        return self.by_pair


def step(candidate: float, live: float, n: int = 200, **rollout: object) -> RolloutStep:
    scores = {"production.2": [candidate] * n, "production.1": [live] * n}
    return take_step("production", make_policy(**rollout), Told(scores))


def test_a_share_of_the_askers_gets_the_new_weights_and_stays_with_them(staged: Path) -> None:
    models = DeployedModels()

    def version(asker: str) -> str:
        offer = models.find("production", asker)
        assert offer is not None
        return offer.version

    first = {f"user {n}": version(f"user {n}") for n in range(2000)}
    assert 0.2 < Counter(first.values())["production.2"] / 2000 < 0.3
    assert {asker: version(asker) for asker in first} == first
    anonymous = Counter(version("") for _ in range(400))
    assert anonymous["production.1"] > anonymous["production.2"] > 0
    assert step(1.0, 0.5, stages=[0.25, 0.5]).action == "next"
    moved = {asker: version(asker) for asker in first}
    assert all(moved[asker] == "production.2" for asker, had in first.items() if had == "production.2")


def test_better_scores_lead_through_the_stages_to_all_requests(staged: Path) -> None:
    seen = [step(0.9, 0.5, stages=[0.25, 0.5]) for _ in range(2)]
    assert [(one.action, one.share) for one in seen] == [("next", 0.5), ("next", 1.0)]
    known = Deployments.read()
    assert (known.live, known.staged) == ({"production": "production.2"}, {})
    with pytest.raises(DataError, match="nothing answers a share"):
        step(0.9, 0.5)
    assert broken_promotions() == []


def test_worse_scores_take_it_back_and_nobody_gets_it_any_more(staged: Path) -> None:
    assert step(0.2, 0.9).action == "back"
    known = Deployments.read()
    assert (known.live, known.staged) == ({"production": "production.1"}, {})
    assert "it is worse" in known.rollbacks[-1].reason
    offers = {(offer.version if (offer := DeployedModels().find("production")) else "") for _ in range(50)}
    assert offers == {"production.1"}


def test_a_person_can_take_it_back_too(staged: Path) -> None:
    back = roll_back("production", reason="complaints")
    assert back is not None
    assert back.id == "production.1"
    assert Deployments.read().staged == {}


def test_too_few_scores_wait_and_change_nothing(staged: Path) -> None:
    before = Path(".evsys/promotions.jsonl").read_bytes()
    waiting = step(1.0, 0.0, n=29)
    assert (waiting.action, waiting.n) == ("wait", 29)
    assert Path(".evsys/promotions.jsonl").read_bytes() == before


def test_it_does_not_matter_how_often_somebody_looks() -> None:
    policy, chance = RolloutPolicy(min_scores=10, margin=0.05), random.Random(0)
    for _ in range(20):
        candidate, live = ([float(chance.random() < 0.6) for _ in range(300)] for _ in range(2))
        seen = [judge_stage(STAGED, candidate[:n], live[:n], policy, 0.05) for n in range(1, 301)]
        decided = [one for one in seen if one.action != "wait"]
        assert len({(one.action, one.n) for one in decided}) <= 1


def test_a_candidate_that_is_much_worse_hardly_ever_goes_on() -> None:
    chance, wrong = random.Random(1), 0
    for _ in range(400):
        candidate = [float(chance.random() < 0.5) for _ in range(480)]
        live = [float(chance.random() < 0.6) for _ in range(480)]
        wrong += judge_stage(STAGED, candidate, live, RolloutPolicy(margin=0.1), 0.025).action == "next"
    assert wrong <= 20, "at the margin the rate of error is 2.5 %"


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_share_that_is_none_is_refused(staged: Path, share: float) -> None:
    with pytest.raises(DataError, match="above 0 and below 1"):
        ship(find_source("routing"), "openai_server", name="production", share=share)


def test_one_roll_out_at_a_time_and_none_of_them_is_gone_back_to(staged: Path) -> None:
    source = find_source("routing")
    with pytest.raises(DataError, match=r"production\.2 answers 25% of the requests"):
        ship(source, "openai_server", name="production", share=0.1)
    assert ship(source, "openai_server", name="production").id == "production.3"
    assert Deployments.read().staged == {}
    back = roll_back("production")
    assert back is not None
    assert back.id == "production.1", "production.2 never answered everybody"


def test_there_must_be_something_to_share_with(trained: Path) -> None:
    with pytest.raises(DataError, match="there is none"):
        ship(find_source("routing"), "openai_server", name="production", share=0.1)


def test_stages_must_grow() -> None:
    with pytest.raises(ValueError, match="must grow"):
        make_policy(stages=[0.5, 0.25])


def test_the_command_line_decides_by_imported_traces(staged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("gate.yaml").write_text("target: {metric: test/x/pass@1}\nrollout: {min_scores: 5, margin: 0.2}\n", "utf-8")
    assert main(["deployments", "list"]) == 0
    assert "answers 25% of the requests" in capsys.readouterr().out
    assert main(["deployments", "step", "production", "--policy", "gate.yaml", "--traces", "live", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["action"] == "wait"


@pytest.fixture
def shadowed(trained: Path) -> Path:
    source = find_source("routing")
    ship(source, "openai_server", name="production")
    ship(source, "openai_server", name="production", shadow=0.5)
    return trained


def follow(*pairs: tuple[float, float], times: int = 20, **rollout: object) -> RolloutStep:
    return take_step("production", make_policy(min_scores=20, **rollout), Told({}, list(pairs) * times))


def test_a_shadow_answers_nobody_and_hears_a_share_of_the_requests(shadowed: Path) -> None:
    models = DeployedModels()
    offers = [models.find("production", f"user {n}") for n in range(1000)]
    assert {one.version for one in offers if one} == {"production.1"}
    assert 0.4 < sum(one.shadow == "production.2" for one in offers if one) / 1000 < 0.6
    by_id = models.find("production.2")
    assert by_id is not None
    assert (by_id.version, by_id.shadow) == ("production.2", "")
    assert Deployments.read().live == {"production": "production.1"}


def test_a_shadow_that_does_as_well_gets_its_first_share(shadowed: Path) -> None:
    found = follow((1.0, 1.0), (0.0, 0.0), stages=[0.1, 0.5], margin=0.2)
    assert (found.action, found.share, found.n) == ("next", 0.1, 20)
    staged = Deployments.read().staged["production"]
    assert (staged.deployment, staged.share, staged.is_shadow) == ("production.2", 0.1, False)


def test_a_shadow_that_does_worse_is_gone_without_anyone_having_met_it(shadowed: Path) -> None:
    assert follow((0.0, 1.0), (1.0, 1.0)).action == "back"
    known = Deployments.read()
    assert (known.live, known.staged) == ({"production": "production.1"}, {})
    assert "on the same" in known.rollbacks[-1].reason


def test_pairs_tell_what_two_groups_cannot() -> None:
    chance = random.Random(3)
    easy = [float(chance.random() < 0.5) for _ in range(80)]  # tasks differ much, the two hardly
    pairs = [(max(0.0, one - 0.02), one) for one in easy]
    policy = RolloutPolicy(min_scores=80, margin=0.15)
    both = [one for one, _ in pairs], [other for _, other in pairs]
    assert judge_stage(STAGED, *both, policy, 0.025).action == "wait"
    assert judge_shadow(STAGED, pairs, policy, 0.025).action == "next"


def test_a_shadow_that_is_worse_by_the_margin_hardly_ever_goes_on() -> None:
    chance, wrong = random.Random(5), 0
    for _ in range(400):
        pairs = [(one - float(chance.random() < 0.1), one) for one in (1.0 for _ in range(480))]
        wrong += judge_shadow(STAGED, pairs, RolloutPolicy(margin=0.1), 0.025).action == "next"
    assert wrong <= 20, "at the margin the rate of error is 2.5 %"


def test_it_is_a_shadow_or_has_a_share(trained: Path) -> None:
    source = find_source("routing")
    ship(source, "openai_server", name="production")
    with pytest.raises(DataError, match="not both"):
        ship(source, "openai_server", name="production", share=0.5, shadow=0.5)
    for wrong in (0.0, 1.5, -1.0):
        with pytest.raises(DataError, match="above 0 and at most 1"):
            ship(source, "openai_server", name="production", shadow=wrong)
    ship(source, "openai_server", name="production", shadow=1.0)
    with pytest.raises(DataError, match=r"production\.2 shadows 100% of the requests"):
        ship(source, "openai_server", name="production", shadow=0.5)
    back = roll_back("production", reason="enough")
    assert back is not None
    assert back.id == "production.1"


def test_who_decided_meanwhile_is_not_overruled(shadowed: Path) -> None:
    class Slow(Told):
        def pairs(self, candidate: Deployment, live: Deployment, since: float) -> list[tuple[float, float]]:
            roll_back("production", reason="while the judge was thinking")
            return super().pairs(candidate, live, since)

    with pytest.raises(DataError, match="nothing answers a share"):
        take_step("production", make_policy(min_scores=20), Slow({}, [(1.0, 1.0)] * 100))
    assert Deployments.read().staged == {}
