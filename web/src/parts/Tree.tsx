/** A config to read: nested, foldable, plain text. */

import type { Dict, Json } from "../api/types";
import { Copy } from "./basics";

export function Config({ value, label }: { value: Dict; label: string }) {
  return (
    <div className="stack tight">
      <div className="row">
        <Copy text={JSON.stringify(value, null, 2)} label="copy as JSON" />
      </div>
      <pre className="config" tabIndex={0} role="group" aria-label={label}>
        {outline(value, 0).join("\n")}
      </pre>
    </div>
  );
}

/** As one would write it in YAML; for reading, not for parsing. */
export function outline(value: Json, depth: number): string[] {
  const indent = "  ".repeat(depth);
  if (Array.isArray(value)) {
    if (!value.length) return [`${indent}[]`];
    if (value.every(isPlain) && JSON.stringify(value).length < 100) return [`${indent}[${value.map(plain).join(", ")}]`];
    return value.flatMap((one) => {
      const [first = "", ...rest] = outline(one, depth + 1);
      return [`${indent}- ${first.trimStart()}`, ...rest];
    });
  }
  if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value).filter(([, one]) => one !== null);
    if (!entries.length) return [`${indent}{}`];
    return entries.flatMap(([key, one]) => {
      if (isPlain(one)) return [`${indent}${key}: ${plain(one)}`];
      const below = outline(one, depth + 1);
      const first = (below[0] ?? "").trimStart();
      return /^[[{]/.test(first) ? [`${indent}${key}: ${first}`] : [`${indent}${key}:`, ...below];
    });
  }
  return [`${indent}${plain(value)}`];
}

const isPlain = (value: Json): boolean => value === null || typeof value !== "object";
const plain = (value: Json): string => (typeof value === "string" ? (/^$|[:#\n]|^[\s\d-]/.test(value) ? JSON.stringify(value) : value) : String(value));
