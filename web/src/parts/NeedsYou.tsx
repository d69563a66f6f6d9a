/** What waits for a person, first of all: with what can be done about it, where it stands. */

import { useState } from "react";

import { path } from "../api/client";
import type { AttentionItem, PageSession } from "../api/types";
import { plural } from "../format";
import { href } from "../location";
import { Copy } from "./basics";
import { Ask, Control, mayWrite } from "./Control";
import { State, toneOf } from "./marks";

const FEW = 3;
const OTHER = /^(campaign|loop):(.+)$/;

/** What the mark does not say already. */
const detailOf = (one: AttentionItem): string => one.what.replace(/^(waits for approval|failed|was killed|stopped by its budget|flagged|refused by the gate|deadline near|budget nearly spent)(: )?/, "");

/** Where it is shown: experiments, campaigns and loops have pages of their own. */
function placeOf(one: AttentionItem): string[] {
  const [, what, name] = OTHER.exec(one.experiment) ?? [];
  return what === "campaign" ? ["campaign", name ?? ""] : what === "loop" ? ["loops"] : ["e", one.experiment];
}

function Act({ item: one, session }: { item: AttentionItem; session: PageSession }) {
  const [, what, name] = OTHER.exec(one.experiment) ?? [];
  if (one.kind !== "waiting") return one.path ? <Copy text={one.command} label="copy command" /> : null;
  if (!what || !name) return <Control id={one.experiment} status="waiting" session={session} stop={false} />;
  if (!mayWrite(session)) return null;
  const where = path(`${what}s`, name, "requests");
  const subject = one.id.slice(one.experiment.length + "/waiting/".length, one.id.lastIndexOf("/"));
  return (
    <>
      <Ask kind="approve" where={where} subject={subject} question={`Approve this? ${one.what}.`} />
      <Ask kind="reject" where={where} subject={subject} question={`Reject this? ${one.what}.`} />
    </>
  );
}

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
            <a href={href(placeOf(one))} className="clip" title={one.experiment}>
              {one.path.split("/").pop() || one.experiment.replace(":", " ")}
            </a>
            <span className="quiet what clip" title={one.what}>
              {detailOf(one)}
            </span>
            <span className="row tight no-print">
              <Act item={one} session={session} />
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
