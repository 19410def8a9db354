/** A block of code with the name of its language, its colours once they have been fetched, and a button to copy it. */

import { lazy, Suspense, type ComponentType } from "react";
import { Copy } from "../ui/copy";

interface Props {
  code: string;
  /** As the model wrote it behind the fence; empty where it wrote nothing. */
  language: string;
}

const Plain = ({ code }: Props) => <>{code}</>;
// Without a network the code is still to be read.
const Highlighted = lazy((): Promise<{ default: ComponentType<Props> }> => import("./Highlighted").catch(() => ({ default: Plain })));

const NAMES: Readonly<Record<string, string>> = {
  bash: "Shell", sh: "Shell", shell: "Shell", console: "Shell", zsh: "Shell", c: "C", cpp: "C++", "c++": "C++", cs: "C#", csharp: "C#", css: "CSS",
  go: "Go", graphql: "GraphQL", html: "HTML", ini: "INI", java: "Java", js: "JavaScript", javascript: "JavaScript", jsx: "JavaScript",
  json: "JSON", jsonl: "JSON", kotlin: "Kotlin", md: "Markdown", markdown: "Markdown", php: "PHP", py: "Python", python: "Python", rb: "Ruby",
  rs: "Rust", rust: "Rust", sql: "SQL", svg: "SVG", toml: "TOML", ts: "TypeScript", tsx: "TypeScript", typescript: "TypeScript", xml: "XML",
  yaml: "YAML", yml: "YAML",
};

export function nameOf(language: string): string {
  const known = NAMES[language.toLowerCase()];
  return known ?? (language ? language.charAt(0).toUpperCase() + language.slice(1) : "Text");
}

export default function CodeBlock({ code, language }: Props) {
  const name = nameOf(language);
  return (
    <div className="code-block">
      <div className="code-head"><span>{name}</span><Copy text={code} label="Copy code" /></div>
      <pre tabIndex={0} role="region" aria-label={`Code, ${name}`}><code><Suspense fallback={code}><Highlighted code={code} language={language} /></Suspense></code></pre>
    </div>
  );
}
