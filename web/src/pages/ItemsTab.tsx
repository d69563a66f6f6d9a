/** What one run gets right that another does not. */

import { useItems } from "../api/queries";
import type { ExperimentDetail } from "../api/types";
import { useSettings } from "../location";
import { Answer, Choose, Empty } from "../parts/basics";
import { ItemList, type Side } from "../parts/ItemList";
import { armsOf, runsOf } from "../parts/runs";

export function ItemsTab({ detail }: { detail: ExperimentDetail }) {
  const [settings, change] = useSettings();
  const query = useItems(detail.experiment.id, { metric: settings["metric"], a: settings["a"], b: settings["b"] });
  const runs = runsOf(detail.experiment).map((run) => run.run);
  const side = (run: string): Side => ({
    experiment: detail.experiment.id,
    run,
    arms: armsOf(detail.experiment, run).map((arm) => arm.arm),
  });
  if (runs.length < 2) return <Empty title="One run has nothing to be compared with">Add a second run or a baseline, or compare two experiments.</Empty>;
  return (
    <Answer query={query}>
      {(items) => (
        <div className="stack">
          <div className="row no-print">
            <Choose label="first run" value={items.a} options={runs} onChange={(a) => change({ a })} />
            <span className="quiet">against</span>
            <Choose label="second run" value={items.b} options={runs} onChange={(b) => change({ b })} />
            {items.metrics.length > 0 && <Choose label="metric" value={items.metric} options={items.metrics} onChange={(metric) => change({ metric })} />}
          </div>
          <ItemList items={items} a={side(items.a)} b={side(items.b)} />
        </div>
      )}
    </Answer>
  );
}
