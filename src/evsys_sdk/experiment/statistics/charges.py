"""Standard errors that reckon with erratic runs: what is charged where seeds, or company, say that a run is one.

Three seeds of one run say little about how far its next seed would lie, so the noise of all runs is pooled. That trusts
a run whose recipe is less stable than the others, and the baseline is in every difference. Two things tell on it. Its
own seeds may lie far apart; and an unlucky baseline lies far from all other runs at once, while of runs that are
better, most often one or two are. A baseline that is quiet by both is charged the noise of all runs. Otherwise runs are
charged what their own seeds say, with a margin, because few seeds hide much; a baseline that is worse than all others
for a reason is told apart from them that way, it only takes more.

The same arithmetic is used on what was measured (`two_level`) and on the drawn worlds that it is compared with
(`reference`): the last axis are the compared runs, any axis before it are worlds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

type Floats = npt.NDArray[np.floating]

_STRIKING = 1.75
"""From this ratio of its own seed variance to that of all runs together on, a run is taken to be erratic."""
_OUT_OF_LINE = 3.0
"""From this ratio of its variance, around the other runs, to theirs on, the baseline is."""
_PAIR = 1.25
"""Power of its own noise, in that of all runs, which one of two runs is charged where others have lent theirs."""
_MARGINS = {1: 1.5, 2: 1.4, 3: 1.2}
_LEAST_MARGIN = 1.07
"""By how much wider an interval gets where runs are judged by their own seeds; by seeds of the baseline, less one."""
_BEYOND_DOUBT = 1e9
"""A ratio from which on nothing changes any more; powers of it must stay numbers."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Everything that the standard errors of the differences to one baseline are made of."""

    tasks: Floats
    """Variance of each difference over the tasks that could have been asked."""
    pooled: Floats
    """Variance of the seeds of a run, over all runs."""
    quiet: Floats
    """The same without the baseline."""
    explained: Floats
    """The part of it that comes from the answers to single tasks."""
    of_runs: Floats
    """Variance of the seeds of each compared run; the pooled one where they do not tell."""
    of_baseline: Floats
    distance: Floats | None
    """Squared distance of the baseline from the mean of the other runs, in what luck explains; what is compared is not
    among them. None where there are no other ones."""
    shares: Floats
    """What the seeds of each run divide by: one over their number."""
    base_share: float
    base_df: int
    lent: bool
    """Whether other experiments have lent their noise."""


def standard_errors(spread: Spread) -> Floats:
    """Of each difference."""
    of_runs, of_baseline = (
        _compare(each, spread.pooled[..., None]) for each in (spread.of_runs, spread.of_baseline[..., None])
    )
    if spread.distance is None:
        own, base = charge_pair(of_runs, spread), charge_pair(of_baseline, spread)
        training = _training_luck(spread, own) * spread.shares + _training_luck(spread, base) * spread.base_share
        return np.sqrt(spread.tasks + training)
    plain = np.ones_like(spread.of_runs)
    runs = _training_luck(spread, charge_run(of_runs)) * spread.shares
    company = plain if spread.base_df < 1 else charge_in_company(spread, spread.distance)
    in_company = np.sqrt(spread.tasks + runs + _training_luck(spread, company) * spread.base_share)
    if spread.base_df < 1:
        return in_company
    own, base = np.maximum(plain, of_runs), np.maximum(plain, of_baseline)
    training = _training_luck(spread, own) * spread.shares + _training_luck(spread, base) * spread.base_share
    # A baseline that is bad for a reason lies out of line, too: judged by its company alone, nothing could beat it.
    return np.minimum(in_company, _MARGINS.get(spread.base_df, _LEAST_MARGIN) * np.sqrt(spread.tasks + training))


def _compare(variance: Floats, usual: Floats) -> Floats:
    """How many times the usual one a variance is; runs without any noise make it large, and never infinite."""
    return np.minimum(variance / np.maximum(usual, 1e-300), _BEYOND_DOUBT)


def _training_luck(spread: Spread, times: Floats) -> Floats:
    """The luck of training in the score of one seed, where it is charged so many times the pooled variance."""
    return np.maximum(times * spread.pooled[..., None] - spread.explained[..., None], 0.0)


def charge_pair(ratio: Floats, spread: Spread) -> Floats:
    """How many times the pooled variance each of two runs is charged.

    The two alone cannot tell which of them is erratic: the variance of their difference is the same either way, and how
    wide its interval must be is left to the reference. Noise that was lent tells.
    """
    return np.maximum(1.0, ratio) ** _PAIR if spread.lent else np.ones_like(ratio)


def charge_run(ratio: Floats) -> Floats:
    """How many times the pooled variance a run is charged, by the ratio of its own to the pooled one.

    Three seeds often lie somewhat further apart than usual by chance; what is striking is taken at more than its word.
    """
    return np.where(ratio > _STRIKING, ratio * (ratio / _STRIKING), ratio.dtype.type(1.0))


def charge_in_company(spread: Spread, distance: Floats) -> Floats:
    """The same for the baseline, by how far its seeds lie from the other runs: each counts, and so does their mean."""
    # Against the noise of the others: in the pooled one, an erratic baseline would be measured by itself.
    own = _compare(spread.of_baseline, spread.quiet)[..., None]
    # The distance is one more degree of freedom, which tells most where seeds are few.
    ratio = (spread.base_df * own + distance) / (spread.base_df + 1)
    # So steep that what its own seeds say, with the margin, soon is the narrower interval and takes over.
    return np.clip(ratio / _OUT_OF_LINE, 1.0, _BEYOND_DOUBT) ** 4
