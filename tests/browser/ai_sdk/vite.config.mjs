// Builds the page with the packages of the conformance tests, whose AI SDK is the one that they drive in Node.
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const installed = path.resolve(here, "../../conformance/index.html");

export default {
  root: here,
  base: "./",
  logLevel: "error",
  build: { outDir: path.join(here, "dist"), emptyOutDir: true, target: "es2022", minify: false, chunkSizeWarningLimit: 50_000 },
  plugins: [
    {
      name: "packages-of-the-conformance-tests",
      enforce: "pre",
      resolveId(source, importer) {
        const bare = /^[@a-z]/.test(source) && !source.includes(":");
        return bare && importer?.startsWith(here) ? this.resolve(source, installed, { skipSelf: true }) : null;
      },
    },
  ],
};
