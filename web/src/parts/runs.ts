/** How runs are named and coloured, the same on every plot of an experiment. */

import { useMemo } from "react";

import type { ExperimentDetail, Run } from "../api/types";
import { shortPath, value } from "../format";
import { colours } from "../colours";
import { useTheme } from "../theme";

/** What tells a run from the others: the settings in which they differ, else its name. */
export function labelOf(run: Run, varied: string[]): string {
  if (!varied.length || varied.length > 3) return run.run;
  return varied.map((path) => `${shortPath(path)} ${value(run.varied[path])}`).join(", ");
}

export function useRunColours(detail: ExperimentDetail): (run: string) => string {
  const theme = useTheme();
  const names = detail.runs.map((run) => run.run);
  return useMemo(() => colours(names, detail.baseline, theme), [names.join("\n"), detail.baseline, theme]);
}
