/** A long list of rows of one height: only those on the screen exist. Keeps its place when rows are added. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, type ReactNode } from "react";

export function VirtualRows<T>(props: {
  /** A row, if it has arrived. */
  rowAt: (index: number) => T | undefined;
  /** How many there are in all. */
  total: number;
  height: number;
  label: string;
  head?: ReactNode;
  keyOf: (row: T) => string;
  render: (row: T, index: number) => ReactNode;
  /** The row to keep in sight. */
  current?: number;
  /** Told which rows are in sight. */
  onRange?: (from: number, to: number) => void;
  className?: string;
}) {
  const { total, current, onRange } = props;
  const box = useRef<HTMLDivElement>(null);
  const list = useVirtualizer({
    count: total,
    getScrollElement: () => box.current,
    estimateSize: () => props.height,
    overscan: 12,
  });
  useEffect(() => list.measure(), [props.height, list]);
  const shown = list.getVirtualItems();
  const [from, to] = [shown[0]?.index ?? 0, shown.at(-1)?.index ?? 0];
  useEffect(() => onRange?.(from, to), [from, to, onRange]);
  useEffect(() => {
    if (current !== undefined && current >= 0) list.scrollToIndex(current, { align: "auto" });
  }, [current, list]);
  return (
    <div ref={box} className={`virtual ${props.className ?? ""}`} role="table" aria-label={props.label} aria-rowcount={total} tabIndex={0}>
      {props.head}
      <div role="rowgroup" className="rows" style={{ height: list.getTotalSize() }}>
        {shown.map((item) => {
          const row = props.rowAt(item.index);
          return (
            <div key={row ? props.keyOf(row) : `gap ${item.index}`} className="place" style={{ transform: `translateY(${item.start}px)`, height: props.height }} role="presentation">
              {row ? props.render(row, item.index) : <div className="gap" role="row"><span role="cell" className="quiet">…</span></div>}
            </div>
          );
        })}
      </div>
    </div>
  );
}
