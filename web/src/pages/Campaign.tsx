/** The project over time: how the score moved with what was spent, and how often each claim was tried. */

import { useEffect, useMemo } from "react";

import { useExperiments, useOverview } from "../api/queries";
import type { Experiment } from "../api/types";
import { ago, clock, compact, plural, score, spend, usd } from "../format";
import { href, useSettings } from "../location";
import { Bones, Choose, Empty, Failure } from "../parts/basics";
import { Outcome, verdictTone, verdictWord } from "../parts/marks";
import { Figure } from "../plots/Figure";
import { Scatter, type Point } from "../plots/Scatter";
import { useTitle } from "../title";

const MOST = 10_000;

export function CampaignPage() {
  useTitle("Campaign");
  const query = useExperiments({ sort: "oldest" });
  const overview = useOverview();
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = query;
  const all = useMemo(() => query.data?.pages.flatMap((page) => page.items) ?? [], [query.data]);
  useEffect(() => {
    if (hasNextPage && !isFetchingNextPage && all.length < MOST) void fetchNextPage();
  }, [hasNextPage, isFetchingNextPage, fetchNextPage, all.length]);
  return (
    <main id="main" tabIndex={-1}>
      <div className="row spread">
        <h1>Campaign</h1>
        {overview.data && (
          <p className="quiet">
            {plural(overview.data.total, "experiment")} · {spend(overview.data.spend)} · {plural(overview.data.by_verdict["supported"] ?? 0, "claim")} supported
          </p>
        )}
      </div>
      {!query.data ? (
        query.error ? <Failure error={query.error} retry={() => void query.refetch()} /> : <Bones lines={10} />
      ) : !all.length ? (
        <Empty title="No experiments yet" command="evsys run examples/01_quickstart/config.yaml" />
      ) : (
        <>
          <Running all={all} />
          <Timeline all={all} />
          <Claims all={all} />
        </>
      )}
    </main>
  );
}

function Running({ all }: { all: Experiment[] }) {
  const running = all.filter((one) => one.status === "running");
  if (!running.length) return null;
  return (
    <section className="stack tight">
      <h2>Running now</h2>
      {running.map((one) => (
        <a key={one.id} href={href(["e", one.id])} className="row" style={{ color: "inherit" }}>
          <Outcome experiment={one} />
          <span>{one.hypothesis || one.name}</span>
          <span className="quiet">{one.live?.step !== null && one.live ? `step ${one.live.step}${one.live.total_steps ? ` of ${one.live.total_steps}` : ""}` : ""}</span>
        </a>
      ))}
    </section>
  );
}

const costOf = (one: Experiment, money: boolean) =>
  money ? (one.spend["usd"] ?? 0) : (one.spend["tokens_trained"] ?? 0) + (one.spend["tokens_sampled"] ?? 0);

/** Scores of different metrics cannot be compared, so one is shown at a time. */
function Timeline({ all }: { all: Experiment[] }) {
  const [settings, change] = useSettings();
  const counts = new Map<string, number>();
  for (const one of all) if (one.metric && one.best_score !== null) counts.set(one.metric, (counts.get(one.metric) ?? 0) + 1);
  const metrics = [...counts].sort((a, b) => b[1] - a[1]).map(([metric]) => metric);
  const metric = settings["metric"] && counts.has(settings["metric"]) ? settings["metric"] : (metrics[0] ?? "");
  const over = settings["x"] ?? "spend";
  const money = all.some((one) => one.spend["usd"]);
  const points = useMemo(() => {
    let spent = 0;
    return all.flatMap((one): Point[] => {
      spent += costOf(one, money);
      if (one.metric !== metric || one.best_score === null) return [];
      const x = over === "time" ? (one.started ?? 0) : spent;
      return [{ id: one.id, label: one.name, x, y: one.best_score, low: one.best_low, high: one.best_high, colour: verdictTone(one.verdict), href: href(["e", one.id]) }];
    });
  }, [all, metric, over, money]);
  if (!metrics.length) return <Empty title="Nothing was scored yet">Give an experiment a benchmark, and its scores appear here over time.</Empty>;
  const best = new Map<string, Point>();
  const mode = all.find((one) => one.metric === metric)?.mode ?? "max";
  const record: Point[] = [];
  for (const point of points) {
    const top = record.at(-1);
    if (!top || (mode === "max" ? point.y > top.y : point.y < top.y)) record.push(point);
    best.set(point.id, point);
  }
  const label = over === "time" ? "time" : money ? "USD spent so far" : "tokens spent so far";
  return (
    <Figure
      title={`Best ${metric} over ${over === "time" ? "time" : "spend"}`}
      data={() => [["experiment", label, metric, "low", "high"], ...points.map((one) => [one.label, one.x, one.y, one.low, one.high])]}
      controls={
        <span className="row no-print">
          <Choose label="metric" value={metric} options={metrics} onChange={(value) => change({ metric: value })} />
          <Choose label="x axis" value={over} options={[["spend", "over spend"], ["time", "over time"]]} onChange={(value) => change({ x: value === "spend" ? null : value })} />
        </span>
      }
    >
      <Scatter points={points} joined={record} xLabel={label} yLabel={metric} xText={over === "time" ? shortTime(points) : money ? usd : compact} />
      <p className="small quiet">Colours are verdicts. The line is the best score so far.</p>
    </Figure>
  );
}

function shortTime(points: Point[]): (time: number) => string {
  const span = (points.at(-1)?.x ?? 0) - (points[0]?.x ?? 0);
  const style: Intl.DateTimeFormatOptions = span > 2 * 86_400 ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit" };
  return (time) => new Date(time * 1000).toLocaleString(undefined, style);
}

interface Attempted {
  claim: string;
  attempts: Experiment[];
}

/** The same claim tried again is one line: an effect that took ten attempts is not one that took one. */
function attemptsOf(all: Experiment[]): Attempted[] {
  const found = new Map<string, Experiment[]>();
  for (const one of all) {
    const claim = (one.hypothesis || one.name).trim();
    const attempts = found.get(claim);
    if (attempts) attempts.push(one);
    else found.set(claim, [one]);
  }
  const last = (attempts: Experiment[]) => attempts.at(-1)?.started ?? 0;
  return [...found].map(([claim, attempts]) => ({ claim, attempts })).sort((a, b) => last(b.attempts) - last(a.attempts));
}

function Claims({ all }: { all: Experiment[] }) {
  const claims = useMemo(() => attemptsOf(all), [all]);
  const [settings, change] = useSettings();
  const limit = Number(settings["claims"] ?? 50);
  return (
    <section className="stack tight">
      <h2>Claims and attempts</h2>
      <div className="scroll-x" tabIndex={0} role="group" aria-label="claims">
        <table>
          <thead>
            <tr>
              <th>claim</th>
              <th className="number">attempts</th>
              <th>came to</th>
              <th className="number">best</th>
              <th className="number">last</th>
            </tr>
          </thead>
          <tbody>
            {claims.slice(0, limit).map(({ claim, attempts }) => {
              const latest = attempts.at(-1) as Experiment;
              const scores = attempts.flatMap((one) => (one.metric === latest.metric && one.best_score !== null ? [one.best_score] : []));
              const top = scores.length ? (latest.mode === "max" ? Math.max(...scores) : Math.min(...scores)) : null;
              return (
                <tr key={claim}>
                  <td style={{ minWidth: 220 }}>
                    <a href={href(["e", latest.id])} style={{ color: "inherit" }}>
                      {claim}
                    </a>
                  </td>
                  <td className="number">{attempts.length}</td>
                  <td>
                    <span className="row">
                      {[...new Set(attempts.slice(-8).map((one) => one.verdict || one.status))].map((verdict) => {
                        const those = attempts.filter((one) => (one.verdict || one.status) === verdict);
                        return (
                          <a key={verdict} href={href(["e", (those.at(-1) as Experiment).id])} title={those.map((one) => `${one.name}: ${verdictWord(verdict)}, ${clock(one.started)}`).slice(0, 12).join("\n")} style={{ color: "inherit" }}>
                            <Outcome experiment={those.at(-1) as Experiment} /> {those.length > 1 && <span className="quiet small">×{those.length}</span>}
                          </a>
                        );
                      })}
                    </span>
                  </td>
                  <td className="number">
                    {score(top)} <span className="quiet small">{latest.metric}</span>
                  </td>
                  <td className="number quiet">{ago(latest.started)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {claims.length > limit && (
        <div>
          <button type="button" onClick={() => change({ claims: String(limit * 4) })}>
            show more of {claims.length}
          </button>
        </div>
      )}
    </section>
  );
}
