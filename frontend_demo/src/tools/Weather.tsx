import { readResult, type ToolProps } from "./status";
import { ToolCard } from "./ToolCard";

interface Report {
  city?: string;
  location?: string;
  conditions?: string;
  condition?: string;
  temperature?: number | string;
  humidity?: number | string;
  wind?: number | string;
  windSpeed?: number | string;
  wind_speed?: number | string;
  feelsLike?: number | string;
  feels_like?: number | string;
}

/** The weather once it is known, and the call that asked for it before that or when the answer has another shape. */
export function Weather(props: ToolProps) {
  const report = readResult(props.result);
  if (!isReport(report)) return <ToolCard {...props} />;
  const place = report.city ?? report.location ?? String(props.args.location ?? props.args.city ?? "");
  const wind = report.wind ?? report.windSpeed ?? report.wind_speed;
  const feels = report.feelsLike ?? report.feels_like;
  return (
    <section className="weather" aria-label={`Weather in ${place}`}>
      <span className="place">{place}</span>
      <span className="degrees">{degrees(report.temperature)}</span>
      <span className="conditions">{report.conditions ?? report.condition ?? ""}</span>
      <div className="more">
        {report.humidity !== undefined && <span>Humidity {unit(report.humidity, "%")}</span>}
        {wind !== undefined && <span>Wind {unit(wind, " m/s")}</span>}
        {feels !== undefined && <span>Feels like {degrees(feels)}</span>}
      </div>
    </section>
  );
}

function isReport(value: unknown): value is Report {
  return typeof value === "object" && value !== null && "temperature" in value;
}

const unit = (value: number | string, suffix: string): string => (typeof value === "number" ? `${value}${suffix}` : value);
const degrees = (value: number | string | undefined): string => unit(value ?? "", "°");
