/** Markdown, by a renderer that is fetched after the first screen; until it is there, the text as the model wrote it. */

import { lazy, Suspense, type ComponentType } from "react";
import { longClass, Plain } from "./Plain";

interface Props {
  text: string;
}

// Without a network the answer is still to be read.
const fetched = (): Promise<{ default: ComponentType<Props> }> => import("./rendered").catch(() => ({ default: Plain }));
const Rendered = lazy(fetched);

/** Fetches the renderer before it is needed. */
export const prepareMarkdown = (): void => void fetched();

export function Markdown({ text }: Props) {
  return (
    <div className={`prose ${longClass(text)}`}>
      <Suspense fallback={<Plain text={text} />}><Rendered text={text} /></Suspense>
    </div>
  );
}
