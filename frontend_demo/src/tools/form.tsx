/** A form for a JSON schema's top-level properties; whatever is nested is edited as JSON. */

import { useId, type ReactNode } from "react";

export type Schema = Record<string, unknown>;
export type Values = Record<string, unknown>;
type Edited = { [name: string]: { text: string; wrong: boolean } };

interface Props {
  values: Values;
  schema?: Schema | undefined;
  edited: Edited;
  /** Values to offer for fields of one line. */
  suggestions?: { [name: string]: readonly string[] };
  onChange: (name: string, value: unknown) => void;
  onText: (name: string, text: string, wrong: boolean) => void;
}

const LONG = 60;

export function Form({ values, schema, edited, suggestions, onChange, onText }: Props) {
  const properties = (schema?.properties ?? {}) as Record<string, Schema>;
  const names = [...new Set([...Object.keys(properties), ...Object.keys(values)])];
  return (
    <div className="form">
      {names.map((name) => (
        <Field key={name} name={name} value={values[name]} schema={properties[name]} raw={edited[name]} suggested={suggestions?.[name]} onChange={onChange} onText={onText} />
      ))}
    </div>
  );
}

/** What a form for this schema starts from: its defaults, and "no" for a box that is not ticked. */
export function initialOf(schema: Schema): Values {
  const properties = Object.entries((schema.properties ?? {}) as Record<string, Schema>);
  return Object.fromEntries(properties.flatMap(([name, one]) => {
    const value = one.default ?? one.const ?? (one.type === "boolean" ? false : undefined);
    return value === undefined ? [] : [[name, value]];
  }));
}

/** Titles of the required fields that have no value yet. */
export function missingOf(schema: Schema, values: Values): string[] {
  const properties = (schema.properties ?? {}) as Record<string, Schema>;
  const required = Array.isArray(schema.required) ? (schema.required as string[]) : [];
  return required.filter((name) => values[name] === undefined).map((name) => String(properties[name]?.title ?? name));
}

interface FieldProps {
  name: string;
  value: unknown;
  schema: Schema | undefined;
  raw: Edited[string] | undefined;
  suggested: readonly string[] | undefined;
  onChange: Props["onChange"];
  onText: Props["onText"];
}

function Field({ name, value, schema, raw, suggested, onChange, onText }: FieldProps) {
  const list = useId();
  const title = typeof schema?.title === "string" ? schema.title : name;
  if (typeof value === "boolean" || schema?.type === "boolean") {
    return <label className="check"><input type="checkbox" checked={value === true} onChange={(event) => onChange(name, event.target.checked)} />{title}</label>;
  }
  return (
    <>
      <label>{title}{control({ name, value, schema, raw, list: suggested && list, onChange, onText })}</label>
      {suggested && <datalist id={list}>{suggested.map((one) => <option key={one} value={one} />)}</datalist>}
    </>
  );
}

function control({ name, value, schema, raw, list, onChange, onText }: Omit<FieldProps, "suggested"> & { list: string | undefined }): ReactNode {
  if (Array.isArray(schema?.enum)) {
    const options: unknown[] = schema.enum;
    return (
      <select className="field" value={options.indexOf(value)} onChange={(event) => onChange(name, options[Number(event.target.value)])}>
        {!options.includes(value) && <option value={-1}>Choose</option>}
        {options.map((option, index) => <option key={index} value={index}>{typeof option === "string" ? option : JSON.stringify(option)}</option>)}
      </select>
    );
  }
  if (typeof value === "number" || schema?.type === "number" || schema?.type === "integer") {
    return <input className="field" type="number" step={schema?.type === "integer" ? 1 : "any"} value={typeof value === "number" ? value : ""} onChange={(event) => onChange(name, event.target.value === "" ? undefined : Number(event.target.value))} />;
  }
  if ((value !== undefined && typeof value !== "string") || schema?.type === "array" || schema?.type === "object") {
    return <textarea className="field mono" rows={4} aria-invalid={raw?.wrong ?? false} value={raw?.text ?? JSON.stringify(value, null, 2) ?? ""} onChange={(event) => json(name, event.target.value, onChange, onText)} />;
  }
  const text = value ?? "";
  if (text.length > LONG || text.includes("\n") || /body|message|text|content/i.test(name)) {
    return <textarea className="field" rows={3} value={text} onChange={(event) => onChange(name, event.target.value)} />;
  }
  return <input className="field" type="text" name={name} list={list} autoComplete={list && "off"} value={text} onChange={(event) => onChange(name, event.target.value)} />;
}

function json(name: string, text: string, onChange: Props["onChange"], onText: Props["onText"]): void {
  try {
    const value: unknown = text.trim() ? JSON.parse(text) : undefined;
    onText(name, text, false);
    onChange(name, value);
  } catch {
    onText(name, text, true);
  }
}
