/** The runs of an experiment as a table: the baseline stays on top, and only what differs has a column. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef, useState } from "react";

import type { ShownExperiment, ExperimentDetail, RunView } from "../api/types";
import { interval, score, shortPath, show, signed, spend, value } from "../format";
import { useKeys } from "../keys";
import { href, navigate, useSettings } from "../location";
import { Choose, Empty, Score } from "../parts/basics";
import { State } from "../parts/marks";
import { armsOf, runsOf, useRunColours } from "../parts/runs";
import { Figure } from "../plots/Figure";
import { SeedDots } from "../plots/Forest";
import { Parallel } from "../plots/Parallel";
import { padded } from "../plots/scale";

const ROW = 36;

export function ArmsTab({ detail }: { detail: ExperimentDetail }) {
  const [settings, change] = useSettings();
  const extra = (settings["columns"] ?? "").split(",").filter((name) => detail.metrics.includes(name));
  const runs = useMemo(() => sortRuns(detail, settings["by"] ?? ""), [detail, settings["by"]]);
  if (!runs.length) return <Empty title="No arm has started">They show up here as soon as they do.</Empty>;
  const others = detail.metrics.filter((name) => !extra.includes(name) && name !== detail.experiment.metric);
  const numbers = () => [
    ["run", ...detail.experiment.varied, "score", "low", "high", "seeds", "difference", ...extra],
    ...runs.map((run) => [run.run, ...detail.experiment.varied.map((path) => value(run.varied[path])), run.score, run.low, run.high, run.n_seeds, run.difference?.value, ...extra.map((name) => meanOf(detail.experiment, run, name))]),
  ];
  return (
    <div className="stack">
      <Figure
        title={`${runs.length === 1 ? "One run" : `${runs.length} runs`}${detail.experiment.metric ? `, ${detail.experiment.metric}` : ""}`}
        data={numbers}
        controls={
          <span className="no-print">
            <Choose label="add a column" all="add a column…" value="" options={others} onChange={(name) => change({ columns: [...extra, name].join(",") })} />
          </span>
        }
      >
        <Table detail={detail} runs={runs} extra={extra} by={settings["by"] ?? ""} onSort={(by) => change({ by })} onDrop={(name) => change({ columns: extra.filter((one) => one !== name).join(",") })} />
      </Figure>
      {detail.experiment.varied.length > 0 && runs.filter((run) => run.score !== null).length > 2 && (
        <Figure title="Settings and score" data={numbers}>
          <Parallel runs={runs} varied={detail.experiment.varied.slice(0, 7)} metric={detail.experiment.metric} onPick={(run) => openRun(detail, run)} />
          <p className="small quiet">Drag along an axis to keep only the runs that pass there.</p>
        </Figure>
      )}
    </div>
  );
}

function openRun(detail: ExperimentDetail, run: string) {
  const arm = armsOf(detail.experiment, run)[0];
  if (arm) navigate(href(["e", detail.experiment.id, "a", arm.arm]));
}

const meanOf = (one: ShownExperiment, run: RunView, metric: string): number | null => {
  const values = armsOf(one, run.run).flatMap((arm) => (arm.metrics[metric] === undefined ? [] : [arm.metrics[metric]]));
  return values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null;
};

/** The baseline first, then as the conclusion ranks them, or by a column. */
function sortRuns(detail: ExperimentDetail, by: string): RunView[] {
  const all = runsOf(detail.experiment);
  if (!by) return all;
  const key = (run: RunView): number | string | null => {
    if (by === "score") return run.score;
    if (by === "spend") return run.spend["usd"] || (run.spend["tokens_trained"] ?? 0) + (run.spend["tokens_sampled"] ?? 0);
    const own = run.varied[by];
    return typeof own === "number" || typeof own === "string" ? own : meanOf(detail.experiment, run, by);
  };
  const up = by === "score" && detail.experiment.mode === "max" ? -1 : 1;
  const [first, rest] = [all.filter((run) => run.is_baseline), all.filter((run) => !run.is_baseline)];
  return [
    ...first,
    ...rest.sort((a, b) => {
      const [left, right] = [key(a), key(b)];
      if (left === null || right === null) return Number(left === null) - Number(right === null);
      return (left < right ? -1 : left > right ? 1 : 0) * up;
    }),
  ];
}

function Table(props: {
  detail: ExperimentDetail;
  runs: RunView[];
  extra: string[];
  by: string;
  onSort: (by: string) => void;
  onDrop: (column: string) => void;
}) {
  const { detail, runs, extra } = props;
  const box = useRef<HTMLDivElement>(null);
  const [current, setCurrent] = useState(-1);
  const colour = useRunColours(detail);
  const list = useVirtualizer({ count: runs.length, getScrollElement: () => box.current, estimateSize: () => ROW, overscan: 10 });
  const range = useMemo(() => padded(runs.flatMap((run) => [...run.seed_scores, ...(run.low === null ? [] : [run.low]), ...(run.high === null ? [] : [run.high])])), [runs]);
  const move = (by: number) => {
    const next = Math.max(0, Math.min(runs.length - 1, current + by));
    setCurrent(next);
    list.scrollToIndex(next);
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    Enter: () => runs[current] && openRun(detail, runs[current].run),
  });
  const shown = list.getVirtualItems();
  const above = shown[0]?.start ?? 0;
  const below = list.getTotalSize() - (shown.at(-1)?.end ?? 0);
  const sort = (name: string, word: string) => (
    <button type="button" onClick={() => props.onSort(props.by === name ? "" : name)} title={name}>
      {word} {props.by === name ? "↓" : ""}
    </button>
  );
  const width = 7 + detail.experiment.varied.length + extra.length;
  return (
    <div className="arms" ref={box} tabIndex={0} role="group" aria-label="runs">
      <table aria-rowcount={runs.length}>
        <thead>
          <tr>
            <th>run</th>
            {detail.experiment.varied.map((path) => (
              <th key={path} className="number">
                {sort(path, shortPath(path))}
              </th>
            ))}
            <th className="number">{sort("score", "score [95 %]")}</th>
            <th>seeds</th>
            <th className="number">difference</th>
            {extra.map((name) => (
              <th key={name} className="number">
                {sort(name, name)}{" "}
                <button type="button" onClick={() => props.onDrop(name)} aria-label={`remove the column ${name}`}>
                  ×
                </button>
              </th>
            ))}
            <th className="number">{sort("spend", "spend")}</th>
            <th>arms</th>
          </tr>
        </thead>
        <tbody>
          {above > 0 && <tr aria-hidden="true"><td colSpan={width} style={{ height: above, padding: 0 }} /></tr>}
          {shown.map((item) => {
            const run = runs[item.index];
            return run && <RunRow key={run.run} run={run} detail={detail} extra={extra} colour={colour(run.run)} range={range} current={item.index === current} />;
          })}
          {below > 0 && <tr aria-hidden="true"><td colSpan={width} style={{ height: below, padding: 0 }} /></tr>}
        </tbody>
      </table>
    </div>
  );
}

function RunRow(props: { run: RunView; detail: ExperimentDetail; extra: string[]; colour: string; range: [number, number]; current: boolean }) {
  const { run, detail, extra, colour } = props;
  const { experiment } = detail;
  const [arms, several] = [armsOf(experiment, run.run), experiment.runs.length > 1];
  const base = experiment.runs.find((one) => one.is_baseline);
  return (
    <tr className={run.is_baseline && several ? "baseline" : ""} style={{ height: ROW, ...(props.current ? { background: "var(--chosen)" } : {}) }}>
      <td>
        <span className="row" style={{ flexWrap: "nowrap" }}>
          <i className="swatch" style={{ background: colour }} />
          <a href={href(["e", detail.experiment.id, "a", arms[0]?.arm ?? ""])} className={`nowrap ${run.is_best ? "best" : ""}`} style={{ color: "inherit" }}>
            {run.run}
          </a>
          {run.is_best && <span className="tag">best</span>}
          {run.is_baseline && several && <span className="tag">baseline</span>}
        </span>
      </td>
      {detail.experiment.varied.map((path) => (
        <td key={path} className={`number ${base && base !== run && value(base.varied[path]) === value(run.varied[path]) ? "quiet" : ""}`}>
          {value(run.varied[path])}
        </td>
      ))}
      <td className="number">
        <Score value={run.score} low={run.low} high={run.high} />
      </td>
      <td>{run.seed_scores.length > 0 && <SeedDots run={run} range={props.range} colour={colour} />}</td>
      <td className="number">
        {run.difference && (
          <>
            {signed(run.difference.value)} <span className="quiet small">{interval(run.difference.low, run.difference.high)}</span>
          </>
        )}
      </td>
      {extra.map((name) => (
        <td key={name} className="number">
          {show(meanOf(detail.experiment, run, name))}
        </td>
      ))}
      <td className="number">{spend(run.spend)}</td>
      <td>
        <span className="row tight" style={{ flexWrap: "nowrap" }}>
          {arms.slice(0, 6).map((arm) => (
            <a key={arm.arm} href={href(["e", detail.experiment.id, "a", arm.arm])} title={`${arm.arm}: ${arm.problem || arm.status} ${arm.score === null ? "" : score(arm.score)}`}>
              {arm.problem || arm.status !== "completed" ? <State status={arm.problem && arm.status === "completed" ? "failed" : arm.status} detail={arm.seed === null ? "" : String(arm.seed)} /> : (arm.seed ?? "open")}
            </a>
          ))}
          {arms.length > 6 && <span className="quiet small">+{arms.length - 6}</span>}
        </span>
      </td>
    </tr>
  );
}
