import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist", "node_modules"] },
  js.configs.recommended,
  ...tseslint.configs.strict,
  { plugins: { "react-hooks": hooks }, rules: hooks.configs.recommended.rules },
  {
    // graph/ is plain functions on documents: tests and other pages use it without React or a server.
    files: ["src/graph/**"],
    rules: { "no-restricted-imports": ["error", { patterns: ["react", "@xyflow/*", "../api/*", "../store/*", "../canvas/*"] }] },
  },
);
