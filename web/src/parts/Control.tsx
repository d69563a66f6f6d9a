/** Stopping and approving: asked for once, confirmed once, and shown until it is answered. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useRef, useState } from "react";

import { listAddress, navigate } from "../location";
import { exported, path, tell } from "../api/client";
import type { ControlRequest, ShownExperiment, PageSession } from "../api/types";

type Kind = ControlRequest["kind"] | "extend" | "delete";

const QUESTIONS: { [kind in Kind]: string } = {
  stop: "Stop this experiment? Running arms finish their step and keep what they have.",
  approve: "Approve what this experiment waits for?",
  reject: "Reject what this experiment waits for?",
  extend: "Give this campaign more time? What runs keeps its limit; the next step has the new one.",
  delete: "Delete this experiment? On this machine its folder moves to .evsys/deleted; a server forgets it.",
};

export const mayWrite = (session: PageSession): boolean => !exported && session.scopes.some((scope) => scope === "write" || scope === "admin");

/** A button that asks once more before something is done. */
export function Ask(props: { kind: Kind; where: string; question?: string; word?: string; subject?: string }) {
  const [open, setOpen] = useState(false);
  const { kind, where } = props;
  const word = props.word ?? kind;
  return (
    <>
      <button type="button" className={STYLES[kind]} onClick={() => setOpen(true)}>
        {word}
      </button>
      {open && <Confirm kind={kind} where={where} word={word} question={props.question ?? QUESTIONS[kind]} subject={props.subject ?? ""} close={() => setOpen(false)} />}
    </>
  );
}

const STYLES: { [kind in Kind]: string } = { stop: "danger", approve: "primary", reject: "", extend: "", delete: "danger" };

/** Deleting is for administrators; a key that trains cannot do it. */
export const mayDelete = (session: PageSession): boolean => !exported && session.scopes.includes("admin");

/** What can be asked of an experiment as it is now. */
export function Control({ id, status, session, stop = true }: { id: string; status: string; session: PageSession; stop?: boolean }) {
  if (!mayWrite(session)) return null;
  const where = path("experiments", id, "requests");
  return (
    <>
      {status === "waiting" && (
        <>
          <Ask kind="approve" where={where} />
          <Ask kind="reject" where={where} />
        </>
      )}
      {(status === "running" || status === "waiting") && stop && session.can_stop && <Ask kind="stop" where={where} />}
    </>
  );
}

/** What was asked and is not over: an approval is over once it runs, a stop once it has stopped. */
export function Asked({ experiment: one, requests }: { experiment: ShownExperiment; requests: ControlRequest[] }) {
  const last = requests.at(-1);
  const open = last && (one.status === "waiting" || (one.status === "running" && last.kind === "stop"));
  return open ? (
    <span className="small quiet">
      {last.kind} asked for{last.answer ? `: ${last.answer}` : ""}
    </span>
  ) : null;
}

function Confirm(props: { kind: Kind; where: string; word: string; question: string; subject: string; close: () => void }) {
  const { kind, where, subject, close } = props;
  const [reason, setReason] = useState("");
  const [hours, setHours] = useState("1");
  const queries = useQueryClient();
  const opened = useRef(false);
  const send = useMutation({
    mutationFn: () =>
      kind === "delete" ? tell("DELETE", where) : tell("POST", where, { kind, reason, subject, ...(kind === "extend" ? { hours: Number(hours) } : {}) }),
    onSuccess: () => {
      if (kind === "delete") navigate(listAddress());
      void queries.invalidateQueries();
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
    <dialog ref={open} onClose={close} aria-label={props.word}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          send.mutate();
        }}
      >
        <p>{props.question}</p>
        {kind === "extend" && (
          <label className="row">
            hours <input type="number" min="0.1" max="1000" step="0.1" required value={hours} onChange={(event) => setHours(event.target.value)} />
          </label>
        )}
        {kind !== "delete" && <textarea rows={2} value={reason} onChange={(event) => setReason(event.target.value)} placeholder="reason (kept in the record)" aria-label="reason" maxLength={2000} />}
        {send.error && (
          <p role="alert" className="failed">
            {send.error.message}
          </p>
        )}
        <div className="row">
          <button type="submit" className={STYLES[kind]} disabled={send.isPending}>
            {props.word}
          </button>
          <button type="button" onClick={close}>
            cancel
          </button>
        </div>
      </form>
    </dialog>
  );
}
