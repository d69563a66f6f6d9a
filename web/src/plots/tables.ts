/** Numbers for other programs. */

export type Cell = string | number | null | undefined;

/** A leading sign could make a spreadsheet run what a model wrote; a quote keeps it text. */
function csvCell(cell: Cell): string {
  if (cell === null || cell === undefined) return "";
  if (typeof cell === "number") return String(cell);
  const text = /^[=+@\t\r-]/.test(cell) ? `'${cell}` : cell;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export const toCsv = (rows: Cell[][]): string => rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";

export function toMarkdown(rows: Cell[][]): string {
  const line = (row: Cell[]) => `| ${row.map((cell) => String(cell ?? "").replaceAll("|", "\\|").replaceAll("\n", " ")).join(" | ")} |`;
  const [head, ...rest] = rows;
  if (!head) return "";
  return [line(head), `|${head.map(() => "---").join("|")}|`, ...rest.map(line)].join("\n") + "\n";
}
