/** A plot with its title, and its numbers one click away. */

import { useState, type ReactNode } from "react";

import { copyText } from "../parts/basics";
import { toCsv, toMarkdown, type Cell } from "./tables";

export function Figure(props: {
  title: string;
  /** Head and rows of the numbers behind the plot; made when asked for. */
  data?: () => Cell[][];
  controls?: ReactNode;
  children: ReactNode;
}) {
  const [told, setTold] = useState("");
  const copy = async () => {
    if (!props.data) return;
    await copyText(toMarkdown(props.data()));
    setTold("copied");
    window.setTimeout(() => setTold(""), 1200);
  };
  const save = () => {
    if (!props.data) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([toCsv(props.data())], { type: "text/csv" }));
    link.download = `${props.title.replace(/[^\w.-]+/g, "-").toLowerCase()}.csv`;
    link.click();
    window.setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  return (
    <figure className="figure" aria-label={props.title}>
      <header>
        <h2>{props.title}</h2>
        {props.controls}
        {props.data && (
          <details className="menu data no-print">
            <summary aria-label={`${props.title}: numbers`}>⋯</summary>
            <div className="stack tight">
            <button type="button" onClick={save} aria-label={`${props.title}: save the numbers as CSV`}>
              save as CSV
            </button>
            <button type="button" onClick={() => void copy()} aria-label={`${props.title}: copy the numbers as Markdown`}>
              {told || "copy as Markdown"}
            </button>
            </div>
          </details>
        )}
      </header>
      {props.children}
    </figure>
  );
}
