/** What the model did, attempt by attempt: narrowed by reward, task, step and words; read one, or two side by side. */

import { useCallback, useEffect, useMemo, useRef, useState } from "react";

import { useGroup, useRollout, useRollouts } from "../api/queries";
import type { RolloutLine, Rollouts } from "../api/types";
import { plural, score, show } from "../format";
import { useKeys } from "../keys";
import { useSettings, type Settings } from "../location";
import { Bones, Choose, Empty, Failure } from "../parts/basics";
import { Transcript } from "../parts/Transcript";
import { VirtualRows } from "../parts/VirtualRows";
import { Bars } from "../plots/Bars";
import { rewardColour } from "../colours";

const NARROWED_BY = ["arm", "set", "step", "task", "outcome", "low", "high", "q"];

export function RolloutsTab({ id, arm }: { id: string; arm?: string }) {
  const [settings, change] = useSettings();
  const params = useMemo(() => paramsOf(settings, arm), [settings, arm]);
  const list = useRollouts(id, params);
  const about = list.first;
  const chosen = settings["rollout"] ?? list.rowAt(0)?.id;
  const [place, setPlace] = useState(0);
  const current = list.rowAt(place)?.id === chosen ? place : -1;
  const choose = useCallback(
    (rollout: string, at: number) => {
      setPlace(at);
      change({ rollout, beside: null });
    },
    [change],
  );
  const move = (by: number) => {
    const at = Math.max(0, Math.min(list.total - 1, place + by));
    const next = list.rowAt(at);
    if (next) choose(next.id, at);
  };
  useKeys({ j: () => move(1), k: () => move(-1), "]": () => move(1), "[": () => move(-1) });
  if (!about) return list.error ? <Failure error={list.error} retry={() => void list.refetch()} /> : <Bones lines={10} />;
  const narrowed = NARROWED_BY.some((name) => settings[name]);
  if (!about.total && !narrowed) {
    return (
      <Empty title="No rollouts were recorded" command="callbacks: [{ kind: local_logger }]">
        A benchmark records every attempt. Predictions of other scorings are kept with this line in the config:
      </Empty>
    );
  }
  return (
    <div className="stack">
      <Narrow about={about} settings={settings} change={change} hasArm={arm === undefined} narrowed={narrowed} />
      <div className="rollouts">
        {about.total === 0 ? (
          <Empty title="Nothing matches" />
        ) : (
          <VirtualRows
            rowAt={list.rowAt}
            total={about.total}
            height={44}
            label="rollouts"
            keyOf={(row) => row.id}
            current={current}
            onRange={list.onRange}
            render={(row, at) => <Line row={row} chosen={row.id === chosen} onChoose={() => choose(row.id, at)} range={about.reward_range} />}
          />
        )}
        <div className="reader" tabIndex={0} role="region" aria-label="transcript">
          <Reader id={id} chosen={chosen} beside={settings["beside"]} find={settings["q"] ?? ""} change={change} />
        </div>
      </div>
    </div>
  );
}

function paramsOf(settings: Settings, arm: string | undefined) {
  const [split = "", ...name] = (settings["set"] ?? "").split("/");
  return {
    arm: arm ?? settings["arm"],
    split,
    name: name.join("/"),
    step: settings["step"],
    task: settings["task"],
    outcome: settings["outcome"],
    min_reward: settings["low"],
    max_reward: settings["high"],
    q: settings["q"],
  };
}

function Narrow(props: {
  about: Rollouts;
  settings: Settings;
  change: (changes: { [name: string]: string | null }) => void;
  hasArm: boolean;
  narrowed: boolean;
}) {
  const { about, settings, change } = props;
  const search = useRef<HTMLInputElement>(null);
  const [text, setText] = useState(settings["q"] ?? "");
  useEffect(() => setText(settings["q"] ?? ""), [settings["q"]]);
  useKeys({ "/": () => search.current?.focus() });
  // The bars show what there is to choose from, so a choice among them must not change them.
  const whole = useRef(about);
  if (!settings["low"] && !settings["high"]) whole.current = about;
  const [low, high] = [settings["low"], settings["high"]];
  const set = (name: string) => (value: string) => change({ [name]: value, rollout: null, beside: null });
  return (
    <div className="row" style={{ alignItems: "flex-end" }}>
      <div style={{ width: 240 }}>
        <p className="small quiet">
          reward {show(whole.current.reward_range[0])} to {show(whole.current.reward_range[1])}
        </p>
        <Bars
          counts={whole.current.rewards}
          range={whole.current.reward_range}
          chosen={low && high ? { from: Number(low), to: Number(high) } : null}
          onChoose={(next) => change({ low: next ? String(next.from) : null, high: next ? String(next.to) : null, rollout: null })}
        />
      </div>
      <div className="filters">
        <input
          ref={search}
          type="search"
          placeholder="search text  /"
          aria-label="search rollouts"
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            change({ q: event.target.value, rollout: null });
          }}
        />
        {about.sets.length > 1 && <Choose label="set" all="any set" value={settings["set"] ?? ""} options={about.sets} onChange={set("set")} />}
        {props.hasArm && about.arms.length > 1 && <Choose label="arm" all="any arm" value={settings["arm"] ?? ""} options={about.arms} onChange={set("arm")} />}
        {about.steps.length > 1 && <Choose label="step" all="any step" value={settings["step"] ?? ""} options={about.steps.map(String)} onChange={set("step")} />}
        <Choose label="outcome" all="any outcome" value={settings["outcome"] ?? ""} options={["passed", "failed", "error"]} onChange={set("outcome")} />
        {settings["task"] && (
          <button type="button" onClick={() => set("task")("")}>
            task {settings["task"]} ×
          </button>
        )}
        <span className="quiet">{plural(about.total, "rollout")}</span>
        {props.narrowed && (
          <button type="button" className="plain" onClick={() => change(Object.fromEntries(NARROWED_BY.map((name) => [name, null])))}>
            clear
          </button>
        )}
      </div>
    </div>
  );
}

function Line({ row, chosen, onChoose, range }: { row: RolloutLine; chosen: boolean; onChoose: () => void; range: number[] }) {
  const [low, high] = [range[0] ?? 0, range[1] ?? 1];
  const share = row.reward === null ? 0 : (row.reward - low) / (high - low || 1);
  return (
    <div className="line" role="row" data-current={chosen} onClick={onChoose} style={{ cursor: "pointer" }}>
      <span role="cell" className={`dot ${row.reward === null ? "none" : ""}`} style={row.reward === null ? {} : { background: rewardColour(share) }} title={`reward ${score(row.reward)}`} />
      <span role="cell" style={{ overflow: "hidden" }}>
        <button type="button" className="plain clip" style={{ color: "inherit", padding: 0, height: 20, maxWidth: "100%", display: "block" }} onClick={onChoose}>
          {row.task || "task"} <span className="quiet small">· {row.sample}</span>
        </button>
        <span className="clip small quiet" style={{ display: "block" }}>
          {row.preview || row.status}
        </span>
      </span>
      <span role="cell" className="small quiet nowrap" style={{ textAlign: "right" }}>
        {score(row.reward)}
        <br />
        step {row.step}
      </span>
    </div>
  );
}

function Reader(props: { id: string; chosen: string | undefined; beside: string | undefined; find: string; change: (changes: { [name: string]: string | null }) => void }) {
  const { id, chosen, beside, change } = props;
  const detail = useRollout(id, chosen);
  const other = useRollout(id, beside);
  const one = detail.data?.rollout;
  const group = useGroup(id, { arm: one?.arm, split: one?.split, name: one?.name, step: one?.step, task: one?.task }, Boolean(one));
  if (!chosen) return null;
  if (!detail.data || !one) return detail.error ? <Failure error={detail.error} /> : <Bones />;
  const samples = group.data?.items.filter((each) => each.task === one.task) ?? [];
  return (
    <div className="stack tight">
      <div className="row">
        <h2>{one.task || "rollout"}</h2>
        <span className="quiet small">
          {one.arm} · {one.split}
          {one.name && `/${one.name}`} · step {one.step}
        </span>
        {samples.length > 1 && (
          <span className="row tight" role="group" aria-label="samples of this task">
            {samples.slice(0, 32).map((each) => (
              <button key={each.id} type="button" aria-pressed={each.id === one.id || each.id === beside} style={{ padding: "0 6px" }} title={`sample ${each.sample}: reward ${score(each.reward)}. Shift-click: side by side`} onClick={(event) => change(event.shiftKey ? { rollout: one.id, beside: each.id } : { rollout: each.id, beside: null })}>
                <i className="swatch" style={{ display: "inline-block", background: each.reward === null ? "none" : rewardColour(each.reward), border: "1px solid var(--strong-line)" }} /> {each.sample}
              </button>
            ))}
            {beside ? (
              <button type="button" onClick={() => change({ beside: null })}>
                one
              </button>
            ) : (
              <button type="button" onClick={() => change({ rollout: one.id, beside: samples.find((each) => each.id !== one.id && each.reward !== one.reward)?.id ?? samples.find((each) => each.id !== one.id)?.id ?? null })}>
                side by side
              </button>
            )}
          </span>
        )}
      </div>
      {beside && other.data ? (
        <div className="sides">
          <Transcript detail={detail.data} find={props.find} />
          <Transcript detail={other.data} against={detail.data} find={props.find} />
        </div>
      ) : (
        <Transcript detail={detail.data} find={props.find} />
      )}
    </div>
  );
}
