/** A form for a JSON schema's top-level properties; whatever is nested is edited as JSON. */

import type { ReactNode } from "react";

export type Schema = Record<string, unknown>;
export type Values = Record<string, unknown>;
type Edited = { [name: string]: { text: string; wrong: boolean } };

interface Props {
  values: Values;
  schema?: Schema | undefined;
  edited: Edited;
  onChange: (name: string, value: unknown) => void;
  onText: (name: string, text: string, wrong: boolean) => void;
}

const LONG = 60;

export function Form({ values, schema, edited, onChange, onText }: Props) {
  const properties = (schema?.properties ?? {}) as Record<string, Schema>;
  const names = [...new Set([...Object.keys(properties), ...Object.keys(values)])];
  return (
    <div className="form">
      {names.map((name) => (
        <Field key={name} name={name} value={values[name]} schema={properties[name]} raw={edited[name]} onChange={onChange} onText={onText} />
      ))}
    </div>
  );
}

interface FieldProps {
  name: string;
  value: unknown;
  schema: Schema | undefined;
  raw: Edited[string] | undefined;
  onChange: Props["onChange"];
  onText: Props["onText"];
}

function Field({ name, value, schema, raw, onChange, onText }: FieldProps) {
  const title = typeof schema?.title === "string" ? schema.title : name;
  if (typeof value === "boolean" || schema?.type === "boolean") {
    return <label className="check"><input type="checkbox" checked={value === true} onChange={(event) => onChange(name, event.target.checked)} />{title}</label>;
  }
  return <label>{title}{control({ name, value, schema, raw, onChange, onText })}</label>;
}

function control({ name, value, schema, raw, onChange, onText }: FieldProps): ReactNode {
  if (Array.isArray(schema?.enum)) {
    return (
      <select className="field" value={String(value ?? "")} onChange={(event) => onChange(name, event.target.value)}>
        {value === undefined && <option value="">Choose</option>}
        {schema.enum.map((option) => <option key={String(option)}>{String(option)}</option>)}
      </select>
    );
  }
  if (typeof value === "number" || schema?.type === "number" || schema?.type === "integer") {
    return <input className="field" type="number" step={schema?.type === "integer" ? 1 : "any"} value={typeof value === "number" ? value : ""} onChange={(event) => onChange(name, event.target.value === "" ? undefined : Number(event.target.value))} />;
  }
  if (value !== undefined && typeof value !== "string") {
    return <textarea className="field mono" rows={4} aria-invalid={raw?.wrong ?? false} value={raw?.text ?? JSON.stringify(value, null, 2)} onChange={(event) => json(name, event.target.value, onChange, onText)} />;
  }
  const text = value ?? "";
  if (text.length > LONG || text.includes("\n") || /body|message|text|content/i.test(name)) {
    return <textarea className="field" rows={3} value={text} onChange={(event) => onChange(name, event.target.value)} />;
  }
  return <input className="field" type="text" value={text} onChange={(event) => onChange(name, event.target.value)} />;
}

function json(name: string, text: string, onChange: Props["onChange"], onText: Props["onText"]): void {
  try {
    const value: unknown = JSON.parse(text);
    onText(name, text, false);
    onChange(name, value);
  } catch {
    onText(name, text, true);
  }
}
