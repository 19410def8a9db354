import { isBackground } from "../ui/theme";
import { failureOf, type ToolProps } from "./status";
import { Status, ToolCard } from "./ToolCard";

/** A tool of this page: the card shows the colour that the model chose. */
export function Background(props: ToolProps) {
  const colour = props.args.background ?? props.args.color;
  if (!isBackground(colour) || failureOf(props.result)) return <ToolCard {...props} icon="brush" />;
  return (
    <section className="tool" aria-label="Change background">
      <div className="head">
        <i className="swatch" style={{ background: colour }} />
        <span className="name">Background</span>
        <span className="brief">{colour}</span>
        <Status status={props.status} />
      </div>
    </section>
  );
}
