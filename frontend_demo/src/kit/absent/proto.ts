/** AG-UI's binary encoding. The page asks for `text/event-stream` alone, so its decoder (60 kB) is not shipped. */

export const AGUI_MEDIA_TYPE = "application/vnd.ag-ui.event+proto";

export function decode(): never {
  throw new Error("The server answered in AG-UI's binary encoding, which this page does not ask for.");
}
