/** How runs are named and coloured, the same on every plot of an experiment. */

import { useMemo } from "react";

import type { ArmView, ShownExperiment, ExperimentDetail, RunView } from "../api/types";
import { shortPath, value } from "../format";
import { colours } from "../colours";
import { useTheme } from "../theme";

/** The run that the others are compared with; the first one where none is named. */
export const baselineOf = (one: ShownExperiment): string => one.baseline || (one.arms[0]?.run ?? "");

/** The runs that have arms: the baseline first, then as the conclusion ranks them. */
export function runsOf(one: ShownExperiment): RunView[] {
  const [base, own] = [baselineOf(one), one.runs.filter((run) => run.n_arms > 0)];
  return [...own.filter((run) => run.run === base), ...own.filter((run) => run.run !== base)];
}

/** The seeds of a run. */
export const armsOf = (one: ShownExperiment, run: string): ArmView[] => one.arms.filter((arm) => arm.run === run);

/** What tells a run from the others: the settings in which they differ, else its name. */
export function labelOf(run: RunView, varied: string[]): string {
  if (!varied.length || varied.length > 3) return run.run;
  return varied.map((path) => `${shortPath(path)} ${value(run.varied[path])}`).join(", ");
}

export function useRunColours(detail: ExperimentDetail): (run: string) => string {
  const theme = useTheme();
  const [names, base] = [runsOf(detail.experiment).map((run) => run.run), baselineOf(detail.experiment)];
  return useMemo(() => colours(names, base, theme), [names.join("\n"), base, theme]);
}
