/** The Markdown that conclusions are written in: headings, paragraphs, lists, tables, quotes, code. Never as HTML. */

import type { ReactNode } from "react";

type Block =
  | { kind: "heading" | "text" | "quote"; text: string }
  | { kind: "list"; items: string[] }
  | { kind: "code"; text: string }
  | { kind: "table"; head: string[]; rows: string[][] };

const cells = (line: string): string[] =>
  line.replace(/^\s*\|/, "").replace(/\|\s*$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

/** What a text consists of; what is not understood is a paragraph. */
export function blocksOf(text: string): Block[] {
  const lines = text.split("\n");
  const blocks: Block[] = [];
  const take = (test: (line: string) => boolean): string[] => {
    const found: string[] = [];
    while (lines.length && test(lines[0] as string)) found.push(lines.shift() as string);
    return found;
  };
  while (lines.length) {
    const line = lines[0] as string;
    if (!line.trim()) lines.shift();
    else if (/^#{1,6} /.test(line)) blocks.push({ kind: "heading", text: (lines.shift() as string).replace(/^#+ /, "") });
    else if (line.startsWith("```")) {
      lines.shift();
      blocks.push({ kind: "code", text: take((one) => !one.startsWith("```")).join("\n") });
      lines.shift();
    } else if (/^\s*[-*] /.test(line)) {
      const items: string[] = [];
      for (const one of take((each) => /^\s*[-*] /.test(each) || /^\s+\S/.test(each))) {
        if (/^\s*[-*] /.test(one)) items.push(one.replace(/^\s*[-*] /, ""));
        else items.push(`${items.pop() ?? ""} ${one.trim()}`);
      }
      blocks.push({ kind: "list", items });
    } else if (line.startsWith("|") && /^\|[\s:|-]+\|?\s*$/.test(lines[1] ?? "")) {
      const [head = "", , ...rows] = take((one) => one.startsWith("|"));
      blocks.push({ kind: "table", head: cells(head), rows: rows.map(cells) });
    } else if (line.startsWith(">")) blocks.push({ kind: "quote", text: take((one) => one.startsWith(">")).map((one) => one.replace(/^> ?/, "")).join(" ") });
    else blocks.push({ kind: "text", text: [lines.shift() as string, ...take((one) => Boolean(one.trim()) && !/^(#{1,6} |```|\||>|\s*[-*] )/.test(one))].join(" ") });
  }
  return blocks;
}

/** Code and bold within a line. */
function inline(text: string): ReactNode[] {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part, at) => {
    if (/^`.+`$/.test(part)) return <code key={at}>{part.slice(1, -1)}</code>;
    return /^\*\*.+\*\*$/.test(part) ? <strong key={at}>{part.slice(2, -2)}</strong> : part;
  });
}

export function Markdown({ text, label }: { text: string; label: string }) {
  return (
    <div className="prose" role="group" aria-label={label}>
      {blocksOf(text).map((block, at) => (
        <BlockView key={at} block={block} />
      ))}
    </div>
  );
}

function BlockView({ block }: { block: Block }) {
  if (block.kind === "heading") return <h3>{inline(block.text)}</h3>;
  if (block.kind === "quote") return <p className="notice">{inline(block.text)}</p>;
  if (block.kind === "code") return <pre className="config">{block.text}</pre>;
  if (block.kind === "list") {
    return (
      <ul className="bullets">
        {block.items.map((item, at) => (
          <li key={at}>{inline(item)}</li>
        ))}
      </ul>
    );
  }
  if (block.kind === "table") {
    const isNumber = (column: number) => block.rows.length > 0 && block.rows.every((row) => /^[-+$\d.\s,[\]%–]*$/.test(row[column] ?? ""));
    return (
      <div className="scroll-x" tabIndex={0} role="group" aria-label="table">
        <table className="small">
          <thead>
            <tr>
              {block.head.map((cell, at) => (
                <th key={at} className={isNumber(at) ? "number" : ""}>
                  {inline(cell)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {block.rows.map((row, at) => (
              <tr key={at}>
                {row.map((cell, column) => (
                  <td key={column} className={isNumber(column) ? "number" : ""}>
                    {inline(cell)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    );
  }
  return <p>{inline(block.text)}</p>;
}
