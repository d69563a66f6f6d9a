/** The record itself: the conclusion as written, the journal, the config; and what people noted. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useCallback, useState } from "react";

import { exported, path, tell } from "../api/client";
import { useJournal } from "../api/queries";
import type { JournalLine, ExperimentDetail, Note, SavedNote, PageSession } from "../api/types";
import { ago, clock } from "../format";
import { Answer, Empty } from "../parts/basics";
import { Markdown } from "../parts/Markdown";
import { Config } from "../parts/Tree";
import { VirtualRows } from "../parts/VirtualRows";

export function RecordTab({ detail }: { detail: ExperimentDetail }) {
  return (
    <div className="halves">
      <div className="stack">
        <h2>Conclusion</h2>
        {detail.conclusion_text ? <Markdown text={detail.conclusion_text} label="conclusion" /> : <p className="quiet">None was written yet.</p>}
        <h2>Config</h2>
        <Config value={detail.config} label="config" />
      </div>
      <div className="stack">
        <h2>Journal</h2>
        <Journal id={detail.experiment.id} />
        <dl className="facts small">
          <dt>id</dt>
          <dd className="mono">{detail.experiment.id}</dd>
          {detail.claim.sha256 && (
            <>
              <dt>claim, SHA-256</dt>
              <dd className="mono">{detail.claim.sha256}</dd>
            </>
          )}
        </dl>
      </div>
    </div>
  );
}

function Journal({ id }: { id: string }) {
  const query = useJournal(id);
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = query;
  const known = query.data?.pages.reduce((sum, page) => sum + page.items.length, 0) ?? 0;
  const onRange = useCallback(
    (_: number, to: number) => {
      if (to >= known - 1 && hasNextPage && !isFetchingNextPage) void fetchNextPage();
    },
    [known, hasNextPage, isFetchingNextPage, fetchNextPage],
  );
  const [open, setOpen] = useState<JournalLine | null>(null);
  return (
    <Answer query={query}>
      {(data) => {
        const rows = data.pages.flatMap((page) => page.items);
        if (!rows.length) return <Empty title="Nothing happened yet" />;
        return (
          <>
            <div style={{ height: 420, display: "grid" }}>
              <VirtualRows
                className="journal"
                rowAt={(at) => rows[at]}
                total={rows.length + (query.hasNextPage ? 1 : 0)}
                height={32}
                label="journal"
                keyOf={(event) => event.id}
                onRange={onRange}
                render={(event) => (
                  <div className="line" role="row" data-current={open?.id === event.id} onClick={() => setOpen(event)} style={{ cursor: "pointer" }}>
                    <span role="cell" className="small quiet nowrap" title={clock(event.time)}>
                      {event.time === null ? "" : new Date(event.time * 1000).toLocaleTimeString()}
                    </span>
                    <span role="cell" className="nowrap">
                      <button type="button" className="plain" style={{ color: "inherit", padding: 0, height: 22 }} onClick={() => setOpen(event)}>
                        {event.kind.replaceAll("_", " ")}
                      </button>
                    </span>
                    <span role="cell" className="clip small quiet">
                      {brief(event)}
                    </span>
                  </div>
                )}
              />
            </div>
            {open && <pre tabIndex={0} role="group" aria-label="event" className="config">{JSON.stringify(open, null, 2)}</pre>}
          </>
        );
      }}
    </Answer>
  );
}

function brief(event: JournalLine): string {
  const words = ["arm", "run", "text", "reason", "verdict", "status", "step", "answer", "subject"];
  return words.flatMap((word) => (typeof event.data[word] === "string" || typeof event.data[word] === "number" ? [String(event.data[word])] : [])).join(" · ");
}

export function NotesTab({ detail, session }: { detail: ExperimentDetail; session: PageSession }) {
  const mayWrite = !exported && session.scopes.some((scope) => scope === "write" || scope === "admin");
  return (
    <div className="stack" style={{ maxWidth: 760 }}>
      {detail.experiment.notes.map((note, at) => (
        <NoteView key={at} note={note} />
      ))}
      {!detail.experiment.notes.length && <p className="quiet">Nobody noted anything yet.</p>}
      {mayWrite && <NewNote id={detail.experiment.id} />}
    </div>
  );
}

const NoteView = ({ note }: { note: Note }) => (
  <article className="notice">
    <p style={{ whiteSpace: "pre-wrap" }}>{note.text}</p>
    <p className="small quiet" title={clock(note.time)}>
      {[note.author, note.time === null ? "" : ago(note.time)].filter(Boolean).join(" · ")}
    </p>
  </article>
);

function NewNote({ id }: { id: string }) {
  const [text, setText] = useState("");
  const queries = useQueryClient();
  const add = useMutation({
    mutationFn: () => tell<SavedNote>("POST", path("experiments", id, "notes"), { text: text.trim() }),
    onSuccess: () => {
      setText("");
      void queries.invalidateQueries({ queryKey: ["experiment", id] });
    },
  });
  return (
    <form
      className="stack tight"
      onSubmit={(event) => {
        event.preventDefault();
        add.mutate();
      }}
    >
      <textarea rows={3} value={text} onChange={(event) => setText(event.target.value)} placeholder="What should whoever reads this next know?" aria-label="new note" maxLength={20_000} />
      {add.error && (
        <p role="alert" style={{ color: "var(--refuted)" }}>
          {add.error.message}
        </p>
      )}
      <div>
        <button type="submit" className="primary" disabled={!text.trim() || add.isPending}>
          add the note
        </button>
      </div>
    </form>
  );
}
