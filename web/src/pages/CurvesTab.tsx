/** The curves of an experiment: a chart of each kind, one of them large, of all runs or of those that are chosen. */

import { useMemo, useState } from "react";

import { useCurvesOf } from "../api/queries";
import type { ExperimentDetail } from "../api/types";
import { score } from "../format";
import { useSettings } from "../location";
import { CurvesFigure, firstMetrics, machineMetrics, SmallCurves } from "../parts/CurvesFigure";
import { baselineOf, labelOf, runsOf, useRunColours } from "../parts/runs";

const MOST = 12;

export function CurvesTab({ detail }: { detail: ExperimentDetail }) {
  const one = detail.experiment;
  const [settings] = useSettings();
  const colour = useRunColours(detail);
  const all = useMemo(() => {
    const sign = one.mode === "min" ? 1 : -1;
    const base = baselineOf(one);
    return runsOf(one).sort((a, b) => Number(b.run === base) - Number(a.run === base) || sign * ((a.score ?? -sign * Infinity) - (b.score ?? -sign * Infinity)));
  }, [one]);
  const chosen = (settings["runs"] ?? "").split("\n").filter(Boolean);
  const many = all.length > MOST;
  const runs = chosen.length ? chosen : many ? all.slice(0, MOST).map((run) => run.run) : [];
  const labels = Object.fromEntries(all.map((run) => [run.run, labelOf(run, one.varied)]));
  const parts = [{ id: one.id, run: runs }];
  const names = useCurvesOf(parts, { points: 1 }).data?.metrics ?? [];
  const first = firstMetrics(names);
  const machine = machineMetrics(names);
  return (
    <div className="stack">
      {all.length > 3 && <Runs names={all.map((run) => ({ run: run.run, label: `${labels[run.run]}  ${score(run.score)}` }))} shown={runs} />}
      {first.length > 1 && <SmallCurves parts={parts} metrics={first} colour={colour} />}
      <CurvesFigure
        parts={parts}
        colour={colour}
        labels={labels}
        remark={!chosen.length && many ? `The baseline and the best ${MOST - 1} of ${all.length} runs.` : ""}
      />
      {machine.length > 0 && (
        <section className="stack tight">
          <h2>Machine</h2>
          <SmallCurves parts={parts} metrics={machine} colour={colour} />
        </section>
      )}
    </div>
  );
}

/** Which runs are drawn. */
function Runs({ names, shown }: { names: { run: string; label: string }[]; shown: string[] }) {
  const [, change] = useSettings();
  const [text, setText] = useState("");
  const set = new Set(shown.length ? shown : names.map((one) => one.run));
  const found = names.filter((one) => `${one.run} ${one.label}`.toLowerCase().includes(text.toLowerCase()));
  const toggle = (run: string) => {
    if (!set.delete(run)) set.add(run);
    change({ runs: [...set].join("\n") });
  };
  return (
    <details className="menu no-print">
      <summary>
        runs: {set.size} of {names.length}
      </summary>
      <div className="stack tight">
        <div className="row tight">
          <input type="search" aria-label="search runs" placeholder="search runs" value={text} onChange={(event) => setText(event.target.value)} />
          <button type="button" onClick={() => change({ runs: null })}>
            as ranked
          </button>
          <button type="button" onClick={() => change({ runs: found.map((one) => one.run).join("\n") })}>
            only these
          </button>
        </div>
        <div className="choices">
          {found.slice(0, 200).map((one) => (
            <label key={one.run} className="row tight">
              <input type="checkbox" className="pick" checked={set.has(one.run)} onChange={() => toggle(one.run)} />
              <span className="clip">{one.label}</span>
            </label>
          ))}
        </div>
      </div>
    </details>
  );
}
