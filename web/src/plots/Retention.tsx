/** What is left of earlier stages: after which stage (rows), on which stage (columns). */

import type { Dict } from "../api/types";
import { score } from "../format";
import { rewardColour } from "../colours";

export interface RetentionMatrix {
  metric: string;
  stages: string[];
  after: string[];
  cell: (after: string, on: string) => number | null;
}

/** The matrices in the checkpoints of a run, one for each metric. */
export function retentionOf(checkpoints: Dict[]): RetentionMatrix[] {
  const found = new Map<string, Map<string, number>>();
  const stages: string[] = [];
  for (const checkpoint of checkpoints) {
    const metrics = checkpoint["metrics"];
    if (!metrics || typeof metrics !== "object" || Array.isArray(metrics)) continue;
    for (const [key, value] of Object.entries(metrics)) {
      const [word, after, on, ...rest] = key.split("/");
      if (word !== "retention" || !after || !on || typeof value !== "number") continue;
      if (!stages.includes(after)) stages.push(after);
      const matrix = found.get(rest.join("/")) ?? new Map<string, number>();
      matrix.set(`${after}/${on}`, value);
      found.set(rest.join("/"), matrix);
    }
  }
  return [...found].map(([metric, cells]) => ({
    metric,
    stages,
    after: stages,
    cell: (after, on) => cells.get(`${after}/${on}`) ?? null,
  }));
}

export function Retention({ matrix }: { matrix: RetentionMatrix }) {
  return (
    <div className="scroll-x" tabIndex={0} role="group" aria-label={`retention of ${matrix.metric}`}>
      <table className="matrix" style={{ width: "auto" }}>
        <caption className="hidden">{matrix.metric} on each stage, after each stage</caption>
        <thead>
          <tr>
            <td className="small quiet">after ↓ on →</td>
            {matrix.stages.map((stage) => (
              <th key={stage} scope="col">
                {stage}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {matrix.after.map((after) => (
            <tr key={after}>
              <th scope="row">{after}</th>
              {matrix.stages.map((on) => {
                const value = matrix.cell(after, on);
                return (
                  <td key={on} style={value === null ? {} : { background: rewardColour(value * 0.4) }}>
                    {value === null ? "" : score(value)}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
