/** Text as it was written, in parts that are laid out one by one, and only where they are in view. */

import { memo } from "react";
import { plainPieces } from "./pieces";

export const PlainPart = memo(function PlainPart({ text }: { text: string }) {
  return <p className="plain" dir="auto">{text}</p>;
});

/** From here on, parts that are out of view are not laid out. */
const LONG = 20_000;

/** The class of what holds the parts of this text. */
export const longClass = (text: string): string => (text.length > LONG ? "long" : "");

export function Plain({ text }: { text: string }) {
  return plainPieces(text).map((piece, index) => <div key={index} className="piece"><PlainPart text={piece.text} /></div>);
}
