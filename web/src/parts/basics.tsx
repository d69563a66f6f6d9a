/** Small pieces that every page uses. */

import { useState, type ReactNode } from "react";

import { Problem } from "../api/client";
import { interval, score } from "../format";

export function Copy({ text, label = "copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await copyText(text);
    setDone(true);
    window.setTimeout(() => setDone(false), 1200);
  };
  return (
    <button type="button" onClick={() => void copy()} aria-label={`${label}: ${text.slice(0, 60)}`}>
      {done ? "copied" : label}
    </button>
  );
}

/** The clipboard is only there on secure pages; a file is none. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A command to type, ready to be copied. */
export const Command = ({ text }: { text: string }) => (
  <span className="command">
    <code tabIndex={0}>{text}</code>
    <Copy text={text} />
  </span>
);

export function Empty({ title, children, command }: { title: string; children?: ReactNode; command?: string }) {
  return (
    <div className="empty">
      <strong>{title}</strong>
      {children && <p>{children}</p>}
      {command && <Command text={command} />}
    </div>
  );
}

export function Failure({ error, retry }: { error: unknown; retry?: () => void }) {
  const missing = error instanceof Problem && error.status === 404;
  // The server was started again: its old sessions are worth nothing.
  const signedOut = error instanceof Problem && error.status === 401;
  return (
    <div className="problem" role="alert">
      <strong>{missing ? "Not here" : signedOut ? "Signed out" : "This could not be loaded"}</strong>
      <p>{signedOut ? "Open the address that `evsys dashboard` printed when it was last started." : error instanceof Error ? error.message : String(error)}</p>
      <div className="row">
        {retry && (
          <button type="button" onClick={retry}>
            try again
          </button>
        )}
        <a href="#/">all experiments</a>
      </div>
    </div>
  );
}

/** Lines in place of what is on its way; they take the room that it will take. */
export function Bones({ lines = 6 }: { lines?: number }) {
  return (
    <div className="bones" role="status" aria-label="loading">
      {Array.from({ length: lines }, (_, index) => (
        <i key={index} style={{ width: `${92 - ((index * 37) % 45)}%` }} />
      ))}
    </div>
  );
}

/** What to show for a question: its answer, that it is on its way, or why there is none. */
export function Answer<T>(props: {
  query: { data: T | undefined; error: unknown; refetch: () => unknown };
  children: (data: T) => ReactNode;
  lines?: number;
}) {
  const { data, error, refetch } = props.query;
  if (data !== undefined) return <>{props.children(data)}</>;
  if (error) return <Failure error={error} retry={() => void refetch()} />;
  return <Bones lines={props.lines ?? 6} />;
}

export const Score = ({ value, low, high }: { value: number | null; low: number | null; high: number | null }) => (
  <span className="nowrap">
    {score(value)} <span className="quiet small">{interval(low, high)}</span>
  </span>
);

export function Choose(props: {
  label: string;
  value: string;
  options: readonly (string | readonly [string, string])[];
  onChange: (value: string) => void;
  /** What the empty choice is called; without it there is none. */
  all?: string;
}) {
  return (
    <select aria-label={props.label} value={props.value} onChange={(event) => props.onChange(event.target.value)}>
      {props.all !== undefined && <option value="">{props.all}</option>}
      {props.options.map((option) => {
        const [value, word] = typeof option === "string" ? [option, option] : option;
        return (
          <option key={value} value={value}>
            {word}
          </option>
        );
      })}
    </select>
  );
}

export function Tabs({ tabs, current, to }: {
  tabs: readonly { id: string; word: string; count?: number }[];
  current: string;
  to: (id: string) => string;
}) {
  return (
    <nav className="tabs no-print" aria-label="sections">
      {tabs.map((tab) => (
        <a key={tab.id} href={to(tab.id)} aria-current={tab.id === current ? "page" : undefined}>
          {tab.word}
          {tab.count !== undefined && <span className="count">{tab.count}</span>}
        </a>
      ))}
    </nav>
  );
}

export const Tags = ({ tags }: { tags: string[] }) => (
  <>
    {tags.map((tag) => (
      <span className="tag" key={tag}>
        {tag}
      </span>
    ))}
  </>
);

export function Sparkline({ values, label }: { values: number[]; label: string }) {
  if (values.length < 2) return null;
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const points = values.map((value, at) => `${(at / (values.length - 1)) * 62 + 1},${17 - ((value - low) / span) * 14}`);
  return (
    <svg width="64" height="20" role="img" aria-label={label}>
      <polyline points={points.join(" ")} fill="none" stroke="var(--accent)" strokeWidth="1.5" />
    </svg>
  );
}
