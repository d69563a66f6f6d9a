/** The curves of an experiment: all runs, or the baseline and the best where there are too many to tell apart. */

import type { ExperimentDetail } from "../api/types";
import { CurvesFigure } from "../parts/CurvesFigure";
import { labelOf, runsOf, useRunColours } from "../parts/runs";

const MOST = 24;

export function CurvesTab({ detail }: { detail: ExperimentDetail }) {
  const colour = useRunColours(detail);
  const all = runsOf(detail.experiment);
  const many = all.length > MOST;
  const runs = many ? all.slice(0, MOST).map((run) => run.run) : [];
  const labels = Object.fromEntries(all.map((run) => [run.run, labelOf(run, detail.experiment.varied)]));
  return (
    <CurvesFigure
      id={detail.experiment.id}
      runs={runs}
      colour={colour}
      labels={labels}
      remark={many ? `The baseline and the first ${MOST - 1} of ${all.length} runs, as the conclusion ranks them.` : ""}
    />
  );
}
