/** One run with one seed: how it is going, what it learned from, and why it did what it did. */

import { useArm, useExperiment } from "../api/queries";
import type { ArmDetail, Dict } from "../api/types";
import { compact, duration, score, show, usd } from "../format";
import { href, useSetting } from "../location";
import { Answer, Copy, Empty, Tabs } from "../parts/basics";
import { CurvesFigure } from "../parts/CurvesFigure";
import { Markdown } from "../parts/Markdown";
import { State, toneOf } from "../parts/marks";
import { Config } from "../parts/Tree";
import { colours } from "../colours";
import { useTheme } from "../theme";
import { RolloutsTab } from "./RolloutsTab";

export function ArmPage({ id, arm }: { id: string; arm: string }) {
  const query = useArm(id, arm);
  return (
    <main id="main" tabIndex={-1}>
      <Answer query={query} lines={12}>
        {(detail) => <Loaded id={id} detail={detail} />}
      </Answer>
    </main>
  );
}

function Loaded({ id, detail }: { id: string; detail: ArmDetail }) {
  const [tab] = useSetting("tab", "curves");
  const { arm } = detail;
  const theme = useTheme();
  const tabs = [
    { id: "curves", word: "Curves" },
    { id: "rollouts", word: "Rollouts" },
    { id: "checkpoints", word: "Checkpoints", count: detail.checkpoints.length },
    { id: "examples", word: "Examples" },
    { id: "config", word: "Config" },
    ...(detail.story ? [{ id: "story", word: "Conclusion" }] : []),
  ];
  return (
    <>
      <Header id={id} detail={detail} />
      <div className="stack">
        <Tabs tabs={tabs} current={tab} to={(name) => href(["e", id, "a", arm.arm], name === "curves" ? {} : { tab: name })} />
        {tab === "curves" && (
          <div className="columns">
            <CurvesFigure parts={[{ id, arm: [arm.arm] }]} colour={colours([arm.run], "", theme)} />
            <Metrics detail={detail} />
          </div>
        )}
        {tab === "rollouts" && <RolloutsTab id={id} arm={arm.arm} />}
        {tab === "checkpoints" && <Checkpoints detail={detail} />}
        {tab === "examples" && <Examples detail={detail} />}
        {tab === "story" && <Markdown text={detail.story} label="conclusion of this run" />}
        {tab === "config" && <Config value={detail.config} label="config of this run" />}
      </div>
    </>
  );
}

function Header({ id, detail }: { id: string; detail: ArmDetail }) {
  const { arm } = detail;
  const whole = useExperiment(id);
  const done = arm.step !== null && arm.total_steps ? Math.min(1, arm.step / arm.total_steps) : null;
  const tokens = (arm.spend["tokens_trained"] ?? 0) + (arm.spend["tokens_sampled"] ?? 0);
  const facts = [
    arm.seed !== null ? `seed ${arm.seed}` : "",
    arm.step !== null ? `step ${arm.step}${arm.total_steps ? ` of ${arm.total_steps}` : ""}` : "",
    arm.spend["usd"] ? usd(arm.spend["usd"]) : "",
    tokens ? `${compact(tokens)} tokens` : "",
    arm.spend["wall_s"] ? duration(arm.spend["wall_s"]) : "",
  ];
  return (
    <header className="stack tight">
      <div className="row">
        <State status={arm.status} />
        <a href={href(["e", id])}>{whole.data?.experiment.name ?? "experiment"}</a>
        <span className="quiet">{facts.filter(Boolean).join(" · ")}</span>
      </div>
      <h1>{arm.arm}</h1>
      {arm.score !== null && (
        <p>
          {whole.data?.experiment.metric}: <strong>{score(arm.score)}</strong>
        </p>
      )}
      {arm.status === "running" && done !== null && <progress value={done} max={1} aria-label="steps done" style={{ width: "min(480px, 100%)" }} />}
      {arm.problem && (
        <p className="notice" style={toneOf("refuted")}>
          <strong>Diagnosis.</strong> {arm.problem}
        </p>
      )}
    </header>
  );
}

function Metrics({ detail }: { detail: ArmDetail }) {
  const names = Object.keys(detail.arm.metrics).sort();
  if (!names.length) return null;
  return (
    <section className="stack tight">
      <h2>Last values</h2>
      <table>
        <tbody>
          {names.map((name) => (
            <tr key={name}>
              <td>{name}</td>
              <td className="number">{show(detail.arm.metrics[name])}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Checkpoints({ detail }: { detail: ArmDetail }) {
  if (!detail.checkpoints.length) return <Empty title="No checkpoint yet">One is written at the end of training, and before it where the recipe says `save_every`.</Empty>;
  const scoreName = (one: Dict) => Object.entries((one["metrics"] ?? {}) as Dict).filter(([, value]) => typeof value === "number");
  return (
    <div className="scroll-x" tabIndex={0} role="group" aria-label="checkpoints">
      <table>
        <thead>
          <tr>
            <th>name</th>
            <th className="number">step</th>
            <th>metrics</th>
            <th>weights to sample from</th>
          </tr>
        </thead>
        <tbody>
          {detail.checkpoints.map((one, at) => (
            <tr key={at}>
              <td className="nowrap">
                {String(one["name"] ?? "")} {one["final"] === true && <span className="tag">final</span>}
              </td>
              <td className="number">{String(one["step"] ?? "")}</td>
              <td className="small quiet">
                {scoreName(one)
                  .slice(0, 6)
                  .map(([name, value]) => `${name} ${show(value as number)}`)
                  .join(" · ")}
              </td>
              <td>
                <span className="row tight">
                  <code>{String(one["path"] ?? "")}</code>
                  <Copy text={String(one["path"] ?? "")} />
                </span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** As the model saw them: lines that carry loss are marked. */
function Examples({ detail }: { detail: ArmDetail }) {
  return (
    <div className="stack">
      {detail.datasets.length > 0 && (
        <ul className="stack tight">
          {detail.datasets.map((one, at) => (
            <li key={at}>
              {String(one["source"] ?? one["id"] ?? "dataset")} <span className="quiet small">{one["rows"] !== undefined ? `${String(one["rows"])} rows` : ""} <span className="mono">{String(one["sha256"] ?? "").slice(0, 12)}</span></span>
            </li>
          ))}
        </ul>
      )}
      {detail.examples ? (
        <pre className="config examples" tabIndex={0} role="group" aria-label="rendered examples">
          {detail.examples.split("\n").map((line, at) => (
            <span key={at} className={line.startsWith("+") ? "added" : line.startsWith("#") ? "title" : ""}>
              {line}
              {"\n"}
            </span>
          ))}
        </pre>
      ) : (
        <Empty title="No rendered examples">Recipes that train on text write the first few as the model sees them.</Empty>
      )}
    </div>
  );
}
