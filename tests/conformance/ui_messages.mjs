// Talks to a server as `useChat` does: `ai`'s DefaultChatTransport, its reader, and its message state.
//
// In, one JSON object per line: { api, id, text, answers?: [boolean, ...], stopAfter?, stopsServer?, resume? }. Out: {
// messages, status, stopped?, error? }. answers: to approvals, in order. stopAfter: characters of text after which the
// page stops, by closing its connection or (stopsServer) by asking the server, whose answer is `stopped`. resume: after the first text the page is left, and another one with the same chat reads on.
import { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { jsonLines } from "./clients.mjs";

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => (this.messages = [...this.messages, message]);
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => (this.messages = this.messages.with(index, message));
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {}

const textOf = (messages) =>
  messages.filter((each) => each.role === "assistant").flatMap((each) => each.parts).map((part) => part.text ?? "").join("");

const until = async (done) => {
  while (!done()) await new Promise((next) => setTimeout(next, 5));
};

function page({ api, id }, messages) {
  const state = new State();
  state.messages = messages;
  const transport = new DefaultChatTransport({ api });
  return new Chat({ id, state, transport, sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses });
}

async function converse({ text, answers = [], stopAfter, stopsServer, resume, ...where }) {
  let chat = page(where, []);
  let stopped;
  const sending = chat.sendMessage({ text });
  if (stopAfter !== undefined) {
    await until(() => textOf(chat.messages).length >= stopAfter || chat.status === "error");
    if (stopsServer) stopped = await (await fetch(`${where.api}/${where.id}/stop`, { method: "POST" })).json();
    else await chat.stop();
  }
  if (resume) {
    await until(() => textOf(chat.messages).length > 0 || chat.status === "error");
    const asked = chat.messages.slice(0, 1);
    await chat.stop();
    chat = page(where, asked);
    await chat.resumeStream();
  } else {
    await sending;
  }
  for (const approved of answers) {
    const part = chat.lastMessage.parts.find((each) => each.state === "approval-requested");
    if (!part) break;
    await chat.addToolApprovalResponse({ id: part.approval.id, approved });
    await until(() => chat.status === "ready" || chat.status === "error");
  }
  return { messages: chat.messages, status: chat.status, stopped, error: chat.error?.message };
}

for await (const entry of jsonLines(process.stdin)) console.log(JSON.stringify(await converse(entry)));
