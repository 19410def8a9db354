// Puts a brotli and a gzip file beside each file of the built page that gets smaller by it; the server picks one.
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { brotliCompress, constants, gzip } from "node:zlib";

const folder = new URL("../../agent_server/static/demo/", import.meta.url).pathname;
const TEXT = /\.(html|js|css|svg)$/;
const ENCODINGS = [
  [".br", (data) => promisify(brotliCompress)(data, { params: { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY, [constants.BROTLI_PARAM_SIZE_HINT]: data.length } })],
  [".gz", (data) => promisify(gzip)(data, { level: constants.Z_BEST_COMPRESSION })],
];

for (const name of await readdir(folder, { recursive: true })) {
  if (!TEXT.test(name) || name.startsWith("reference")) continue; // Swagger UI is served as it is
  const data = await readFile(join(folder, name));
  for (const [ending, compress] of ENCODINGS) {
    const smaller = await compress(data);
    if (smaller.length < data.length) await writeFile(join(folder, name + ending), smaller);
  }
}
