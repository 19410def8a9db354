/** Light or dark: the system's choice until the person makes one; and the page's background, which a tool may change. */

import { useCallback, useEffect, useState } from "react";

export type Theme = "light" | "dark";
const KEY = "agent-server.theme";
const DARK_LUMINANCE = 0.179;

export function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>(() => (document.documentElement.dataset.theme === "dark" ? "dark" : "light"));
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  const toggle = useCallback(() => {
    setTheme((now) => {
      const next = now === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // A closed storage only means that the choice is not kept.
      }
      return next;
    });
  }, []);
  return [theme, toggle];
}

/** Whether a background is one that CSS can paint without fetching anything. */
export function isBackground(value: unknown): value is string {
  return typeof value === "string" && value.trim() !== "" && !/url\s*\(/i.test(value) && CSS.supports("background", value);
}

/** Black or white, whichever reads better on top of the first solid colour in `background`. */
export function textOn(background: string): string {
  const probe = document.createElement("i");
  probe.style.cssText = "position:absolute;visibility:hidden";
  probe.style.background = background;
  document.body.append(probe);
  const style = getComputedStyle(probe);
  const solid = style.backgroundImage === "none" ? style.backgroundColor : (/rgba?\([^)]*\)/.exec(style.backgroundImage)?.[0] ?? "");
  probe.remove();
  return luminance(solid) > DARK_LUMINANCE ? "#191815" : "#ffffff";
}

/** Relative luminance (WCAG 2.2) of an `rgb(r, g, b)` colour, 0 to 1; a colour that cannot be read counts as light. */
export function luminance(colour: string): number {
  const parts = (colour.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
  if (parts.length < 3) return 1;
  const [red = 0, green = 0, blue = 0] = parts.map((part) => {
    const share = part / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
