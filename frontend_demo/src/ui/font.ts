/** The page's own font, which comes behind its script; until it is there, everything is read in the system's. */

import { useEffect } from "react";

/** What has been read for so long does not move any more. */
const PATIENCE_MS = 3_000;

export function usePageFont(): void {
  useEffect(() => {
    const asked = performance.now();
    const use = () => {
      if (performance.now() - asked < PATIENCE_MS) document.documentElement.dataset.font = "";
    };
    // Behind the first frame: text that is first painted in this font would be painted larger than the page's own was.
    requestAnimationFrame(() => setTimeout(() => document.fonts.load("1em Inter").then(use, () => undefined)));
  }, []);
}
