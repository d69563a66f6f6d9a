/** A campaign, or the whole project: the question, its budget, how the score moved with what was spent, what is next. */

import { useEffect, useMemo } from "react";

import { path } from "../api/client";
import { useCampaigns, useExperiments } from "../api/queries";
import type { CampaignDecided, CampaignState, PageSession, ShownExperiment } from "../api/types";
import { ago, clock, compact, duration, score, show, usd } from "../format";
import { href, useSettings } from "../location";
import { Bones, Choose, Command, Empty, Failure, Tabs } from "../parts/basics";
import { Ask, Control, mayWrite } from "../parts/Control";
import { Outcome, State, toneOf, verdictTone, verdictWord } from "../parts/marks";
import { Figure } from "../plots/Figure";
import { Scatter, type Point } from "../plots/Scatter";
import { useTitle } from "../title";

const MOST = 10_000;

export function CampaignPage({ session, name }: { session: PageSession; name: string }) {
  const query = useCampaigns();
  const campaigns = query.data?.items ?? [];
  const chosen = campaigns.find((one) => one.name === name) ?? (name === ALL ? undefined : (campaigns.find((one) => one.state === "open") ?? campaigns[0]));
  useTitle(chosen ? `${chosen.name}, campaign` : "Campaigns");
  if (!query.data) return <main id="main" tabIndex={-1}>{query.error ? <Failure error={query.error} retry={() => void query.refetch()} /> : <Bones lines={10} />}</main>;
  const tabs = [...campaigns.map((one) => ({ id: one.name, word: one.name })), { id: ALL, word: "whole project" }];
  return (
    <main id="main" tabIndex={-1}>
      {campaigns.length > 0 && <Tabs tabs={tabs} current={chosen?.name ?? ALL} to={(id) => href(["campaign", id])} />}
      {chosen ? <Header campaign={chosen} session={session} /> : <h1>Campaigns</h1>}
      {!campaigns.length && (
        <p className="quiet">
          A campaign gives an agent a question, a budget and a rule to stop by. Open one: <Command text={'evsys campaign new NAME --question "..." --experiments 10'} />
        </p>
      )}
      <Found key={chosen?.name ?? ALL} tag={chosen ? `campaign:${chosen.name}` : undefined} campaign={chosen} session={session} />
    </main>
  );
}

const ALL = "-";

/** The question, how it stands, and what is left of its budget. */
function Header({ campaign: one, session }: { campaign: CampaignState; session: PageSession }) {
  const where = path("campaigns", one.name, "requests");
  const may = mayWrite(session) && one.state !== "closed" && !one.problem;
  return (
    <header className="stack tight">
      <div className="row">
        <span className="verdict">
          <State status={one.state} />
        </span>
        <span className="quiet">{one.why}</span>
        <span className="row no-print" style={{ marginLeft: "auto" }}>
          {may && one.deadline !== null && <Ask kind="extend" where={where} />}
          {may && <Ask kind="stop" where={where} question="Close this campaign? Nothing more is started under it. What runs continues." />}
        </span>
      </div>
      <h1>{String(one.terms["question"] ?? one.name)}</h1>
      {one.problem && (
        <p className="failed" role="alert">
          {one.problem}
        </p>
      )}
      {one.approvals.filter((each) => each.state === "awaited").map((each) => (
        <div key={each.subject} className="notice row" style={toneOf("promising")}>
          <State status="approval" /> {each.about || each.subject}
          {may && (
            <span className="row tight no-print">
              <Ask kind="approve" where={where} subject={each.subject} question={`Approve this plan? ${each.about || each.subject}`} />
              <Ask kind="reject" where={where} subject={each.subject} question={`Reject this plan? ${each.about || each.subject}`} />
            </span>
          )}
        </div>
      ))}
      <Budget campaign={one} />
    </header>
  );
}

const UNITS: { [limit: string]: (amount: number) => string } = { usd, tokens: compact, hours: (hours) => duration(hours * 3600), experiments: show };

function Budget({ campaign }: { campaign: CampaignState }) {
  const goal = campaign.terms["goal"];
  return (
    <div className="budget">
      {Object.entries(campaign.left).map(([limit, left]) => {
        const spent = campaign.spent[limit] ?? 0;
        const text = UNITS[limit] ?? show;
        const near = left <= 0.2 * (spent + left);
        return (
          <label key={limit} className="stack tight" style={near ? toneOf("promising") : undefined}>
            <span className="row spread small">
              <span className="quiet">{limit}</span>
              <span className={near ? "mark" : ""}>
                {text(spent)} of {text(spent + left)}
                {near && (left <= 0 ? ", spent" : ", nearly spent")}
              </span>
            </span>
            <progress value={spent} max={spent + left} aria-label={`${limit} spent`} />
          </label>
        );
      })}
      {campaign.deadline !== null && (
        <p className="small">
          <span className="quiet">ends at</span> {clock(campaign.deadline)}
        </p>
      )}
      {typeof goal === "number" && (
        <p className="small">
          <span className="quiet">goal</span> {score(goal)}
        </p>
      )}
    </div>
  );
}

/** The experiments of a campaign, or of the whole project. */
function Found({ tag, campaign, session }: { tag: string | undefined; campaign: CampaignState | undefined; session: PageSession }) {
  const query = useExperiments({ sort: "oldest", tag });
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = query;
  const all = useMemo(() => query.data?.pages.flatMap((page) => page.items) ?? [], [query.data]);
  useEffect(() => {
    if (hasNextPage && !isFetchingNextPage && all.length < MOST) void fetchNextPage();
  }, [hasNextPage, isFetchingNextPage, fetchNextPage, all.length]);
  if (!query.data) return query.error ? <Failure error={query.error} retry={() => void query.refetch()} /> : <Bones lines={10} />;
  return (
    <>
      <Running all={all} session={session} />
      {all.length ? <Timeline all={all} /> : <Empty title="No experiments yet" command={campaign ? `evsys new-experiment SLUG --campaign ${campaign.name}` : "evsys init-project . && evsys new-experiment first"} />}
      {campaign && campaign.decisions.length > 0 && <Decisions decisions={campaign.decisions} />}
      {campaign && <Candidates campaign={campaign} />}
      {all.length > 0 && <Claims all={all} />}
    </>
  );
}

function Running({ all, session }: { all: ShownExperiment[]; session: PageSession }) {
  const running = all.filter((one) => one.status === "running" || one.status === "waiting");
  if (!running.length) return null;
  return (
    <section className="stack tight">
      <h2>Running or waiting</h2>
      {running.map((one) => (
        <div key={one.id} className="row">
          <Outcome experiment={one} />
          <a href={href(["e", one.id])}>{one.hypothesis || one.name}</a>
          <span className="quiet">{one.live && one.live.step !== null ? `step ${one.live.step}${one.live.total_steps ? ` of ${one.live.total_steps}` : ""}` : ""}</span>
          <span className="row tight no-print">
            <Control id={one.id} status={one.status} session={session} />
          </span>
        </div>
      ))}
    </section>
  );
}

/** The steps of a portfolio, the newest first, each with its reason. */
function Decisions({ decisions }: { decisions: CampaignDecided[] }) {
  return (
    <section className="stack tight">
      <h2>Decisions</h2>
      <div className="scroll-x" tabIndex={0} role="group" aria-label="decisions">
        <table className="tall cards">
          <thead>
            <tr>
              <th className="fit">when</th>
              <th className="fit">step</th>
              <th className="fit">family</th>
              <th>reason</th>
            </tr>
          </thead>
          <tbody>
            {[...decisions].reverse().map((one, at) => (
              <tr key={decisions.length - at}>
                <td data-label="when" className="nowrap quiet">{clock(one.time)}</td>
                <td data-label="step">{one.action === "blocked" ? <State status="failed" /> : one.action}</td>
                <td data-label="family" className="nowrap">{one.family}</td>
                <td data-label="reason" className="small">
                  {one.reason} {one.by && one.by !== "policy" && <span className="tag">decided by {one.by}</span>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** What is to be tried next: what people and agents proposed, and what conclusions suggest. */
function Candidates({ campaign }: { campaign: CampaignState }) {
  const now = Date.now() / 1000;
  if (!campaign.candidates.length && !campaign.suggestions.length) return null;
  return (
    <section className="stack tight">
      <h2>Next</h2>
      <ul className="bullets">
        {campaign.candidates.map((one) => (
          <li key={one.number}>
            {one.text} {one.by && <span className="quiet small">proposed by {one.by}</span>}{" "}
            {one.taken_by && one.taken_until > now && <span className="tag">{one.taken_by} works on it</span>}
          </li>
        ))}
        {campaign.suggestions.map((text) => (
          <li key={text} className="quiet">
            {text.replaceAll("`", "")}
          </li>
        ))}
      </ul>
    </section>
  );
}

const costOf = (one: ShownExperiment, money: boolean) =>
  money ? (one.spend["usd"] ?? 0) : (one.spend["tokens_trained"] ?? 0) + (one.spend["tokens_sampled"] ?? 0);

/** Scores of different metrics cannot be compared, so one is shown at a time. */
function Timeline({ all }: { all: ShownExperiment[] }) {
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
  attempts: ShownExperiment[];
}

/** The same claim tried again is one line: an effect that took ten attempts is not one that took one. */
function attemptsOf(all: ShownExperiment[]): Attempted[] {
  const found = new Map<string, ShownExperiment[]>();
  for (const one of all) {
    const claim = (one.hypothesis || one.name).trim();
    const attempts = found.get(claim);
    if (attempts) attempts.push(one);
    else found.set(claim, [one]);
  }
  const last = (attempts: ShownExperiment[]) => attempts.at(-1)?.started ?? 0;
  return [...found].map(([claim, attempts]) => ({ claim, attempts })).sort((a, b) => last(b.attempts) - last(a.attempts));
}

function Claims({ all }: { all: ShownExperiment[] }) {
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
              const latest = attempts.at(-1) as ShownExperiment;
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
                          <a key={verdict} href={href(["e", (those.at(-1) as ShownExperiment).id])} title={those.map((one) => `${one.name}: ${verdictWord(verdict)}, ${clock(one.started)}`).slice(0, 12).join("\n")} style={{ color: "inherit" }}>
                            <Outcome experiment={those.at(-1) as ShownExperiment} /> {those.length > 1 && <span className="quiet small">×{those.length}</span>}
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
