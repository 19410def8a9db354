/** Code in colours, by highlight.js: fetched with the first block of code. A language that it does not know stays plain. */

import { toJsxRuntime } from "hast-util-to-jsx-runtime";
import { common, createLowlight } from "lowlight";
import { memo, useDeferredValue, useMemo } from "react";
import { Fragment, jsx, jsxs } from "react/jsx-runtime";
import "../styles/code.css";

const lowlight = createLowlight(common);
lowlight.registerAlias({ bash: ["console", "shell", "zsh"], javascript: ["jsx"], json: ["jsonl"], typescript: ["tsx"] });
/** Above this, colours cost more than they show. */
const MOST_CHARACTERS = 20_000;

export default memo(function Highlighted({ code, language }: { code: string; language: string }) {
  const settled = useDeferredValue(code);
  return useMemo(() => coloured(settled, language), [settled, language]);
});

function coloured(code: string, language: string) {
  if (code.length > MOST_CHARACTERS || !lowlight.registered(language)) return <>{code}</>;
  return toJsxRuntime(lowlight.highlight(language, code), { Fragment, jsx, jsxs });
}
