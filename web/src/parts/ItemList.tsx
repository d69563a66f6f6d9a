/** Two runs, task by task; what changed comes first, with both answers beside each other. */

import { useMemo, useState } from "react";

import { useGroup, useRollout } from "../api/queries";
import type { ComparedTask, Items } from "../api/types";
import { interval, plural, score, signed } from "../format";
import { useKeys } from "../keys";
import { useSetting } from "../location";
import { rewardColour } from "../colours";
import { Bones, Empty } from "./basics";
import { Transcript } from "./Transcript";
import { VirtualRows } from "./VirtualRows";

export interface Side {
  experiment: string;
  run: string;
  /** Arms of the run, whose rollouts may be shown. */
  arms: string[];
}

const CHANGES = ["all", "lost", "gained", "same", "unpaired"] as const;

export function ItemList({ items, a, b }: { items: Items; a: Side; b: Side }) {
  const [only, setOnly] = useSetting("change", "all");
  const [chosen, setTask] = useSetting("task");
  const rows = useMemo(() => items.items.filter((item) => only === "all" || item.change === only), [items, only]);
  const task = chosen || rows[0]?.task || "";
  const shared = useMemo(() => commonStart(items.items.map((item) => item.prompt)), [items]);
  const current = rows.findIndex((item) => item.task === task);
  const move = (by: number) => rows.length && setTask(rows[Math.max(0, Math.min(rows.length - 1, current + by))]?.task ?? "");
  useKeys({ j: () => move(1), k: () => move(-1) });
  const counts: { [change: string]: number } = { all: items.gained + items.lost + items.same, gained: items.gained, lost: items.lost, same: items.same };
  if (!items.items.length) return <Empty title="Nothing to pair">Both runs must be scored on the same tasks of a benchmark.</Empty>;
  return (
    <div className="stack">
      <div className="row">
        {items.difference && (
          <span style={{ fontSize: "var(--large)" }}>
            {signed(items.difference.difference)} <span className="quiet small">{interval(items.difference.low, items.difference.high)}</span>
          </span>
        )}
        {items.difference && <span className="small quiet">95 %, {items.difference.population}</span>}
        <span>
          {plural(items.gained + items.lost + items.same, "task")}: {items.gained} gained, {items.lost} lost, {items.same} same
        </span>
        <span className="row tight no-print" role="group" aria-label="which tasks">
          {CHANGES.filter((change) => counts[change]).map((change) => (
            <button key={change} type="button" aria-pressed={only === change} onClick={() => setOnly(change)}>
              {change}
            </button>
          ))}
        </span>
      </div>
      <div className="rollouts">
        <VirtualRows
          rowAt={(at) => rows[at]}
          total={rows.length}
          height={32}
          label="tasks"
          keyOf={(item) => item.task}
          current={current}
          render={(item) => <ItemLine item={item} name={item.prompt ? `${shared ? "…" : ""}${item.prompt.slice(shared)}` : item.task} chosen={item.task === task} onChoose={() => setTask(item.task)} />}
        />
        <div className="reader" tabIndex={0} role="region" aria-label="answers">
          {task ? (
            <div className="sides">
              <Answers side={a} metric={items.metric} task={task} />
              <Answers side={b} metric={items.metric} task={task} />
            </div>
          ) : (
            <Empty title="Choose a task">Both answers appear here, side by side. j and k go through the list.</Empty>
          )}
        </div>
      </div>
    </div>
  );
}

/** How many characters all prompts begin with, up to a space: they tell no task from another. */
function commonStart(prompts: string[]): number {
  const first = prompts[0] ?? "";
  let at = 0;
  while (at < first.length && prompts.every((one) => one[at] === first[at])) at += 1;
  return prompts.length > 1 && at > 12 ? first.lastIndexOf(" ", at - 1) + 1 : 0;
}

function ItemLine({ item, name, chosen, onChoose }: { item: ComparedTask; name: string; chosen: boolean; onChoose: () => void }) {
  const signs = { gained: "▲", lost: "▼", same: "=", unpaired: "○" };
  const tones = { gained: "var(--supported)", lost: "var(--refuted)", same: "var(--quiet)", unpaired: "var(--quiet)" };
  return (
    <div className="line" role="row" data-current={chosen} onClick={onChoose} style={{ cursor: "pointer" }}>
      <span role="cell" style={{ color: tones[item.change] }} title={item.change}>
        <span aria-hidden="true">{signs[item.change]}</span>
        <span className="hidden">{item.change}</span>
      </span>
      <span role="cell" className="clip" title={item.task}>
        <button type="button" className="plain clip" style={{ color: "inherit", padding: 0, height: 24, maxWidth: "100%" }} onClick={onChoose}>
          {name}
        </button>
      </span>
      <span role="cell" className="small quiet nowrap">
        {score(item.a)} → {score(item.b)}
      </span>
    </div>
  );
}

/** What one run answered to a task: the samples of its last scoring. */
function Answers({ side, metric, task }: { side: Side; metric: string; task: string }) {
  const [split = "", ...rest] = metric.split("/");
  const [arm, setArm] = useState(side.arms[0] ?? "");
  const chosen = side.arms.includes(arm) ? arm : (side.arms[0] ?? "");
  const group = useGroup(side.experiment, { arm: chosen, split, name: rest.slice(0, -1).join("/"), task });
  const [sample, setSample] = useState(0);
  const last = group.data?.items[0]?.step;
  const samples = group.data?.items.filter((one) => one.step === last) ?? [];
  const one = samples[Math.min(sample, samples.length - 1)];
  const detail = useRollout(side.experiment, one?.id);
  return (
    <div className="stack tight" role="group" aria-label={side.run}>
      <header className="row">
        <h2>{side.run}</h2>
        {side.arms.length > 1 && (
          <select aria-label={`arm of ${side.run}`} value={chosen} onChange={(event) => setArm(event.target.value)}>
            {side.arms.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        )}
        <span className="row tight" role="group" aria-label="samples">
          {samples.length > 1 &&
            samples.map((each, at) => (
              <button key={each.id} type="button" aria-pressed={each === one} onClick={() => setSample(at)} title={`sample ${each.sample}, reward ${score(each.reward)}`} style={{ padding: "0 6px" }}>
                <i className="swatch" style={{ background: rewardColour(each.reward ?? 0), display: "inline-block" }} /> {each.sample}
              </button>
            ))}
        </span>
      </header>
      {!group.data ? <Bones lines={4} /> : !one ? <p className="quiet">No answer to this task was recorded.</p> : detail.data?.rollout.id === one.id ? <Transcript detail={detail.data} /> : <Bones lines={4} />}
    </div>
  );
}
