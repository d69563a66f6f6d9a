/** One experiment: what was claimed, what came of it, and everything behind it. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { path, tell } from "../api/client";
import { useCurvesOf, useExperiment } from "../api/queries";
import type { Dict, ExperimentDetail, Json, InterimLook, PageSession } from "../api/types";
import { plural, shortPath, show, signed, value, clock, compact, duration, interval, score, usd } from "../format";
import { href, useSetting } from "../location";
import { Answer, Command, Tabs, Tags } from "../parts/basics";
import { Ask, Asked, Control, mayWrite, mayDelete } from "../parts/Control";
import { firstMetrics, SmallCurves } from "../parts/CurvesFigure";
import { Failed, Outcome, toneOf, Verdict, verdictWord } from "../parts/marks";
import { baselineOf, labelOf, runsOf, useRunColours } from "../parts/runs";
import { Figure } from "../plots/Figure";
import { Forest } from "../plots/Forest";
import { ArmsTab } from "./ArmsTab";
import { CostTab, LineageTab, RetentionTab } from "./CostTab";
import { CurvesTab } from "./CurvesTab";
import { ItemsTab } from "./ItemsTab";
import { NotesTab, RecordTab } from "./RecordTab";
import { RolloutsTab } from "./RolloutsTab";
import { useTitle } from "../title";

export function ExperimentPage({ id, session }: { id: string; session: PageSession }) {
  const query = useExperiment(id);
  useTitle(query.data?.experiment.name ?? id);
  return (
    <main id="main" tabIndex={-1}>
      <Answer query={query} lines={14}>
        {(detail) => <Loaded detail={detail} session={session} />}
      </Answer>
    </main>
  );
}

function Loaded({ detail, session }: { detail: ExperimentDetail; session: PageSession }) {
  const one = detail.experiment;
  const [tab] = useSetting("tab", "arms");
  const continual = detail.metrics.some((name) => name.startsWith("retention/"));
  const tabs = [
    { id: "arms", word: "Arms", count: one.n_arms },
    { id: "curves", word: "Curves" },
    { id: "items", word: "Items" },
    { id: "rollouts", word: "Rollouts" },
    ...(continual ? [{ id: "retention", word: "Retention" }] : []),
    { id: "cost", word: "Cost" },
    { id: "lineage", word: "Lineage" },
    { id: "record", word: "Record" },
    { id: "notes", word: "Notes", count: one.notes.length },
  ];
  return (
    <>
      <Header detail={detail} session={session} isWhole={tab === "arms"} />
      {tab === "arms" ? <Claim detail={detail} /> : one.sentence && <p className="quiet">{sentence(detail)}</p>}
      <div className="stack">
        <Tabs tabs={tabs} current={tab} to={(name) => href(["e", one.id], name === "arms" ? {} : { tab: name })} />
        {tab === "arms" && <ArmsTab detail={detail} />}
        {tab === "curves" && <CurvesTab detail={detail} />}
        {tab === "items" && <ItemsTab detail={detail} />}
        {tab === "rollouts" && <RolloutsTab id={one.id} />}
        {tab === "retention" && <RetentionTab detail={detail} />}
        {tab === "cost" && <CostTab detail={detail} />}
        {tab === "lineage" && <LineageTab id={one.id} />}
        {tab === "record" && <RecordTab detail={detail} />}
        {tab === "notes" && <NotesTab detail={detail} session={session} />}
      </div>
    </>
  );
}

function Header({ detail, session, isWhole }: { detail: ExperimentDetail; session: PageSession; isWhole: boolean }) {
  const one = detail.experiment;
  const best = one.runs.find((run) => run.is_best);
  return (
    <header className="stack tight">
      <div className="row">
        <span className="verdict">
          <Outcome experiment={one} />
        </span>
        {best?.difference && (
          <span className="verdict number">
            {signed(best.difference.value)} <span className="quiet small">{interval(best.difference.low, best.difference.high)}</span>
          </span>
        )}
        <Failed experiment={one} />
        <span className="quiet">{one.name}</span>
        <EditTags detail={detail} session={session} />
        <span className="quiet small">{[...one.models, ...one.algorithms, ...one.backends].join(" · ")}</span>
        <span style={{ marginLeft: "auto" }} className="row no-print">
          <Asked experiment={one} requests={detail.requests} />
          <Control id={one.id} status={one.status} session={session} />
        </span>
      </div>
      <h1>{detail.claim.text || one.name}</h1>
      {one.status === "waiting" && <Plan detail={detail} />}
      {isWhole && one.description && one.description !== detail.claim.text && <p className="quiet">{one.description}</p>}
      {one.invalidated && (
        <p className="notice" style={toneOf("invalid")}>
          Do not trust this: {one.invalidated}
        </p>
      )}
      {one.remarks.map((remark) => (
        <p className="quiet" key={remark}>
          Remark: {remark}
        </p>
      ))}
      {one.flags.length > 0 && (
        <p className="notice" style={toneOf("invalid")}>
          Flagged by its last audit: {one.flags.join(", ")}. <code>evsys audit {one.id}</code> says why.
        </p>
      )}
    </header>
  );
}

/** Its tags, and `archived`, which hides it from the list. */
function EditTags({ detail, session }: { detail: ExperimentDetail; session: PageSession }) {
  const one = detail.experiment;
  const queries = useQueryClient();
  const [text, setText] = useState("");
  const send = useMutation({
    mutationFn: (tags: string[]) => tell("PUT", path("experiments", one.id, "tags"), { tags }),
    onSuccess: () => {
      setText("");
      void queries.invalidateQueries({ queryKey: ["experiment", one.id] });
      void queries.invalidateQueries({ queryKey: ["experiments"] });
    },
  });
  if (!mayWrite(session)) return <Tags tags={one.tags} />;
  const archived = one.tags.includes("archived");
  return (
    <>
      <Tags tags={one.tags} />
      <details className="menu edit no-print">
        <summary aria-label="edit tags">⋯</summary>
        <div className="stack tight">
          {one.tags.map((tag) => (
            <button key={tag} type="button" onClick={() => send.mutate(one.tags.filter((each) => each !== tag))}>
              remove {tag}
            </button>
          ))}
          <form
            className="row tight"
            onSubmit={(event) => {
              event.preventDefault();
              if (text.trim()) send.mutate([...one.tags, text.trim()]);
            }}
          >
            <input aria-label="new tag" placeholder="new tag" value={text} maxLength={80} onChange={(event) => setText(event.target.value)} />
            <button type="submit">add</button>
          </form>
          {!archived && (
            <button type="button" onClick={() => send.mutate([...one.tags, "archived"])}>
              archive: hide it from the list
            </button>
          )}
          {mayDelete(session) && one.status !== "running" && one.status !== "waiting" && <Ask kind="delete" where={path("experiments", one.id)} />}
          {send.error && <p role="alert" style={{ color: "var(--refuted)" }}>{send.error.message}</p>}
        </div>
      </details>
    </>
  );
}

/** What is asked for: how much would be trained, and what it may cost. */
function Plan({ detail }: { detail: ExperimentDetail }) {
  const one = detail.experiment;
  const budget = Object.entries(asDict(detail.config["budget"])).filter(([name, limit]) => name !== "needs_approval" && limit !== null);
  const steps = [...new Set(one.runs.map((run) => run.params["max_steps"]).filter(Boolean))];
  const facts: [string, string][] = [
    ["plan", [plural(one.n_runs, "run"), plural(one.n_arms, "arm"), ...one.models, ...one.algorithms, ...one.backends.map((name) => `on ${name}`)].join(" · ")],
    ["steps per arm", steps.join(" / ") || "as many as its data gives"],
    ["budget", budget.length ? budget.map(([name, limit]) => `${name.replace(/^max_/, "")} ${value(limit)}`).join(" · ") : "no limit is set"],
  ];
  return (
    <section className="notice stack tight" style={toneOf("promising")} aria-label="plan">
      <strong>Nothing was spent yet. This would be run:</strong>
      <dl className="facts">
        {facts.map(([name, text]) => (
          <div key={name} style={{ display: "contents" }}>
            <dt>{name}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <div className="no-print">
        <p className="small quiet">estimate of tokens, time and cost</p>
        <Command text={`evsys plan ${(detail.commands["reproduce"] ?? "evsys run config.yaml").split(" ")[2] ?? "config.yaml"}`} />
      </div>
    </section>
  );
}

const asDict = (it: Json | undefined): Dict => (it && typeof it === "object" && !Array.isArray(it) ? it : {});

/** The claim beside the conclusion: one plot with its uncertainty, and what one must know to read it. */
function Claim({ detail }: { detail: ExperimentDetail }) {
  const one = detail.experiment;
  const colour = useRunColours(detail);
  const compared = runsOf(one).filter((run) => run.difference);
  const sign = detail.claim.direction === "decrease" ? -1 : 1;
  const claimed = detail.claim.min_effect ? detail.claim.min_effect * sign : null;
  const numbers = () => [
    ["run", "difference", "low", "high", "p"],
    ...compared.map((run) => [run.run, run.difference?.value, run.difference?.low, run.difference?.high, run.difference?.p]),
  ];
  return (
    <div className="columns">
      <div className="stack">
        {one.sentence && <p style={{ fontSize: "var(--large)", lineHeight: 1.4 }}>{sentence(detail)}</p>}
        {compared.length > 0 ? (
          <Figure title={`${one.metric || "score"} against ${baselineOf(one)}, 95 % simultaneous`} data={numbers}>
            <Forest runs={compared} label={(run) => labelOf(run, one.varied)} colour={colour} claimed={claimed} />
            {claimed !== null && (
              <p className="small quiet">dashed: the smallest effect that was claimed, {signed(claimed)}</p>
            )}
          </Figure>
        ) : (
          <>
            <BestScore detail={detail} />
            <FirstCurves detail={detail} colour={colour} />
          </>
        )}
        {detail.interim.length > 0 && <Looks looks={detail.interim} />}
        <Log detail={detail} />
      </div>
      <Facts detail={detail} />
    </div>
  );
}

/** Where nothing is compared yet, how it goes says most. */
function FirstCurves({ detail, colour }: { detail: ExperimentDetail; colour: (run: string) => string }) {
  const parts = [{ id: detail.experiment.id, run: runsOf(detail.experiment).slice(0, MOST_RUNS).map((run) => run.run) }];
  const names = useCurvesOf(parts, { points: 1 }).data?.metrics ?? [];
  const first = firstMetrics(names);
  const shown = (first.length ? first : names).slice(0, 4);
  return shown.length ? <SmallCurves parts={parts} metrics={shown} colour={colour} /> : null;
}

const MOST_RUNS = 12;

/** Where seeds are added until the claim is decided: what each interim analysis found. */
const Looks = ({ looks }: { looks: InterimLook[] }) => (
  <div className="scroll-x" tabIndex={0} role="group" aria-label="interim analyses">
    <table>
      <thead>
        <tr>
          <th className="number">interim analysis</th>
          <th className="number">seeds</th>
          <th className="number">tested at</th>
          <th className="number">chance</th>
          <th>decision</th>
        </tr>
      </thead>
      <tbody>
        {looks.map((one) => (
          <tr key={one.look}>
            <td className="number">
              {one.look} of {one.of}
            </td>
            <td className="number">{one.seeds}</td>
            <td className="number" title="false positive rate of this analysis">{one.error ? `${show(100 * one.error)} %` : "–"}</td>
            <td className="number" title="of being supported at the last analysis">{one.chance === null ? "–" : `${show(100 * one.chance)} %`}</td>
            <td>
              {one.ends ? <Verdict verdict={one.verdict} /> : <span className="quiet">continues</span>}
              {one.ends && <p className="small quiet">{one.why.replaceAll("`", "")}</p>}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  </div>
);

/** The verdict is already said by its mark. */
function sentence(detail: ExperimentDetail): string {
  const text = detail.experiment.sentence;
  const word = verdictWord(detail.experiment.verdict);
  const rest = word && text.toLowerCase().startsWith(word) ? text.slice(text.indexOf(":") + 1).trim() : text;
  return (rest.charAt(0).toUpperCase() + rest.slice(1)).replaceAll("`", "");
}

function BestScore({ detail }: { detail: ExperimentDetail }) {
  const one = detail.experiment;
  const live = one.live;
  if (live) {
    const done = live.step !== null && live.total_steps ? Math.min(1, live.step / live.total_steps) : null;
    return (
      <div className="stack tight">
        <p>
          {plural(live.arms_running, "arm")} running
          {live.step !== null && `, step ${live.step}${live.total_steps ? ` of ${live.total_steps}` : ""}`}
          {live.recent.length > 0 && `, ${live.metric} ${score(live.recent.at(-1))}`}
        </p>
        {done !== null && <progress value={done} max={1} aria-label="furthest arm" style={{ width: "100%" }} />}
      </div>
    );
  }
  if (one.best_score === null) return <p className="quiet">Nothing was scored, so there is nothing to compare.</p>;
  return (
    <p>
      {one.metric || "Best score"}: <strong>{score(one.best_score)}</strong>
      {one.best_low !== null && <span className="quiet"> [{score(one.best_low)}, {score(one.best_high)}]</span>}
      {one.best_run && ` by ${one.best_run}`}.
      {one.n_runs === 1 && " One run is no comparison: add a baseline or a second run."}
    </p>
  );
}

/** The last lines that it printed, where somebody may want them: while it runs, and where it went wrong. */
function Log({ detail }: { detail: ExperimentDetail }) {
  const one = detail.experiment;
  if (!detail.log || (one.status === "completed" && !one.n_failures)) return null;
  const lines = detail.log.split("\n");
  return (
    <details open={one.status !== "running"}>
      <summary>last lines of its output</summary>
      <pre className="config mono" tabIndex={0} aria-label="output">{lines.slice(-40).join("\n")}</pre>
    </details>
  );
}

function Facts({ detail }: { detail: ExperimentDetail }) {
  const { experiment: one, claim } = detail;
  const runs = runsOf(one);
  const differing = one.varied.slice(0, 5).map((path) => {
    const found = [...new Set(runs.map((run) => run.varied[path]))];
    const values = found.sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : 0)).map(value);
    return `${shortPath(path)} ${values.slice(0, 6).join(" / ")}${values.length > 6 ? " / …" : ""}`;
  });
  const best = runs.find((run) => run.is_best) ?? runs[0];
  const population = best && best.n_seeds > 0 && [
    best.n_tasks !== null && plural(best.n_tasks, "task"),
    best.n_samples !== null && plural(best.n_samples, "sample"),
    plural(best.n_seeds, "seed"),
  ];
  const tokens = (one.spend["tokens_trained"] ?? 0) + (one.spend["tokens_sampled"] ?? 0);
  const price = [
    one.spend["usd"] ? usd(one.spend["usd"]) : "",
    tokens ? `${compact(tokens)} tokens` : "",
    one.spend["wall_s"] ? duration(one.spend["wall_s"]) : "",
  ].filter(Boolean);
  return (
    <div className="stack">
      <dl className="facts">
        {claim.min_effect !== null && (
          <>
            <dt>claimed</dt>
            <dd>
              {claim.min_effect ? signed(claim.direction === "decrease" ? -claim.min_effect : claim.min_effect) : `any ${claim.direction || "change"}`}
              {claim.min_effect ? " on " : " of "}
              {claim.metric || one.metric}
              {claim.registered && <span className="quiet">, registered {claim.registered_at ? clock(claim.registered_at) : "before the first step"} ✓</span>}
            </dd>
          </>
        )}
        {differing.length > 0 && (
          <>
            <dt>what differed</dt>
            <dd>{differing.map((line) => <div key={line}>{line}</div>)}</dd>
          </>
        )}
        {population && (
          <>
            <dt>population</dt>
            <dd>{population.filter(Boolean).join(", ")}</dd>
          </>
        )}
        {price.length > 0 && (
          <>
            <dt>spend</dt>
            <dd>{price.join(", ")}</dd>
          </>
        )}
        {detail.smallest_detectable !== null && (
          <>
            <dt>detectable</dt>
            <dd>{score(detail.smallest_detectable)} or more (80 % power)</dd>
          </>
        )}
        {detail.threats.length > 0 && (
          <>
            <dt>threats</dt>
            <dd>{detail.threats.map((line) => <div key={line}>{line.replaceAll("`", "")}</div>)}</dd>
          </>
        )}
        {one.failures.length > 0 && (
          <>
            <dt>failures</dt>
            <dd style={{ color: "var(--refuted)" }}>{one.failures.slice(0, 4).map((failure) => <div key={failure.arm}>{failure.arm}: {failure.reason}</div>)}</dd>
          </>
        )}
        {detail.next.length > 0 && (
          <>
            <dt>next</dt>
            <dd>{detail.next.map((line) => <div key={line}>{line.replaceAll("`", "")}</div>)}</dd>
          </>
        )}
      </dl>
      {Object.entries(detail.commands).map(([name, command]) => (
        <div key={name} className="no-print">
          <p className="small quiet">{name}</p>
          <Command text={command} />
        </div>
      ))}
    </div>
  );
}
