/** One hook for each question; what is shown stays on the screen while it is asked again. */

import { keepPreviousData, useInfiniteQuery, useQuery } from "@tanstack/react-query";

import { ask, path, question, type Params } from "./client";
import type * as t from "./types";

/** Keys begin with what a change is about, so that one event refreshes exactly what shows it. */
const about = (id: string, rest: string) => ["experiment", id, rest];

function useAnswer<T>(key: string[], where: string, params: Params = {}, enabled = true) {
  return useQuery({
    queryKey: key,
    queryFn: ({ signal }) => ask<T>(where, params, signal),
    placeholderData: keepPreviousData,
    enabled,
  });
}

function usePages<T extends { next: string | null }>(key: string[], where: string, params: Params, limit: number) {
  return useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam, signal }) => ask<T>(where, { ...params, limit, cursor: pageParam }, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next ?? undefined,
    placeholderData: keepPreviousData,
  });
}

export const useOverview = () => useAnswer<t.Overview>(["experiments", "overview"], "/overview");

export const useExperiments = (params: Params) =>
  usePages<t.Experiments>(["experiments", question("", params)], "/experiments", params, 500);

export const useExperiment = (id: string) => useAnswer<t.ExperimentDetail>(about(id, "detail"), path("experiments", id));

export const useArm = (id: string, arm: string) =>
  useAnswer<t.ArmDetail>(about(id, `arm ${arm}`), path("experiments", id, "arms", arm));

export function useCurves(id: string, params: Params, enabled = true) {
  const where = path("experiments", id, "curves");
  return useAnswer<t.Curves>(about(id, question(where, params)), where, params, enabled);
}

export function useItems(id: string, params: Params, enabled = true) {
  const where = path("experiments", id, "items");
  return useAnswer<t.Items>(about(id, question(where, params)), where, { ...params, limit: 1000 }, enabled);
}

export function useRollouts(id: string, params: Params) {
  const where = path("experiments", id, "rollouts");
  return usePages<t.Rollouts>(about(id, question(where, params)), where, params, 200);
}

/** The samples of one task, for a look side by side. */
export function useGroup(id: string, params: Params, enabled = true) {
  const where = path("experiments", id, "rollouts");
  return useAnswer<t.Rollouts>(about(id, `group ${question("", params)}`), where, { ...params, limit: 200 }, enabled);
}

/** A rollout never changes once it is written, so it is asked for once. */
export const useRollout = (id: string, rollout: string | undefined) =>
  useQuery({
    queryKey: ["rollout", id, rollout ?? ""],
    queryFn: ({ signal }) => ask<t.RolloutDetail>(path("experiments", id, "rollouts", rollout ?? ""), {}, signal),
    placeholderData: keepPreviousData,
    enabled: Boolean(rollout),
    staleTime: Infinity,
  });

export const useSpend = (id: string) => useAnswer<t.Spend>(about(id, "spend"), path("experiments", id, "spend"));

export const useLineage = (id: string) => useAnswer<t.Lineage>(about(id, "lineage"), path("experiments", id, "lineage"));

export const useJournal = (id: string) =>
  usePages<t.Events>(about(id, "journal"), path("experiments", id, "journal"), {}, 500);

export const useComparison = (a: string, b: string) =>
  useAnswer<t.Comparison>(["comparison", a, b], "/compare", { a, b }, Boolean(a && b));

export const useDataEntries = (kind: "dataset" | "benchmark") =>
  useAnswer<t.DataEntries>(["data", kind], `/${kind}s`, { limit: 1000 });

export const useDataRows = (kind: "dataset" | "benchmark", id: string) =>
  usePages<t.DataRows>(["data", kind, id], path(`${kind}s`, id, "rows"), {}, 100);
