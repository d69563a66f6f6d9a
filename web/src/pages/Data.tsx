/** Datasets and benchmarks: every version, and its rows as they are. */

import { useCallback } from "react";

import { useDataEntries, useDataRows } from "../api/queries";
import type { DataEntry, Dict, Json } from "../api/types";
import { ago, bytes } from "../format";
import { href, useSetting } from "../location";
import { Answer, Bones, Empty, Failure } from "../parts/basics";
import { turnOf, type Turn } from "../parts/transcripts";
import { useTitle } from "../title";

export function DataPage() {
  useTitle("Data");
  return (
    <main id="main" tabIndex={-1}>
      <h1>Data</h1>
      <Entries kind="dataset" title="Datasets" command="evsys dataset add rows.jsonl --name NAME" />
      <Entries kind="benchmark" title="Benchmarks" command="evsys benchmark add tasks.jsonl --name NAME" />
    </main>
  );
}

function Entries({ kind, title, command }: { kind: "dataset" | "benchmark"; title: string; command: string }) {
  const query = useDataEntries(kind);
  return (
    <section className="stack tight">
      <h2>{title}</h2>
      <Answer query={query}>
        {(found) =>
          !found.items.length ? (
            <Empty title={`No ${title.toLowerCase()} in this project`} command={command} />
          ) : (
            <div className="scroll-x" tabIndex={0} role="group" aria-label={title}>
              <table>
                <thead>
                  <tr>
                    <th>name</th>
                    <th>version</th>
                    <th>split</th>
                    <th className="number">rows</th>
                    <th className="number">size</th>
                    <th>format</th>
                    <th className="number">added</th>
                  </tr>
                </thead>
                <tbody>
                  {found.items.map((entry) => (
                    <EntryRow key={entry.id} entry={entry} />
                  ))}
                </tbody>
              </table>
            </div>
          )
        }
      </Answer>
    </section>
  );
}

function EntryRow({ entry }: { entry: DataEntry }) {
  return (
    <tr>
      <td>
        <a href={href(["data", entry.kind, entry.id])}>{entry.name}</a>
      </td>
      <td>v{entry.version}</td>
      <td>{entry.split}</td>
      <td className="number">{entry.rows === null ? "–" : entry.rows.toLocaleString("en")}</td>
      <td className="number">{bytes(entry.bytes)}</td>
      <td>{entry.format}</td>
      <td className="number quiet">{ago(entry.created)}</td>
    </tr>
  );
}

export function DataRowsPage({ kind, id }: { kind: "dataset" | "benchmark"; id: string }) {
  const query = useDataRows(kind, id);
  const [find, setFind] = useSetting("q");
  const more = useCallback(() => void query.fetchNextPage(), [query]);
  const entry = query.data?.pages[0]?.entry;
  const rows = query.data?.pages.flatMap((page) => page.rows) ?? [];
  const shown = find ? rows.filter((row) => JSON.stringify(row).toLowerCase().includes(find.toLowerCase())) : rows;
  return (
    <main id="main" tabIndex={-1}>
      {!entry ? (
        query.error ? <Failure error={query.error} retry={() => void query.refetch()} /> : <Bones lines={10} />
      ) : (
        <>
          <header className="stack tight">
            <div className="row quiet">
              <a href={href(["data"])}>data</a> · {kind} · v{entry.version} · {entry.split} · {entry.rows ?? "?"} rows
            </div>
            <h1>{entry.name}</h1>
            <code className="quiet">{entry.id}</code>
          </header>
          <div className="row">
            <input type="search" value={find} onChange={(event) => setFind(event.target.value)} placeholder="search the rows below" aria-label="search rows" />
            <span className="quiet">
              {shown.length} of {entry.rows ?? rows.length} rows
            </span>
          </div>
          <div className="stack">
            {shown.map((row) => (
              <Row key={rows.indexOf(row)} row={row} number={rows.indexOf(row) + 1} />
            ))}
            {query.hasNextPage && (
              <div>
                <button type="button" onClick={more} disabled={query.isFetchingNextPage}>
                  more rows
                </button>
              </div>
            )}
          </div>
        </>
      )}
    </main>
  );
}

/** Conversations as such, with their pictures; everything else key by key. */
function Row({ row, number }: { row: Dict; number: number }) {
  const turns = Array.isArray(row["messages"]) ? row["messages"].filter(isDict).map(turnOf) : [];
  const rest = Object.entries(row).filter(([key, it]) => key !== "messages" && it !== null && !(Array.isArray(it) && !it.length));
  return (
    <article className="columns" style={{ borderTop: "1px solid var(--line)", paddingTop: 12 }} aria-label={`row ${number}`}>
      <div className="transcript">
        {turns.map((turn, at) => (
          <PlainTurn key={at} turn={turn} />
        ))}
        {!turns.length && <Values entries={rest} />}
      </div>
      <div className="stack tight">
        <span className="small quiet">row {number}</span>
        {turns.length > 0 && <Values entries={rest} />}
      </div>
    </article>
  );
}

const isDict = (it: Json): it is Dict => typeof it === "object" && it !== null && !Array.isArray(it);

const Values = ({ entries }: { entries: [string, Json][] }) => (
  <dl className="facts small">
    {entries.map(([key, it]) => (
      <div key={key} style={{ display: "contents" }}>
        <dt>{key}</dt>
        <dd>
          <pre>{typeof it === "string" ? it : JSON.stringify(it, null, isDict(it) ? 2 : 0)}</pre>
        </dd>
      </div>
    ))}
  </dl>
);

const PlainTurn = ({ turn }: { turn: Turn }) => (
  <div className="turn" data-role={turn.role} role="group" aria-label={turn.role}>
    <header>
      <span>{turn.role}</span>
    </header>
    {turn.parts.map((part, at) => (part.kind === "image" ? <img key={at} src={part.source} alt={`from ${turn.role}`} /> : <pre key={at}>{part.text}</pre>))}
  </div>
);
