/** Files beside a message, as thumbnails and names: in the composer with a button to leave one out. */

import { Icon } from "../ui/icons";
import type { Attachment } from "./attachments";

export function Attached({ files, onRemove }: { files: readonly Attachment[]; onRemove?: (index: number) => void }) {
  if (!files.length) return null;
  return (
    <ul className="attached" aria-label="Files">
      {files.map((file, index) => (
        <li key={index} title={file.name}>
          <Shown file={file} />
          {onRemove && <button type="button" className="icon-button small" aria-label={`Leave out ${file.name}`} onClick={() => onRemove(index)}><Icon name="close" /></button>}
        </li>
      ))}
    </ul>
  );
}

function Shown({ file }: { file: Attachment }) {
  const source = `data:${file.mimeType};base64,${file.data}`;
  if (file.kind === "image" && file.data) return <img alt={file.name} src={source} />;
  if (file.kind === "audio" && file.data) return <audio controls aria-label={file.name} src={source} />;
  return <span className="file"><Icon name="document" /><span>{file.name}</span></span>;
}
