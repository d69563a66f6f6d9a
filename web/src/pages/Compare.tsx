/** Runs of any experiments with the first one: differences with their intervals, curves, flipped tasks, configs. */

import { useState } from "react";

import { useComparison, useExperiment, useExperiments } from "../api/queries";
import type { ComparedRun, ComparedRuns } from "../api/types";
import { colours } from "../colours";
import { interval, score, signed, spend, value } from "../format";
import { href, useSettings } from "../location";
import { Answer, Choose, Empty } from "../parts/basics";
import { CurvesFigure } from "../parts/CurvesFigure";
import { ItemList, type Side } from "../parts/ItemList";
import { Outcome } from "../parts/marks";
import { armsOf, runsOf } from "../parts/runs";
import { Figure } from "../plots/Figure";
import { useTheme } from "../theme";
import { useTitle } from "../title";

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/** What an address compares: ids have no slash in them. */
export const compareAddress = (of: string[]): string => href(["compare"], { of: of.join("/") });

export function ComparePage() {
  useTitle("Compare");
  const [settings, change] = useSettings();
  const of = settings["of"] ? settings["of"].split("/") : [settings["a"] ?? "", settings["b"] ?? ""].filter(Boolean);
  const query = useComparison(of);
  const set = (next: string[]) => change({ of: next.join("/"), a: null, b: null, task: null }, { push: true });
  return (
    <main id="main" tabIndex={-1}>
      <h1>Compare</h1>
      <div className="stack tight no-print">
        {of.map((reference, at) => (
          <Subject key={reference} letter={LETTERS[at] ?? "?"} reference={reference} onChange={(next) => set(of.map((one, place) => (place === at ? next : one)))} onRemove={() => set(of.filter((one) => one !== reference))} />
        ))}
        <Add of={of} onAdd={(id) => set([...of, id])} />
      </div>
      {of.length < 2 ? (
        <Empty title="Choose at least two">In the list of experiments, `c` marks the row you are on; any number can be marked.</Empty>
      ) : (
        <Answer query={query}>{(compared) => <Compared compared={compared} />}</Answer>
      )}
    </main>
  );
}

/** One side: its experiment, and which of its runs. */
function Subject({ letter, reference, onChange, onRemove }: { letter: string; reference: string; onChange: (next: string) => void; onRemove: () => void }) {
  const [id = "", run = ""] = reference.split(":");
  const detail = useExperiment(id).data;
  return (
    <div className="row">
      <span className="tag">{letter}</span>
      <a href={href(["e", id])}>{detail?.experiment.name ?? id}</a>
      {detail && (
        <Choose label={`run of ${letter}`} value={run} all={`best run: ${detail.experiment.best_run || "–"}`} options={runsOf(detail.experiment).map((one) => one.run)} onChange={(next) => onChange(next ? `${id}:${next}` : id)} />
      )}
      <button type="button" onClick={onRemove} aria-label={`remove ${letter}`}>
        ✕
      </button>
    </div>
  );
}

function Add({ of, onAdd }: { of: string[]; onAdd: (id: string) => void }) {
  const list = useExperiments({});
  const found = list.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <select aria-label="add an experiment" value="" onChange={(event) => onAdd(event.target.value)} style={{ maxWidth: 480 }}>
      <option value="">add an experiment…</option>
      {found
        .filter((one) => !of.includes(one.id))
        .map((one) => (
          <option key={one.id} value={one.id}>
            {one.name} · {(one.hypothesis || one.id).slice(0, 80)}
          </option>
        ))}
    </select>
  );
}

const nameOf = (one: ComparedRun, at: number): string => `${LETTERS[at] ?? "?"} ${one.experiment.name}: ${one.run}`;

function Compared({ compared }: { compared: ComparedRuns }) {
  const { runs } = compared;
  const theme = useTheme();
  const names = runs.map(nameOf);
  const metrics = [...new Set(runs.flatMap((one) => one.differences.map((pair) => pair.metric)))].sort();
  const parts = runs.map((one, at) => ({ id: one.experiment.id, run: [one.run], label: names[at] ?? "" }));
  return (
    <>
      <Sides runs={runs} />
      {metrics.length ? <Differences runs={runs} metrics={metrics} /> : <p className="notice">They have no score in common, so none is better. Score them on one benchmark.</p>}
      <CurvesFigure parts={parts} colour={colours(names, names[0] ?? "", theme)} />
      <Tasks runs={runs} />
      <ConfigDiff compared={compared} />
    </>
  );
}

const Sides = ({ runs }: { runs: ComparedRun[] }) => (
  <div className="scroll-x" tabIndex={0} role="group" aria-label="runs">
    <table>
      <thead>
        <tr>
          <th>
            <span className="hidden">letter</span>
          </th>
          <th>verdict</th>
          <th>experiment</th>
          <th>run</th>
          <th>metric</th>
          <th className="number">score [95 %]</th>
          <th className="number">spend</th>
        </tr>
      </thead>
      <tbody>
        {runs.map((one, at) => (
          <tr key={at}>
            <td>
              <span className="tag">{LETTERS[at]}</span>
            </td>
            <td>
              <Outcome experiment={one.experiment} />
            </td>
            <td>
              <a href={href(["e", one.experiment.id])}>{one.experiment.hypothesis || one.experiment.name}</a>
            </td>
            <td>{one.run || "–"}</td>
            <td className="small quiet">{one.experiment.metric}</td>
            <td className="number">
              {score(one.score?.score)} <span className="quiet small">{one.score && interval(one.score.low, one.score.high)}</span>
            </td>
            <td className="number">{one.score ? spend(one.score.spend) : "–"}</td>
          </tr>
        ))}
      </tbody>
    </table>
  </div>
);

function Differences({ runs, metrics }: { runs: ComparedRun[]; metrics: string[] }) {
  const rows = metrics.flatMap((metric) => runs.flatMap((one, at) => one.differences.filter((pair) => pair.metric === metric).map((pair) => ({ pair, letter: LETTERS[at] ?? "?" }))));
  return (
    <Figure
      title="Difference from A, 95 %"
      data={() => [["metric", "run", "A", "score", "difference", "low", "high", "over", "remark"], ...rows.map(({ pair, letter }) => [pair.metric, letter, pair.first, pair.second, pair.difference, pair.low, pair.high, pair.population, pair.remark])]}
    >
      <div className="scroll-x" tabIndex={0} role="group" aria-label="metrics">
        <table>
          <thead>
            <tr>
              <th>metric</th>
              <th>run</th>
              <th className="number">A</th>
              <th className="number">score</th>
              <th className="number">minus A [95 %]</th>
              <th>interval over</th>
              <th>remark</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ pair, letter }) => (
              <tr key={`${pair.metric} ${letter}`}>
                <td>{pair.metric}</td>
                <td>{letter}</td>
                <td className="number">{score(pair.first)}</td>
                <td className="number">{score(pair.second)}</td>
                <td className="number">
                  {signed(pair.difference)} <span className="quiet small">{interval(pair.low, pair.high)}</span>
                </td>
                <td className="small quiet">{pair.population}</td>
                <td className="small quiet">{pair.remark}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Figure>
  );
}

/** The tasks that one of the runs answers differently than the first. */
function Tasks({ runs }: { runs: ComparedRun[] }) {
  const withItems = runs.map((one, at) => ({ one, at })).filter(({ one }) => one.items);
  const [chosen, setChosen] = useState(1);
  const current = withItems.find(({ at }) => at === chosen) ?? withItems[0];
  const first = runs[0];
  const left = useExperiment(first?.experiment.id ?? "").data;
  const right = useExperiment(current?.one.experiment.id ?? first?.experiment.id ?? "").data;
  if (!current?.one.items || !first) return null;
  const side = (one: ComparedRun, at: number, detail: typeof left): Side => ({
    experiment: one.experiment.id,
    run: nameOf(one, at),
    arms: detail ? armsOf(detail.experiment, one.run).map((arm) => arm.arm) : [],
  });
  return (
    <section className="stack tight">
      <div className="row">
        <h2>Tasks of {current.one.items.metric}: A against</h2>
        <Choose label="run whose tasks are shown" value={String(current.at)} options={withItems.map(({ one, at }) => [String(at), nameOf(one, at)] as const)} onChange={(at) => setChosen(Number(at))} />
      </div>
      <ItemList items={current.one.items} a={side(first, 0, left)} b={side(current.one, current.at, right)} />
    </section>
  );
}

function ConfigDiff({ compared }: { compared: ComparedRuns }) {
  if (!compared.config.length) return <p className="quiet">The configs of these runs are the same.</p>;
  const letters = compared.runs.map((_, at) => LETTERS[at] ?? "?");
  return (
    <Figure title={`What differs in the config: ${compared.config.length}`} data={() => [["path", ...letters], ...compared.config.map((one) => [one.path, ...one.values.map(value)])]}>
      <div className="scroll-x" tabIndex={0} role="group" aria-label="differences of the configs">
        <table className="mono">
          <thead>
            <tr>
              <th>path</th>
              {letters.map((letter) => (
                <th key={letter}>{letter}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {compared.config.map((one) => (
              <tr key={one.path}>
                <td>{one.path}</td>
                {one.values.map((each, at) => (
                  <td key={at}>{value(each)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Figure>
  );
}
