import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [react(), tailwindcss()],
  build: { outDir: "dist", emptyOutDir: true, chunkSizeWarningLimit: 1500, assetsInlineLimit: 0 },
  // `npm run dev` beside a server that was started with `ortloom --no-browser`.
  server: { proxy: { "^/(api|view|upload|health)": { target: "http://127.0.0.1:8188", ws: true } } },
  test: { environment: "node", include: ["src/**/*.test.{ts,tsx}"] },
});
