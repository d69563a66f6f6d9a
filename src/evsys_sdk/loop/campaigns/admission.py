"""Decide whether an experiment may start under its campaign; `evsys run` calls it before anything is spent."""

from __future__ import annotations

from ...config import ExperimentConfig
from ...errors import EvsysError
from ...experiment.parents import latest_attempt
from ...experiment.plan.plan import ExperimentPlan, plan_experiment
from ...experiment.plan.plan_hash import hash_plan
from ...history.campaigns.campaign import Campaign, build_campaign, campaign_of, load_campaign
from ...history.campaigns.progress import OPEN, CampaignProgress, measure_progress
from ...record.approvals import APPROVED, request_approval
from ...record.events import Kind
from ...record.project_files.journals import campaign_dir, change_campaign
from ...record.reader import ExperimentRecord


class CampaignRefusal(EvsysError):
    """A campaign refuses to start an experiment."""

    exit_code = 3


def admit(config: ExperimentConfig) -> int | None:
    """Admit an experiment to its campaign and return the admission number; raise `CampaignRefusal` with the reason.

    Returns None without a campaign, and for an unfinished experiment, which was admitted when it first started.
    """
    name = campaign_of(config)
    if name is None:
        return None
    load_campaign(name)
    latest = latest_attempt(config)
    goes_on = latest is not None and not ExperimentRecord(latest).is_finished
    # Planning reads the rows and may take a while, so it comes before the lock.
    plan, plan_id = plan_experiment(config), hash_plan(config)
    with change_campaign(name) as (events, journal):
        campaign = build_campaign(name, events)
        if goes_on and not campaign.closed:
            return None
        # Measured and recorded under one lock, so that a second agent sees the budget reserved by the first.
        _refuse(campaign, measure_progress(campaign), plan, plan_id, config.name)
        needs = {"tokens": plan.total.tokens, "usd": plan.total.usd or 0.0}
        journal.append(Kind.CAMPAIGN_ADMITTED, experiment=config.name, plan=plan_id, **needs)
        return len(campaign.admissions) + 1


def _refuse(
    campaign: Campaign, progress: CampaignProgress, plan: ExperimentPlan, plan_id: str, experiment: str
) -> None:
    name, needed = campaign.name, plan.total.tokens
    if progress.state != OPEN:
        raise CampaignRefusal(
            f"the campaign '{name}' is {progress.state}: {progress.why}. Report what it has shown: "
            f"evsys campaign show {name}"
        )
    left = progress.left
    if "tokens" in left and needed > left["tokens"]:
        raise CampaignRefusal(
            f"the campaign '{name}' has {left['tokens']:,.0f} tokens left, and this may take {needed:,}. "
            "Plan something smaller."
        )
    if "usd" in left and (plan.total.usd is None or plan.total.usd > left["usd"]):
        takes = "an amount that is not known" if plan.total.usd is None else f"{plan.total.usd:,.2f}"
        raise CampaignRefusal(
            f"the campaign '{name}' has {left['usd']:,.2f} usd left, and this may take {takes}. Plan something smaller."
        )
    require_approval(campaign, plan, plan_id, experiment)


def require_approval(campaign: Campaign, plan: ExperimentPlan, plan_id: str, experiment: str) -> None:
    """Raise and request approval if a plan exceeds the campaign's token limit for unapproved experiments."""
    above, needed, name = campaign.terms.approve_tokens, plan.total.tokens, campaign.name
    approval = campaign.approvals.get(plan_id)
    if above is not None and needed > above and (approval is None or approval.state != APPROVED):
        request_approval(campaign_dir(name), plan_id, about=f"{experiment} may take {needed:,} tokens")
        raise CampaignRefusal(
            f"this may take {needed:,} tokens, and above {above:,} the campaign '{name}' needs human approval. "
            f"Ask for: evsys approve campaign:{name} {plan_id} --by NAME"
        )
