/** A run that waits for a person: approve a tool call (with edited arguments), or answer what was asked. */

import type { Interrupt, Message } from "@ag-ui/client";
import { useState } from "react";
import { Icon } from "../ui/icons";
import { focusComposer } from "../ui/keys";
import { Form, initialOf, missingOf, type Schema, type Values } from "./form";
import { titleOf } from "./status";

interface Props {
  interrupt: Interrupt;
  messages: readonly Message[];
  resolve: (payload: unknown) => unknown;
  cancel: () => unknown;
  /** What the person has filled in so far, by interrupt: a refused answer brings the same question back with it. */
  drafts: Drafts;
}

export type Drafts = Map<string, Values>;

/**
 * The tool call that an interrupt asks about, with its arguments; null when it asks about something else.
 *
 * What the interrupt says itself goes first: an approval is for that, whatever the conversation holds. A call's id may
 * have been used before, so the conversation is searched from its end.
 */
export function callOf(interrupt: Interrupt, messages: readonly Message[]): { name: string; args: Values } | null {
  const { toolName, arguments: args } = interrupt.metadata ?? {};
  if (typeof toolName === "string" && isValues(args)) return { name: toolName, args };
  for (let index = messages.length - 1; index >= 0; index--) {
    const message = messages[index];
    if (message?.role !== "assistant") continue;
    const call = message.toolCalls?.find((candidate) => candidate.id === interrupt.toolCallId);
    if (call) return { name: call.function.name, args: parsed(call.function.arguments) };
  }
  return null;
}

const isValues = (value: unknown): value is Values => typeof value === "object" && value !== null && !Array.isArray(value);

function parsed(text: string): Values {
  try {
    const value: unknown = JSON.parse(text);
    return isValues(value) ? value : {};
  } catch {
    return {};
  }
}

export function Approval({ interrupt, messages, resolve, cancel, drafts }: Props) {
  const call = callOf(interrupt, messages);
  const asksApproval = isApproval(interrupt, call);
  const shape = shapeOf(interrupt.responseSchema as Schema | undefined);
  const [values, setValues] = useState<Values>(() => drafts.get(interrupt.id) ?? (asksApproval ? (call?.args ?? {}) : initialOf(shape)));
  const [edited, setEdited] = useState<{ [name: string]: { text: string; wrong: boolean } }>({});
  // a question that comes back is a new object: what was sent to the one before it no longer holds the buttons
  const [answered, setAnswered] = useState<Interrupt | null>(null);
  const sent = answered === interrupt;
  const wrong = Object.values(edited).some((field) => field.wrong);
  const missing = asksApproval ? [] : missingOf(shape, values);
  const changed = asksApproval && JSON.stringify(values) !== JSON.stringify(call?.args ?? {});

  const answer = (run: () => unknown) => {
    setAnswered(interrupt);
    focusComposer(); // the form goes, and what has the keyboard with it
    void Promise.resolve(run()).catch(() => setAnswered(null));
  };
  const change = (name: string, value: unknown) => {
    const next = { ...values, [name]: value };
    drafts.set(interrupt.id, next);
    setValues(next);
  };
  const changeText = (name: string, text: string, bad: boolean) => setEdited((now) => ({ ...now, [name]: { text, wrong: bad } }));
  const { url, declinePayload } = interrupt.metadata ?? {};
  const link = typeof url === "string" && /^https?:\/\//i.test(url) ? url : null;
  const approve = () => resolve(changed ? { approved: true, editedArgs: values } : { approved: true });

  return (
    <section className="tool approval" aria-label="The model waits for you">
      <div className="head">
        <Icon name={asksApproval ? "tool" : "question"} className="kind" />
        <span className="question">{interrupt.message ?? (call ? `${titleOf(call.name)}?` : "The model asks")}</span>
      </div>
      <div className="body">
        {asksApproval
          ? link === null && call && <Form values={values} edited={edited} onChange={change} onText={changeText} />
          : <Form values={values} schema={shape} edited={edited} onChange={change} onText={changeText} />}
        {link && <a href={link} target="_blank" rel="noopener noreferrer">{link}</a>}
        <div className="choices">
          {asksApproval ? (
            <>
              <button className="button primary" disabled={sent || wrong} onClick={() => answer(approve)}>{changed ? "Approve with changes" : "Approve"}</button>
              <button className="button danger" disabled={sent} onClick={() => answer(() => resolve({ approved: false }))}>Deny</button>
            </>
          ) : (
            <>
              <button className="button primary" disabled={sent || wrong || missing.length > 0} onClick={() => answer(() => resolve(payloadOf(values, interrupt.responseSchema)))}>Answer</button>
              <button className="button" disabled={sent} onClick={() => answer(cancel)}>Cancel</button>
              {declinePayload !== undefined && <button className="button danger" disabled={sent} onClick={() => answer(() => resolve(declinePayload))}>Decline</button>}
            </>
          )}
          {wrong && <span className="note">One field is not valid JSON.</span>}
          {missing.length > 0 && <span className="note">Still to be filled in: {missing.join(", ")}</span>}
        </div>
      </div>
    </section>
  );
}

/** The form's schema: the question's own where it asks for an object, else one field for the one value. */
function shapeOf(schema: Schema | undefined): Schema {
  if (schema?.type === "object") return schema;
  return { properties: { answer: { title: "Your answer", ...(schema ?? { type: "string" }) } }, required: ["answer"] };
}

/** An object answers an object's schema; anything else answers with the one value. */
export function payloadOf(values: Values, schema: unknown): unknown {
  return (schema as Schema | undefined)?.type === "object" ? values : values.answer;
}

/** A yes or no about a tool call, rather than a question with its own answer. */
export function isApproval(interrupt: Pick<Interrupt, "reason" | "responseSchema">, call: unknown): boolean {
  if (interrupt.responseSchema) return hasApproved(interrupt.responseSchema);
  return interrupt.reason === "tool_call" || interrupt.reason === "confirmation" || call !== null;
}

function hasApproved(schema: unknown): boolean {
  const properties = (schema as { properties?: Record<string, unknown> } | undefined)?.properties;
  return properties !== undefined && "approved" in properties;
}
