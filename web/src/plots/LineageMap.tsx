/** What was used, the experiment, and what came of it, from left to right. */

import { useLayoutEffect, useRef, useState } from "react";

import type { ExperimentLineage, Node } from "../api/types";
import { href } from "../location";

const MOST = 12;

export function LineageMap({ lineage, self }: { lineage: ExperimentLineage; self: string }) {
  const box = useRef<HTMLDivElement>(null);
  const [paths, setPaths] = useState<{ d: string; kind: string }[]>([]);
  const [all, setAll] = useState(false);
  const own = `experiment:${self}`;
  const sources = lineage.nodes.filter((node) => lineage.edges.some((edge) => edge.source === node.id && edge.target === own));
  const results = lineage.nodes.filter((node) => lineage.edges.some((edge) => edge.target === node.id && edge.source === own));
  const limit = all ? Infinity : MOST;
  const folded = Math.max(0, sources.length - limit) + Math.max(0, results.length - limit);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const draw = () => setPaths(connect(element, lineage));
    draw();
    const watcher = new ResizeObserver(draw);
    watcher.observe(element);
    return () => watcher.disconnect();
  }, [lineage, all]);

  const kindOf = (node: Node) => lineage.edges.find((edge) => edge.source === node.id || edge.target === node.id)?.kind ?? "";
  return (
    <div className="stack">
      <div className="scroll-x" tabIndex={0} role="group" aria-label="lineage">
        <div className="lineage" ref={box}>
          <svg width="100%" height="100%" aria-hidden="true">
            {paths.map((path, at) => (
              <path key={at} d={path.d} fill="none" stroke="var(--strong-line)" strokeOpacity={0.6} />
            ))}
          </svg>
          {[sources.slice(0, limit), lineage.nodes.filter((node) => node.id === own), results.slice(0, limit)].map((nodes, column) => (
            <div key={column}>
              {nodes.map((node) => (
                <LineageNode key={node.id} node={node} isSelf={node.id === own} relation={node.id === own ? "this experiment" : kindOf(node)} />
              ))}
            </div>
          ))}
        </div>
      </div>
      {folded > 0 && (
        <button type="button" onClick={() => setAll(true)}>
          show {folded} more
        </button>
      )}
    </div>
  );
}

function LineageNode({ node, isSelf, relation }: { node: Node; isSelf: boolean; relation: string }) {
  const key = node.id.slice(node.id.indexOf(":") + 1);
  const to =
    node.kind === "experiment" ? href(["e", key]) : node.kind === "checkpoint" ? href(["e", key.split("/")[0] ?? "", "a", node.name]) : null;
  const body = (
    <>
      <span className="small quiet">
        {node.kind} · {relation}
      </span>
      <div className="clip" title={node.name}>
        {node.name}
      </div>
      {node.detail && (
        <div className="clip small quiet mono" title={node.detail}>
          {/^[0-9a-f]{40,}$/.test(node.detail) ? node.detail.slice(0, 12) : node.detail}
        </div>
      )}
    </>
  );
  const look = `node${isSelf ? " self" : ""}`;
  return to && !isSelf ? (
    <a className={look} href={to} data-node={node.id}>
      {body}
    </a>
  ) : (
    <div className={look} data-node={node.id}>
      {body}
    </div>
  );
}

/** Curves from the right side of each source to the left side of its target. */
function connect(box: HTMLElement, lineage: ExperimentLineage): { d: string; kind: string }[] {
  const origin = box.getBoundingClientRect();
  const places = new Map([...box.querySelectorAll<HTMLElement>("[data-node]")].map((one) => [one.dataset["node"], one.getBoundingClientRect()]));
  return lineage.edges.flatMap((edge) => {
    const [from, to] = [places.get(edge.source), places.get(edge.target)];
    if (!from || !to) return [];
    const [x1, y1] = [from.right - origin.left, from.top + from.height / 2 - origin.top];
    const [x2, y2] = [to.left - origin.left, to.top + to.height / 2 - origin.top];
    const bend = (x2 - x1) / 2;
    return [{ d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, kind: edge.kind }];
  });
}
