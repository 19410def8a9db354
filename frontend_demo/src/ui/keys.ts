/** What keys mean here, and where the keyboard goes when what it was in is gone. */

import type { KeyboardEvent } from "react";

/** Safari says so of the Enter that ends a composition, when `isComposing` is over already. */
const COMPOSING = 229;

/** Whether this Enter sends what was written, rather than breaking the line or choosing a word of an input method. */
export function sends({ key, shiftKey, nativeEvent }: KeyboardEvent): boolean {
  return key === "Enter" && !shiftKey && !nativeEvent.isComposing && nativeEvent.keyCode !== COMPOSING;
}

/** To the composer; not on a touch screen, where its keyboard would cover half of the page. */
export function focusComposer(): void {
  if (matchMedia("(pointer: fine)").matches) document.getElementById("message")?.focus();
}
