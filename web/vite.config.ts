import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/** An exported page is opened as a file, and browsers load no module from a file: one classic script does both. */
const classicScript: Plugin = {
  name: "classic-script",
  enforce: "post",
  transformIndexHtml: (html) => html.replaceAll(' type="module" crossorigin', " defer").replaceAll(" crossorigin", ""),
};

export default defineConfig({
  // Relative, so that the page works below any path, behind any proxy, and as a file.
  base: "./",
  plugins: [react(), classicScript],
  build: {
    outDir: "../src/evsys_sdk/dashboard/page",
    emptyOutDir: true,
    // The content security policy allows no inline data for fonts and scripts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // Styles in a file of their own: the policy allows none that a script writes.
    cssCodeSplit: false,
    reportCompressedSize: true,
    rollupOptions: { output: { format: "iife" } },
  },
  test: { environment: "node" },
});
