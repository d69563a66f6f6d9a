/** The closed loops: what each waits for, what became of every round, and which condition of the gate decided it. */

import { path } from "../api/client";
import { useLoops } from "../api/queries";
import type { LoopPage, LoopRound, LoopStep, PageSession } from "../api/types";
import { clock, plural, usd } from "../format";
import { href } from "../location";
import { Answer, Empty } from "../parts/basics";
import { Ask, mayWrite } from "../parts/Control";
import { State } from "../parts/marks";
import { useTitle } from "../title";

export function LoopsPage({ session }: { session: PageSession }) {
  useTitle("Loops");
  const query = useLoops();
  return (
    <main id="main" tabIndex={-1}>
      <h1>Loops</h1>
      <Answer query={query}>
        {({ items }) =>
          items.length ? (
            <>
              {items.map((one) => (
                <Loop key={one.system} loop={one} session={session} />
              ))}
            </>
          ) : (
            <Empty title="No loop of this project has run yet" command="evsys loop system.yaml">
              A loop learns from what happens to a system in use: traces, decision, experiment, gate, deployment.
            </Empty>
          )
        }
      </Answer>
    </main>
  );
}

function Loop({ loop, session }: { loop: LoopPage; session: PageSession }) {
  const waits = loop.state.endsWith("waits to be approved");
  const where = path("loops", loop.system, "requests");
  const limits = Object.entries(loop.limits).map(([name, most]) => `${name} ${most}`);
  return (
    <section className="stack" aria-label={`loop of ${loop.system}`}>
      <div className="row">
        <h2>{loop.system}</h2>
        {loop.state && (waits ? <State status="approval" /> : loop.stopped && <State status="cancelled" />)}
        {mayWrite(session) && !loop.problem && (
          <span className="row no-print" style={{ marginLeft: "auto" }}>
            {waits && <Ask kind="approve" where={where} question={`Approve this step? ${loop.state}.`} />}
            {!loop.stopped && <Ask kind="stop" where={where} question="Stop this loop? It ends before its next step, and continues when its stop file is removed." />}
          </span>
        )}
      </div>
      {loop.problem && (
        <p className="problem" role="alert">
          {loop.problem}
        </p>
      )}
      <p>
        <strong>{loop.live ? `${loop.live} is live` : "Nothing is live"}</strong>
        {loop.state && <> · {loop.state}</>}
        {limits.length > 0 && <span className="quiet small"> · limits: {limits.join(", ")} · {usd(loop.usd)} spent</span>}
      </p>
      {loop.rollbacks.map((one) => (
        <p key={`${one.replaced} ${one.instead}`} className="notice">
          {one.replaced} was rolled back to {one.instead ?? "nothing"}: {one.reason}
        </p>
      ))}
      {loop.rounds.length > 0 && <Rounds rounds={loop.rounds} />}
      {loop.deployments.length > 0 && (
        <p className="small">
          Deployments:{" "}
          {loop.deployments.map((one) => (
            <span key={one.id} className="tag" title={one.time === null ? undefined : clock(one.time)}>
              {one.id}
              {one.live ? " (live)" : ""}
            </span>
          ))}
        </p>
      )}
      {loop.steps.length > 0 && <Steps steps={loop.steps} />}
    </section>
  );
}

function Rounds({ rounds }: { rounds: LoopRound[] }) {
  const approved = rounds.some((one) => one.approvals.length);
  return (
    <div className="scroll-x" tabIndex={0} role="group" aria-label="rounds">
      <table className="tall cards">
        <thead>
          <tr>
            <th className="number">round</th>
            <th>outcome</th>
            <th>decision</th>
            <th className="number">rows</th>
            <th className="number">tasks</th>
            <th>experiment</th>
            <th>gate</th>
            <th>deployment</th>
            {approved && <th>approved</th>}
          </tr>
        </thead>
        <tbody>
          {rounds.map((one) => (
            <tr key={one.round}>
              <td data-label="round" className="number">{one.round}</td>
              <td data-label="outcome">
                {one.outcome ? <State status={one.outcome} /> : <>next: {one.stage}</>}
                {one.reason && <p className="small quiet">{one.reason}</p>}
              </td>
              <td data-label="decision" className="small">
                {one.decision.replace(/^yes: /, "")}
                {Object.entries(one.left_out).map(([reason, count]) => (
                  <p key={reason} className="quiet">
                    left out {count}: {reason}
                  </p>
                ))}
              </td>
              <td data-label="rows" className="number">{one.rows}</td>
              <td data-label="tasks" className="number">{one.tasks}</td>
              <td data-label="experiment" className="nowrap">{one.experiment_id ? <a href={href(["e", one.experiment_id])}>{one.experiment ?? one.experiment_id}</a> : one.experiment}</td>
              <td data-label="gate">
                {one.verdict}
                {one.checks.length > 0 && <Checks round={one} />}
              </td>
              <td data-label="deployment">{one.deployment}</td>
              {approved && <td data-label="approved">{one.approvals.join(", ")}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const Checks = ({ round }: { round: LoopRound }) => (
  <details open={round.verdict !== "pass"}>
    <summary className="small">{plural(round.checks.length, "condition")}</summary>
    <ul className="small">
      {round.checks.map((one) => (
        <li key={one.name}>
          {one.state === "ok" ? "✓" : "✕"} {one.name}: {one.reason}
        </li>
      ))}
    </ul>
  </details>
);

const Steps = ({ steps }: { steps: LoopStep[] }) => (
  <details>
    <summary>{plural(steps.length, "step")}</summary>
    <ol className="small">
      {steps.map((one, at) => (
        <li key={at}>
          <span className="quiet">{one.time === null ? "" : clock(one.time)}</span> {one.round > 0 && `round ${one.round}, `}
          {one.stage}: {one.text}
        </li>
      ))}
    </ol>
  </details>
);
