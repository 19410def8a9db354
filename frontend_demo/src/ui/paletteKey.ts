/** What opens the palette of commands, which is fetched when it is first asked for. */

import { useEffect, useRef } from "react";

export interface Command {
  name: string;
  /** What more may be typed to find it. */
  about?: string;
  run: () => void;
}

/** Calls back when the palette is asked for. */
export function usePaletteKey(open: () => void): void {
  const latest = useRef(open);
  latest.current = open;
  useEffect(() => {
    const key = (event: globalThis.KeyboardEvent) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
      event.preventDefault();
      latest.current();
    };
    window.addEventListener("keydown", key);
    return () => window.removeEventListener("keydown", key);
  }, []);
}
