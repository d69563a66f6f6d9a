/** What waits for a person, first of all: with what can be done about it, where it stands. */

import { useState } from "react";

import type { AttentionItem, PageSession } from "../api/types";
import { plural } from "../format";
import { href } from "../location";
import { Copy } from "./basics";
import { Control } from "./Control";
import { State, toneOf } from "./marks";

const FEW = 3;

export function NeedsYou({ items, session }: { items: AttentionItem[]; session: PageSession }) {
  const [all, setAll] = useState(false);
  if (!items.length) return null;
  const shown = all ? items : items.slice(0, FEW);
  return (
    <section className="notice needs stack tight" style={toneOf("promising")} aria-label="needs you">
      <h2>Needs you</h2>
      <ul>
        {shown.map((one) => (
          <li key={one.id} className="row">
            <State status={one.kind === "waiting" ? "approval" : one.kind} />
            <a href={href(["e", one.experiment])} className="clip" title={one.experiment}>
              {one.path.split("/").pop() || one.experiment}
            </a>
            <span className="quiet what clip" title={one.what}>
              {one.what}
            </span>
            <span className="row tight no-print">
              {one.kind === "waiting" ? <Control id={one.experiment} status="waiting" session={session} /> : one.path && <Copy text={one.command} label="copy command" />}
            </span>
          </li>
        ))}
      </ul>
      {items.length > FEW && (
        <button type="button" className="link small" onClick={() => setAll(!all)} aria-expanded={all}>
          {all ? "show fewer" : `and ${plural(items.length - FEW, "other")}`}
        </button>
      )}
    </section>
  );
}
