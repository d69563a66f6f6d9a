/** Two experiments by their best runs: the difference with its interval, the tasks that flipped, what differs in the config. */

import { useComparison, useExperiment, useExperiments } from "../api/queries";
import type { Comparison, Experiment } from "../api/types";
import { interval, score, signed, spend, value } from "../format";
import { href, useSettings } from "../location";
import { Answer, Empty } from "../parts/basics";
import { ItemList, type Side } from "../parts/ItemList";
import { Outcome } from "../parts/marks";
import { armsOf } from "../parts/runs";
import { Figure } from "../plots/Figure";

export function ComparePage() {
  const [settings, change] = useSettings();
  const [a, b] = [settings["a"] ?? "", settings["b"] ?? ""];
  const query = useComparison(a, b);
  return (
    <main id="main" tabIndex={-1}>
      <h1>Compare</h1>
      <div className="halves">
        <Pick label="first experiment" id={a} onChange={(id) => change({ a: id, task: null })} />
        <Pick label="second experiment" id={b} onChange={(id) => change({ b: id, task: null })} />
      </div>
      {!a || !b ? (
        <Empty title="Choose two experiments">In the list of experiments, `c` marks the row you are on.</Empty>
      ) : (
        <Answer query={query}>{(comparison) => <Compared comparison={comparison} />}</Answer>
      )}
    </main>
  );
}

function Pick({ label, id, onChange }: { label: string; id: string; onChange: (id: string) => void }) {
  const list = useExperiments({});
  const found = list.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <select aria-label={label} value={id} onChange={(event) => onChange(event.target.value)} style={{ width: "100%" }}>
      <option value="">{label}…</option>
      {id && !found.some((one) => one.id === id) && <option value={id}>{id}</option>}
      {found.map((one) => (
        <option key={one.id} value={one.id}>
          {one.name} · {(one.hypothesis || one.id).slice(0, 80)}
        </option>
      ))}
    </select>
  );
}

function Compared({ comparison }: { comparison: Comparison }) {
  const { a, b, items } = comparison;
  const first = useExperiment(a.id);
  const second = useExperiment(b.id);
  const side = (experiment: Experiment, run: string, arms: string[] | undefined): Side => ({ experiment: experiment.id, run: `${experiment.name}: ${run}`, arms: arms ?? [] });
  const seedsOf = (query: typeof first, run: string) => query.data && armsOf(query.data.experiment, run).map((arm) => arm.arm);
  return (
    <>
      <div className="halves">
        <Heading one={a} letter="a" />
        <Heading one={b} letter="b" />
      </div>
      {comparison.metrics.length > 0 && (
        <Figure
          title="b minus a"
          data={() => [["metric", "a", "b", "difference", "low", "high", "tasks"], ...comparison.metrics.map((one) => [one.metric, one.a, one.b, one.difference, one.low, one.high, one.n_tasks])]}
        >
          <div className="scroll-x" tabIndex={0} role="group" aria-label="metrics">
            <table>
              <thead>
                <tr>
                  <th>metric</th>
                  <th className="number">a</th>
                  <th className="number">b</th>
                  <th className="number">b − a [95 %]</th>
                  <th className="number">tasks</th>
                  <th>remark</th>
                </tr>
              </thead>
              <tbody>
                {comparison.metrics.map((one) => (
                  <tr key={one.metric}>
                    <td>{one.metric}</td>
                    <td className="number">{score(one.a)}</td>
                    <td className="number">{score(one.b)}</td>
                    <td className="number">
                      {signed(one.difference)} <span className="quiet small">{interval(one.low, one.high)}</span>
                    </td>
                    <td className="number">{one.n_tasks ?? ""}</td>
                    <td className="small quiet">{one.remark}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </Figure>
      )}
      {!comparison.metrics.length && <p className="notice">They have no score in common, so neither is better. Score both on one benchmark.</p>}
      {items && (
        <section className="stack tight">
          <h2>Tasks of {items.metric}</h2>
          <ItemList items={items} a={side(a, items.a, seedsOf(first, items.a))} b={side(b, items.b, seedsOf(second, items.b))} />
        </section>
      )}
      <ConfigDiff comparison={comparison} />
    </>
  );
}

const Heading = ({ one, letter }: { one: Experiment; letter: string }) => (
  <section className="stack tight">
    <div className="row">
      <span className="tag">{letter}</span>
      <Outcome experiment={one} />
      <span className="quiet small">{spend(one.spend)}</span>
    </div>
    <h2>
      <a href={href(["e", one.id])}>{one.hypothesis || one.name}</a>
    </h2>
    <p className="small quiet">
      {one.name} · best run {one.best_run || "–"}
    </p>
  </section>
);

function ConfigDiff({ comparison }: { comparison: Comparison }) {
  if (!comparison.config.length) return <p className="quiet">The configs are the same.</p>;
  return (
    <Figure title={`What differs in the config: ${comparison.config.length}`} data={() => [["path", "a", "b"], ...comparison.config.map((one) => [one.path, value(one.a), value(one.b)])]}>
      <div className="scroll-x" tabIndex={0} role="group" aria-label="differences of the configs">
        <table className="mono">
          <thead>
            <tr>
              <th>path</th>
              <th>a</th>
              <th>b</th>
            </tr>
          </thead>
          <tbody>
            {comparison.config.map((one) => (
              <tr key={one.path}>
                <td>{one.path}</td>
                <td>{value(one.a)}</td>
                <td>{value(one.b)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Figure>
  );
}
