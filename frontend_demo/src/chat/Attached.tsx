/** Files beside a message, as thumbnails and names: in the composer with a button to leave one out. */

import { Icon } from "../ui/icons";
import type { Attachment } from "./attachments";

export function Attached({ files, onRemove }: { files: readonly Attachment[]; onRemove?: (index: number) => void }) {
  if (!files.length) return null;
  return (
    <ul className="attached" aria-label="Files">
      {files.map((file, index) => (
        <li key={index} title={file.name}>
          {file.kind === "image" && file.data ? <img alt={file.name} src={`data:${file.mimeType};base64,${file.data}`} /> : <span className="file"><Icon name="document" /><span>{file.name}</span></span>}
          {onRemove && <button type="button" className="icon-button small" aria-label={`Leave out ${file.name}`} onClick={() => onRemove(index)}><Icon name="close" /></button>}
        </li>
      ))}
    </ul>
  );
}
