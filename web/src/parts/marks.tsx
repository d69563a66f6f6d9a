/** Verdicts and states: a colour and a shape, so that neither has to be told apart alone. */

import type { ShownExperiment } from "../api/types";

interface Look {
  word: string;
  tone: string;
  shape: "disc" | "cross" | "diamond" | "half" | "triangle" | "turning" | "ring" | "square" | "bar";
}

const VERDICTS: { [verdict: string]: Look } = {
  supported: { word: "supported", tone: "supported", shape: "disc" },
  refuted: { word: "refuted", tone: "refuted", shape: "cross" },
  inconclusive: { word: "inconclusive", tone: "inconclusive", shape: "diamond" },
  promising_unconfirmed: { word: "promising", tone: "promising", shape: "half" },
  invalid: { word: "invalid", tone: "invalid", shape: "triangle" },
};

const STATES: { [status: string]: Look } = {
  running: { word: "running", tone: "accent", shape: "turning" },
  waiting: { word: "waiting", tone: "quiet", shape: "ring" },
  completed: { word: "completed", tone: "quiet", shape: "disc" },
  failed: { word: "failed", tone: "refuted", shape: "cross" },
  killed: { word: "killed", tone: "refuted", shape: "square" },
  interrupted: { word: "interrupted", tone: "promising", shape: "bar" },
  cancelled: { word: "stopped", tone: "promising", shape: "bar" },
  budget: { word: "out of budget", tone: "promising", shape: "bar" },
  shipped: { word: "shipped", tone: "supported", shape: "disc" },
  refused: { word: "refused", tone: "refuted", shape: "cross" },
  "rolled back": { word: "rolled back", tone: "promising", shape: "bar" },
  nearly_spent: { word: "nearly spent", tone: "promising", shape: "half" },
  deadline: { word: "deadline near", tone: "promising", shape: "half" },
  flagged: { word: "flagged", tone: "invalid", shape: "triangle" },
  approval: { word: "waits for approval", tone: "promising", shape: "bar" },
  open: { word: "open", tone: "accent", shape: "ring" },
  met: { word: "goal met", tone: "supported", shape: "disc" },
  spent: { word: "budget spent", tone: "promising", shape: "bar" },
  stalled: { word: "stalled", tone: "inconclusive", shape: "diamond" },
  closed: { word: "closed", tone: "quiet", shape: "square" },
  damaged: { word: "damaged", tone: "invalid", shape: "triangle" },
};

const verdictLook = (verdict: string): Look => VERDICTS[verdict] ?? { word: verdict, tone: "quiet", shape: "ring" };
const stateLook = (status: string): Look => STATES[status] ?? { word: status || "unknown", tone: "quiet", shape: "ring" };

export const verdictWord = (verdict: string): string => verdictLook(verdict).word;
export const toneOf = (tone: string): { [name: string]: string } => ({ "--tone": `var(--${tone})` });
export const verdictTone = (verdict: string): string => `var(--${verdictLook(verdict).tone})`;

function Glyph({ shape }: { shape: Look["shape"] }) {
  return (
    <svg width="14" height="14" viewBox="0 0 14 14" fill="none" stroke="currentColor" strokeWidth="2" aria-hidden="true">
      {shape === "disc" && <circle cx="7" cy="7" r="5" fill="currentColor" stroke="none" />}
      {shape === "cross" && <path d="M3 3l8 8M11 3l-8 8" strokeLinecap="round" />}
      {shape === "diamond" && <path d="M7 2l5 5-5 5-5-5z" />}
      {shape === "half" && (
        <>
          <circle cx="7" cy="7" r="4.6" />
          <path d="M7 2.5v9A4.5 4.5 0 0 0 7 2.5z" fill="currentColor" stroke="none" />
        </>
      )}
      {shape === "triangle" && <path d="M7 1.5l6 11H1z" fill="currentColor" stroke="none" />}
      {shape === "turning" && <circle className="running-glyph" cx="7" cy="7" r="4.6" strokeDasharray="4.4 2.8" />}
      {shape === "ring" && <circle cx="7" cy="7" r="4.6" strokeWidth="1.5" />}
      {shape === "square" && <rect x="2.5" y="2.5" width="9" height="9" fill="currentColor" stroke="none" />}
      {shape === "bar" && <path d="M4.5 3v8M9.5 3v8" strokeLinecap="round" />}
    </svg>
  );
}

function Mark({ look, detail }: { look: Look; detail?: string }) {
  return (
    <span className="mark" style={toneOf(look.tone)}>
      <Glyph shape={look.shape} />
      {look.word}
      {detail ? ` ${detail}` : ""}
    </span>
  );
}

export const Verdict = ({ verdict }: { verdict: string }) => <Mark look={verdictLook(verdict)} />;
export const State = ({ status, detail }: { status: string; detail?: string }) => (
  <Mark look={stateLook(status)} detail={detail} />
);

/** The verdict on the claim, else the state: without a claim the verdict says only that there was none. */
export function Outcome({ experiment: one }: { experiment: ShownExperiment }) {
  if (one.status === "waiting") return <State status="approval" />;
  if (one.status === "running") return <State status="running" detail={`${one.n_done}/${one.n_arms}`} />;
  return one.verdict && (one.hypothesis || one.flags.length) ? <Verdict verdict={one.verdict} /> : <State status={one.status} />;
}

/** That arms failed, whatever the verdict is. */
export const Failed = ({ experiment: one }: { experiment: ShownExperiment }) =>
  one.n_failures ? (
    <span className="failed small" title={`${one.n_failures} of ${one.n_arms} arms failed or are unscored`}>
      ✕ {one.n_failures} failed
    </span>
  ) : null;

export const VERDICT_ORDER = Object.keys(VERDICTS);
