/** The plugins for formulas, by KaTeX: fetched with the first one. MathML alone, so that neither fonts nor styles are. */

import rehypeKatex from "rehype-katex";
import remarkMath from "remark-math";
import type { Options } from "react-markdown";

export interface Plugins {
  remarkPlugins: NonNullable<Options["remarkPlugins"]>;
  rehypePlugins: NonNullable<Options["rehypePlugins"]>;
}

export const plugins: Plugins = {
  remarkPlugins: [[remarkMath, { singleDollarTextMath: false }]],
  rehypePlugins: [[rehypeKatex, { output: "mathml", throwOnError: false, strict: "ignore", errorColor: "inherit", maxExpand: 200, maxSize: 20 }]],
};
