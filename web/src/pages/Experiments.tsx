/** Everything that was tried: the verdict first, then what it was about. */

import { memo, useCallback, useDeferredValue, useEffect, useMemo, useRef, useState } from "react";

import { useExperimentList, useOverview, useReadyExperiment } from "../api/queries";
import type { ShownExperiment, Overview, PageSession } from "../api/types";
import { ago, interval, plural, score, spend } from "../format";
import { useKeys } from "../keys";
import { href, navigate, useSettings, type Settings } from "../location";
import { Choose, Empty, Failure, Sparkline, Tags, Bones } from "../parts/basics";
import { NeedsYou } from "../parts/NeedsYou";
import { Failed, Outcome, VERDICT_ORDER, verdictWord } from "../parts/marks";
import { useMedia } from "../parts/media";
import { VirtualRows } from "../parts/VirtualRows";
import { useTitle } from "../title";
import { compareAddress } from "./Compare";

const FILTERS = ["q", "status", "verdict", "model", "algorithm", "tag", "sort"] as const;
const SORTS = [["", "newest first"], ["oldest", "oldest first"], ["score", "best score"], ["spend", "most spent"], ["name", "by name"]] as const;

export function ExperimentsPage({ session }: { session: PageSession }) {
  useTitle("Experiments");
  const [settings, change] = useSettings();
  const overview = useOverview();
  const params = useMemo(() => Object.fromEntries(FILTERS.map((name) => [name, settings[name]])), [settings]);
  const reading = overview.data?.reading ?? null;
  const list = useExperimentList(useDeferredValue(params), Boolean(reading));
  const { total } = list;
  const [current, setCurrent] = useState(-1);
  const picked = (settings["pick"] ?? "").split(",").filter(Boolean);
  const narrow = useMedia("(max-width: 720px)");

  const pick = useCallback(
    (id: string) => {
      const next = picked.includes(id) ? picked.filter((one) => one !== id) : [...picked, id];
      change({ pick: next.join(",") });
    },
    [picked.join(","), change],
  );
  const compare = () => navigate(compareAddress(picked));
  useKeys({
    j: () => setCurrent((at) => Math.min(at + 1, total - 1)),
    k: () => setCurrent((at) => Math.max(at - 1, 0)),
    Enter: () => {
      const one = list.rowAt(current);
      if (one) navigate(href(["e", one.id]));
    },
    c: () => {
      const one = list.rowAt(current);
      if (one) pick(one.id);
    },
    C: () => picked.length > 1 && compare(),
  });

  return (
    <main className="fill" id="main" tabIndex={-1}>
      <header className="stack tight">
        <div className="row spread">
          <h1>Experiments</h1>
          {overview.data && <Summary overview={overview.data} />}
        </div>
        {overview.data && <NeedsYou items={overview.data.attention} session={session} />}
        {reading && <Reading done={reading.done} of={reading.of} />}
        <Filters settings={settings} change={change} overview={overview.data} total={list.first ? total : null} />
      </header>
      {list.error && !list.first ? (
        <Failure error={list.error} retry={() => void list.refetch()} />
      ) : !list.first ? (
        <Bones lines={12} />
      ) : total === 0 && reading ? (
        <Bones lines={12} />
      ) : total === 0 ? (
        <Nothing filtered={FILTERS.some((name) => settings[name])} clear={() => change(Object.fromEntries(FILTERS.map((name) => [name, null])))} />
      ) : (
        <VirtualRows
          className="experiments"
          label="experiments"
          rowAt={list.rowAt}
          total={total}
          height={narrow ? 84 : 36}
          keyOf={(row) => row.id}
          current={current}
          onRange={list.onRange}
          head={<Head />}
          render={(row, at) => <Line one={row} current={at === current} picked={picked.includes(row.id)} onPick={pick} />}
        />
      )}
      {picked.length > 0 && (
        <div className="compare-bar no-print" role="status">
          <span>{picked.length === 1 ? "One marked: mark others to compare them." : `${picked.length} marked.`}</span>
          {picked.length > 1 && (
            <button type="button" className="primary" onClick={compare}>
              compare
            </button>
          )}
          <button type="button" onClick={() => change({ pick: null })}>
            clear
          </button>
        </div>
      )}
    </main>
  );
}

function Reading({ done, of }: { done: number; of: number }) {
  return (
    <label className="row small quiet" role="status">
      <progress value={done} max={of} /> reading the record: {done.toLocaleString("en")} of {of.toLocaleString("en")} experiments
    </label>
  );
}

function Summary({ overview }: { overview: Overview }) {
  const running = overview.by_status["running"] ?? 0;
  const parts = [plural(overview.total, "experiment"), running ? `${running} running` : "", spend(overview.spend)];
  return <p className="quiet">{parts.filter((part) => part && part !== "–").join(" · ")}</p>;
}

function Filters(props: {
  settings: Settings;
  change: (changes: { [name: string]: string | null }, options?: { push?: boolean }) => void;
  overview: Overview | undefined;
  total: number | null;
}) {
  const { settings, change, overview } = props;
  const search = useRef<HTMLInputElement>(null);
  useKeys({ "/": () => search.current?.focus() });
  const [text, setText] = useState(settings["q"] ?? "");
  useEffect(() => setText(settings["q"] ?? ""), [settings["q"]]);
  const set = (name: string) => (value: string) => change({ [name]: value }, { push: true });
  const active = (["status", "verdict", "model", "algorithm", "tag"] as const).filter((name) => settings[name]);
  const verdicts = [...VERDICT_ORDER, "none"].filter((verdict) => !overview || overview.by_verdict[verdict]);
  return (
    <div className="filters no-print" role="search">
      <input
        ref={search}
        type="search"
        placeholder="search  /"
        aria-label="search experiments"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          change({ q: event.target.value });
        }}
      />
      <details className="menu">
        <summary>{active.length ? `filter: ${active.length}` : "filter"}</summary>
        <div className="stack tight">
      <Choose label="status" all="any status" value={settings["status"] ?? ""} options={Object.keys(overview?.by_status ?? {}).sort()} onChange={set("status")} />
      <Choose label="verdict" all="any verdict" value={settings["verdict"] ?? ""} options={verdicts.map((verdict) => [verdict, verdict === "none" ? "no verdict" : verdictWord(verdict)])} onChange={set("verdict")} />
      <Choose label="model" all="any model" value={settings["model"] ?? ""} options={overview?.models ?? []} onChange={set("model")} />
      <Choose label="algorithm" all="any algorithm" value={settings["algorithm"] ?? ""} options={overview?.algorithms ?? []} onChange={set("algorithm")} />
      {Boolean(overview?.tags.length) && <Choose label="tag" all="any tag" value={settings["tag"] ?? ""} options={overview?.tags ?? []} onChange={set("tag")} />}
        </div>
      </details>
      {active.map((name) => (
        <button key={name} type="button" className="chip" onClick={() => set(name)("")} aria-label={`remove the filter ${name} ${settings[name]}`}>
          {name}: {settings[name]} ✕
        </button>
      ))}
      <Choose label="order" value={settings["sort"] ?? ""} options={SORTS} onChange={set("sort")} />
      {props.total !== null && overview && props.total !== overview.total && <span className="quiet">{plural(props.total, "match").replace("matchs", "matches")}</span>}
    </div>
  );
}

function Nothing({ filtered, clear }: { filtered: boolean; clear: () => void }) {
  if (!filtered) {
    return (
      <Empty title="No experiments yet" command="evsys init-project . && evsys new-experiment first">
        Whatever runs in this project shows up here by itself. This writes a first experiment, and says how to run it:
      </Empty>
    );
  }
  return (
    <div className="empty">
      <strong>Nothing matches</strong>
      <button type="button" onClick={clear}>
        clear the filters
      </button>
    </div>
  );
}

function Head() {
  return (
    <div className="line head" role="row">
      <span role="columnheader">
        <span className="hidden">compare</span>
      </span>
      <span role="columnheader">verdict</span>
      <span role="columnheader">hypothesis</span>
      <span role="columnheader">best arm</span>
      <span role="columnheader">metric</span>
      <span role="columnheader" className="number">
        score [95 %]
      </span>
      <span role="columnheader" className="number">
        spend
      </span>
      <span role="columnheader" className="number">
        arms
      </span>
      <span role="columnheader" className="number">
        when
      </span>
    </div>
  );
}

const Line = memo(function Line({ one, current, picked, onPick }: { one: ShownExperiment; current: boolean; picked: boolean; onPick: (id: string) => void }) {
  const to = href(["e", one.id]);
  const open = (event: React.MouseEvent) => {
    if (!(event.target as HTMLElement).closest("a, input")) navigate(to);
  };
  const ready = useReadyExperiment(one.id);
  return (
    <div className="line" role="row" data-current={current} onClick={open} {...ready} style={{ cursor: "pointer" }}>
      <span role="cell" className="pick-cell">
        <input type="checkbox" className="pick" checked={picked} onChange={() => onPick(one.id)} aria-label={`mark ${one.name} to compare`} />
      </span>
      <span role="cell" className="outcome" title={one.invalidated || one.sentence}>
        <Outcome experiment={one} />
        <Failed experiment={one} />
      </span>
      <span role="cell" className="what">
        <a className="clip" href={to} style={{ color: "inherit" }} title={one.hypothesis || one.name}>
          {one.hypothesis || one.name}
        </a>
        {one.hypothesis && <span className="name quiet small clip">{one.name}</span>}
        {one.invalidated && <span className="tag mark" title={one.invalidated}>do not trust</span>}
        {one.flags.length > 0 && <span className="tag mark" title={`its last audit flags: ${one.flags.join(", ")}`}>flagged</span>}
        <Tags tags={one.tags.slice(0, 3)} />
      </span>
      <span role="cell" className="best clip" title={one.best_run}>
        {one.best_run || <span className="quiet">–</span>}
      </span>
      <span role="cell" className="metric clip small quiet" title={one.metric}>
        {one.metric.split("/").pop()}
      </span>
      <span role="cell" className="score number" title={one.metric}>
        {one.live && one.best_score === null ? (
          <span className="row" style={{ justifyContent: "flex-end", flexWrap: "nowrap" }}>
            <Sparkline values={one.live.recent} label={`${one.live.metric} so far`} />
            <span className="small quiet">{one.live.step !== null && `${one.live.step}${one.live.total_steps ? `/${one.live.total_steps}` : ""}`}</span>
          </span>
        ) : (
          <>
            {score(one.best_score)} <span className="quiet small">{interval(one.best_low, one.best_high)}</span>
          </>
        )}
      </span>
      <span role="cell" className="spend number">
        {spend(one.spend)}
      </span>
      <span role="cell" className="count number" title={one.n_failures ? plural(one.n_failures, "failure") : undefined}>
        {one.n_done}/{one.n_arms}
      </span>
      <span role="cell" className="when number quiet">
        {ago(one.ended ?? one.started)}
      </span>
    </div>
  );
});
