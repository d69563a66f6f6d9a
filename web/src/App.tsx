/** The frame around every page, and which page an address names. */

import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import { exported } from "./api/client";
import { follow, useConnection } from "./api/live";
import { useOverview } from "./api/queries";
import type { PageSession } from "./api/types";
import { HELP, useKeys } from "./keys";
import { href, listAddress, useSegments } from "./location";
import { Bones, Empty } from "./parts/basics";
import { CampaignPage } from "./pages/Campaign";
import { ComparePage } from "./pages/Compare";
import { DataPage, DataRowsPage } from "./pages/Data";
import { ExperimentPage } from "./pages/Experiment";
import { ExperimentsPage } from "./pages/Experiments";
import { LoopsPage } from "./pages/Loops";
import { ArmPage } from "./pages/Arm";
import { SignIn, useSession } from "./session";
import { switchTheme, useTheme } from "./theme";
import { titleOfProject, titleOfWaiting } from "./title";

export function App() {
  const { session, problem, signIn } = useSession();
  if (session) return <Signed session={session} />;
  return problem ? <SignIn problem={problem} signIn={signIn} /> : <main><Bones lines={8} /></main>;
}

/** A click elsewhere closes an open menu. */
function closeMenus(event: MouseEvent): void {
  for (const menu of document.querySelectorAll<HTMLDetailsElement>("details.menu[open]")) {
    if (!menu.contains(event.target as Node)) menu.open = false;
  }
}

function Signed({ session }: { session: PageSession }) {
  const queries = useQueryClient();
  useEffect(() => {
    document.addEventListener("click", closeMenus);
    return () => document.removeEventListener("click", closeMenus);
  }, []);
  useEffect(() => follow(queries), [queries]);
  useEffect(() => titleOfProject(session.project_name), [session.project_name]);
  return (
    <>
      {!exported && <Badge />}
      <Top session={session} />
      <Page session={session} />
    </>
  );
}

/** How many things wait for a person, in the title of the tab, on every screen. */
function Badge() {
  const waiting = useOverview().data?.attention.filter((one) => one.kind === "waiting").length ?? 0;
  useEffect(() => titleOfWaiting(waiting), [waiting]);
  return null;
}

/** The page that an address names. A key makes another experiment another page, with nothing left of the first. */
function Page({ session }: { session: PageSession }) {
  const [place = "", first = "", second = "", third = ""] = useSegments();
  if (!place) return exported ? <ExperimentPage id={exported.experiment} session={session} /> : <ExperimentsPage session={session} />;
  if (place === "e" && second === "a" && third) return <ArmPage key={`${first}/${third}`} id={first} arm={third} />;
  if (place === "e" && first) return <ExperimentPage key={first} id={first} session={session} />;
  if (place === "compare") return <ComparePage />;
  if (place === "campaign") return <CampaignPage session={session} name={first} />;
  if (place === "data" && second) return <DataRowsPage key={second} kind={first === "benchmark" ? "benchmark" : "dataset"} id={second} />;
  if (place === "data") return <DataPage />;
  if (place === "loops") return <LoopsPage session={session} />;
  return (
    <main id="main">
      <Empty title="There is no such page">
        <a href="#/">All experiments</a>
      </Empty>
    </main>
  );
}

const PLACES = [
  { place: "", word: "Experiments" },
  { place: "campaign", word: "Campaigns" },
  { place: "compare", word: "Compare" },
  { place: "data", word: "Data" },
  { place: "loops", word: "Loops" },
];

function Top({ session }: { session: PageSession }) {
  const [at = ""] = useSegments();
  const theme = useTheme();
  const help = useRef<HTMLDialogElement>(null);
  useKeys({ "?": () => help.current?.showModal(), t: switchTheme });
  return (
    <header className="top">
      <a href="#/" className="brand clip" title={session.project_name}>
        {session.project_name}
      </a>
      {!exported && (
        <nav aria-label="pages">
          {PLACES.map(({ place, word }) => (
            <a key={place} href={place ? href([place]) : listAddress()} aria-current={place === (at === "e" ? "" : at) ? "page" : undefined}>
              {word}
            </a>
          ))}
        </nav>
      )}
      <div className="end">
        {exported ? <span className="small quiet">exported{exported.remarks.length ? `: ${exported.remarks.join(", ")}` : ""}</span> : <Signal />}
        <button type="button" onClick={switchTheme} aria-label={theme === "dark" ? "light colours" : "dark colours"} title="light or dark (t)">
          {theme === "dark" ? "☀" : "☾"}
        </button>
        <button type="button" onClick={() => help.current?.showModal()} aria-label="keyboard help" title="keyboard help (?)">
          ?
        </button>
      </div>
      <dialog ref={help} aria-label="keyboard help">
        <div className="stack">
          <h2>Keyboard</h2>
          <div className="keys">
            {HELP.map(([keys, what]) => (
              <div key={keys} style={{ display: "contents" }}>
                <span className="row tight">
                  {keys.split(/\s+/).map((key) => (
                    <kbd key={key}>{key}</kbd>
                  ))}
                </span>
                <span>{what}</span>
              </div>
            ))}
          </div>
          <p className="small quiet">evsys-sdk {session.version}</p>
          <button type="button" onClick={() => help.current?.close()} autoFocus>
            close
          </button>
        </div>
      </dialog>
    </header>
  );
}

function Signal() {
  const state = useConnection();
  const [shown, setShown] = useState(state);
  // A short interruption is nobody's business.
  useEffect(() => {
    const timer = window.setTimeout(() => setShown(state), state === "lost" ? 1500 : 0);
    return () => window.clearTimeout(timer);
  }, [state]);
  const words = { live: "live", connecting: "connecting", lost: "not connected: is `evsys dashboard` running?" };
  return (
    <span className="signal" data-state={shown} role="status" aria-label={words[shown]} title={words[shown]}>
      <i />
      <span>{shown === "lost" ? "not connected" : words[shown]}</span>
    </span>
  );
}
