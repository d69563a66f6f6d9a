/** The page: signs in, then shows what the address names. */

import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { App } from "./App";
import { Problem } from "./api/client";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/lists.css";
import "./styles/plots.css";

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      // Changes are told by the server, so nothing is asked for again on a hunch.
      staleTime: Infinity,
      gcTime: 120_000,
      refetchOnWindowFocus: false,
      retry: (count, error) => count < 2 && !(error instanceof Problem && error.status >= 400 && error.status < 500),
    },
  },
});

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <App />
      </QueryClientProvider>
    </StrictMode>,
  );
}
