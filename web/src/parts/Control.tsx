/** Stopping and approving: asked for once, confirmed once, and shown until it is answered. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useRef, useState } from "react";

import { exported, path, tell } from "../api/client";
import type { ControlRequest, Experiment, Session } from "../api/types";

type Kind = ControlRequest["kind"];

const WORDS: { [kind in Kind]: { button: string; question: string } } = {
  stop: { button: "stop", question: "Stop this experiment? Running arms finish their step and keep what they have." },
  approve: { button: "approve", question: "Approve what this experiment waits for?" },
  reject: { button: "reject", question: "Reject what this experiment waits for?" },
};

export function Control({ experiment: one, session, requests }: { experiment: Experiment; session: Session; requests: ControlRequest[] }) {
  const [asked, setAsked] = useState<Kind | null>(null);
  const last = requests.at(-1);
  if (exported || !session.scopes.some((scope) => scope === "write" || scope === "admin")) return null;
  const live = one.status === "running" || one.status === "waiting";
  // What was approved is over once it runs; a stop is over once it has stopped.
  const open = last && live && (last.kind === "stop" || one.status === "waiting");
  return (
    <>
      {open && (
        <span className="small quiet">
          {last.kind} asked for{last.answer ? `: ${last.answer}` : ""}
        </span>
      )}
      {live && (
        <>
          {one.status === "waiting" && (
            <>
              <button type="button" className="primary" onClick={() => setAsked("approve")}>
                approve
              </button>
              <button type="button" onClick={() => setAsked("reject")}>
                reject
              </button>
            </>
          )}
          {session.can_stop && (
            <button type="button" className="danger" onClick={() => setAsked("stop")}>
              stop
            </button>
          )}
        </>
      )}
      {asked && <Confirm id={one.id} kind={asked} close={() => setAsked(null)} />}
    </>
  );
}

function Confirm({ id, kind, close }: { id: string; kind: Kind; close: () => void }) {
  const [reason, setReason] = useState("");
  const queries = useQueryClient();
  const opened = useRef(false);
  const send = useMutation({
    mutationFn: () => tell<ControlRequest>("POST", `${path("experiments", id, "requests")}`, { kind, reason }),
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["experiment", id] });
      close();
    },
  });
  const open = (dialog: HTMLDialogElement | null) => {
    if (dialog && !opened.current) {
      opened.current = true;
      dialog.showModal();
    }
  };
  return (
    <dialog ref={open} onClose={close} aria-label={WORDS[kind].button}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          send.mutate();
        }}
      >
        <p>{WORDS[kind].question}</p>
        <textarea rows={2} value={reason} onChange={(event) => setReason(event.target.value)} placeholder="reason (kept in the record)" aria-label="reason" maxLength={2000} />
        {send.error && (
          <p role="alert" style={{ color: "var(--refuted)" }}>
            {send.error.message}
          </p>
        )}
        <div className="row">
          <button type="submit" className={kind === "stop" ? "danger" : "primary"} disabled={send.isPending}>
            {WORDS[kind].button}
          </button>
          <button type="button" onClick={close}>
            cancel
          </button>
        </div>
      </form>
    </dialog>
  );
}
