/** One rollout to read: who said what, tools folded with their results, what the verifier saw. All of it is plain text. */

import { useState } from "react";

import type { Dict, RolloutDetail } from "../api/types";
import { score, usd } from "../format";
import { rewardColour } from "../colours";
import { markNew } from "./diff";
import { tokensOf, turnsOf, type Token, type Turn } from "./transcripts";

export function Transcript({ detail, against, find }: { detail: RolloutDetail; against?: RolloutDetail; find?: string }) {
  const [coloured, setColoured] = useState(false);
  const { rollout } = detail;
  const tokens = tokensOf(detail.raw);
  const turns = turnsOf(detail);
  const others = against ? turnsOf(against) : null;
  const facts = [
    `sample ${rollout.sample}`,
    rollout.turns !== null && rollout.turns > 1 ? `${rollout.turns} turns` : "",
    rollout.tokens !== null ? `${rollout.tokens} tokens` : "",
    typeof detail.raw["seconds"] === "number" ? `${detail.raw["seconds"].toFixed(2)} s` : "",
    Number(detail.raw["cost_usd"]) > 0 ? usd(Number(detail.raw["cost_usd"])) : "",
  ];
  return (
    <article className="transcript">
      <header className="row small">
        <span className="row tight" style={{ fontSize: 14 }}>
          <i className="swatch" style={{ background: rollout.reward === null ? "none" : rewardColour(rollout.reward), border: "1px solid var(--strong-line)" }} />
          {rollout.reward === null ? rollout.status || "no reward" : `reward ${score(rollout.reward)}`}
        </span>
        <span className="quiet">{facts.filter(Boolean).join(" · ")}</span>
        {tokens.some((token) => token.logprob !== null) && (
          <button type="button" aria-pressed={coloured} onClick={() => setColoured(!coloured)} style={{ marginLeft: "auto" }}>
            colour by logprob
          </button>
        )}
      </header>
      {detail.error && (
        <p className="notice" style={{ "--tone": "var(--refuted)" } as React.CSSProperties}>
          {detail.error}
        </p>
      )}
      {coloured ? <Tokens tokens={tokens} /> : turns.map((turn, at) => <TurnView key={at} turn={turn} other={others?.[at]} find={find ?? ""} />)}
      <Verifier detail={detail} />
    </article>
  );
}

function TurnView({ turn, other, find }: { turn: Turn; other: Turn | undefined; find: string }) {
  const texts = turn.parts.flatMap((part) => (part.kind === "text" ? [part.text] : []));
  const long = turn.role === "system" || turn.role === "tool" ? texts.join("").length > 600 : false;
  const body = (
    <>
      {turn.parts.map((part, at) =>
        part.kind === "image" ? (
          <img key={at} src={part.source} alt={`from ${turn.role}`} />
        ) : (
          <pre key={at}>
            <Text text={part.text} other={other && turn.role === "assistant" ? textOfTurn(other) : null} find={find} />
          </pre>
        ),
      )}
    </>
  );
  return (
    <div className="turn" data-role={turn.role} role="group" aria-label={turn.role}>
      <header>
        <span>{turn.role}</span>
        {turn.remarks.length > 0 && <span>{turn.remarks.join(" · ")}</span>}
      </header>
      {long ? (
        <details>
          <summary>{texts.join("").slice(0, 120)}…</summary>
          {body}
        </details>
      ) : (
        body
      )}
      {turn.calls.map((call, at) => (
        <details key={at} open={call.arguments.length < 200}>
          <summary>
            {call.name}({call.arguments.length < 80 ? call.arguments.replace(/\s+/g, " ") : "…"})
          </summary>
          {call.arguments.length >= 80 && <pre>{call.arguments}</pre>}
        </details>
      ))}
    </div>
  );
}

const textOfTurn = (turn: Turn): string => turn.parts.flatMap((part) => (part.kind === "text" ? [part.text] : [])).join("\n");

function Text({ text, other, find }: { text: string; other: string | null; find: string }) {
  if (other !== null && other !== text) {
    return markNew(other, text).map((piece, at) => (piece.isNew ? <span key={at} className="added">{piece.text}</span> : piece.text));
  }
  if (!find) return text;
  const found = text.toLowerCase().split(find.toLowerCase());
  let at = 0;
  return found.flatMap((piece, index) => {
    const plain = text.slice(at, at + piece.length);
    at += piece.length;
    if (index === found.length - 1) return [plain];
    const hit = text.slice(at, at + find.length);
    at += find.length;
    return [plain, <mark key={index}>{hit}</mark>];
  });
}

/** The likelier, the paler: what surprised the model itself stands out. */
function Tokens({ tokens }: { tokens: Token[] }) {
  return (
    <div className="turn" data-role="assistant" role="group" aria-label="tokens">
      <pre>
        {tokens.map((token, at) => {
          const doubt = token.logprob === null ? 0 : 1 - Math.exp(token.logprob);
          return (
            <span
              key={at}
              className={`token${token.trained ? "" : " masked"}`}
              title={token.logprob === null ? "not sampled" : `logprob ${token.logprob.toFixed(3)}${token.trained ? "" : ", not trained on"}`}
              style={{ background: `color-mix(in oklab, var(--promising) ${Math.round(doubt * 45)}%, transparent)` }}
            >
              {token.text}
            </span>
          );
        })}
      </pre>
      <p className="small quiet">Darker: less likely to the model. Italics: the loss does not see it.</p>
    </div>
  );
}

function Verifier({ detail }: { detail: RolloutDetail }) {
  const expected = detail.raw["expected"] ?? detail.raw["target"];
  const info: Dict = { ...detail.info };
  if (expected !== undefined && expected !== null) info["expected"] = expected;
  return (
    <>
      {Object.keys(info).length > 0 && (
        <div className="turn" role="group" aria-label="verifier">
          <header>
            <span>verifier</span>
          </header>
          <pre>{Object.entries(info).map(([key, it]) => `${key}: ${typeof it === "string" ? it : JSON.stringify(it)}`).join("\n")}</pre>
        </div>
      )}
      <details className="small">
        <summary className="quiet">as recorded</summary>
        <pre>{JSON.stringify(detail.raw, null, 2)}</pre>
      </details>
    </>
  );
}
