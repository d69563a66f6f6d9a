/** What an experiment took, where it comes from, and what a continual run kept. */

import { useArm, useLineage, useSpend } from "../api/queries";
import type { ExperimentDetail, RunView, SpendPart } from "../api/types";
import { compact, duration, usd } from "../format";
import { useSetting } from "../location";
import { Answer, Choose, Empty } from "../parts/basics";
import { labelOf, runsOf, useRunColours } from "../parts/runs";
import { Figure } from "../plots/Figure";
import { LineageMap } from "../plots/LineageMap";
import { Retention, retentionOf } from "../plots/Retention";
import { frontier, Scatter, type Point } from "../plots/Scatter";

const tokensOf = (spend: { [name: string]: number }) => (spend["tokens_trained"] ?? 0) + (spend["tokens_sampled"] ?? 0);

export function CostTab({ detail }: { detail: ExperimentDetail }) {
  const query = useSpend(detail.experiment.id);
  return (
    <Answer query={query}>
      {(spend) => (
        <div className="halves">
          <Pareto detail={detail} />
          <Lines title="By arm" lines={spend.by_arm.slice(0, 200)} />
        </div>
      )}
    </Answer>
  );
}

/** Score over cost; the line joins the runs that nothing beats on both. */
function Pareto({ detail }: { detail: ExperimentDetail }) {
  const colour = useRunColours(detail);
  const runs = runsOf(detail.experiment);
  const money = runs.some((run) => run.spend["usd"]);
  const cost = (run: RunView) => (money ? (run.spend["usd"] ?? 0) : tokensOf(run.spend)) / Math.max(1, run.n_seeds);
  const points: Point[] = runs.flatMap((run) =>
    run.score === null
      ? []
      : [{ id: run.run, label: labelOf(run, detail.experiment.varied), x: cost(run), y: run.score, low: run.low, high: run.high, colour: colour(run.run) }],
  );
  if (points.length < 2) return <Empty title="No trade-off to show">It takes two scored runs to compare what a score costs.</Empty>;
  const best = frontier(points, detail.experiment.mode);
  return (
    <Figure title={`${detail.experiment.metric || "score"} and what it costs`} data={() => [["run", money ? "usd per seed" : "tokens per seed", "score", "low", "high"], ...points.map((one) => [one.id, one.x, one.y, one.low, one.high])]}>
      <Scatter points={points} joined={best} xLabel={money ? "USD per seed" : "tokens per seed"} yLabel={detail.experiment.metric || "score"} xText={money ? usd : compact} />
      <p className="small quiet">The line joins the runs that no other beats in both score and cost.</p>
    </Figure>
  );
}

function Lines({ title, lines }: { title: string; lines: SpendPart[] }) {
  const known = (name: string) => lines.some((line) => line.spend[name]);
  const columns = [
    ["usd", "USD", (it: number) => usd(it)],
    ["tokens_trained", "trained", compact],
    ["tokens_sampled", "sampled", compact],
    ["wall_s", "time", duration],
    ["gpu_s", "GPU time", duration],
  ].filter(([name]) => known(name as string)) as [string, string, (it: number) => string][];
  if (!lines.length || !columns.length) return null;
  return (
    <Figure title={title} data={() => [["name", ...columns.map(([name]) => name)], ...lines.map((line) => [line.name, ...columns.map(([name]) => line.spend[name])])]}>
      <div className="scroll-x" tabIndex={0} role="group" aria-label={title}>
        <table>
          <thead>
            <tr>
              <th>{title.replace("By ", "")}</th>
              {columns.map(([name, word]) => (
                <th key={name} className="number">
                  {word}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {lines.filter((line) => columns.some(([name]) => line.spend[name])).map((line) => (
              <tr key={line.name}>
                <td>{line.name}</td>
                {columns.map(([name, , format]) => (
                  <td key={name} className="number">
                    {line.spend[name] === undefined ? "" : format(line.spend[name])}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Figure>
  );
}

export function LineageTab({ id }: { id: string }) {
  const query = useLineage(id);
  return <Answer query={query}>{(lineage) => <LineageMap lineage={lineage} self={id} />}</Answer>;
}

export function RetentionTab({ detail }: { detail: ExperimentDetail }) {
  const arms = detail.experiment.arms.map((arm) => arm.arm);
  const [arm, setArm] = useSetting("arm", arms[0] ?? "");
  const query = useArm(detail.experiment.id, arm);
  return (
    <Answer query={query}>
      {(found) => {
        const matrices = retentionOf(found.checkpoints);
        return (
          <div className="stack">
            {arms.length > 1 && <Choose label="arm" value={arm} options={arms} onChange={setArm} />}
            {matrices.map((matrix) => (
              <Figure
                key={matrix.metric}
                title={`${matrix.metric} on each stage, after each stage`}
                data={() => [["after", ...matrix.stages], ...matrix.after.map((after) => [after, ...matrix.stages.map((on) => matrix.cell(after, on))])]}
              >
                <Retention matrix={matrix} />
                <p className="small quiet">Down a column: what is left of a stage as later ones are learned.</p>
              </Figure>
            ))}
            {!matrices.length && <Empty title="No stage has been scored yet" />}
          </div>
        );
      }}
    </Answer>
  );
}
