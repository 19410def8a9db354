// A page as its author would write it with the AI SDK's useChat, with the server's address in the query.
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses, type UIMessage } from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const query = new URLSearchParams(location.search);
const id = query.get("chat") ?? "chat";
const storageKey = `messages of ${id}`;
const stored = sessionStorage.getItem(storageKey);
const transport = new DefaultChatTransport({ api: `${query.get("server")}/ai-sdk/${query.get("agent") ?? "default"}` });

type Part = UIMessage["parts"][number];

function Shown({ part, answer }: { part: Part; answer: (id: string, approved: boolean) => void }) {
  if (part.type === "text") return <p data-part="text">{part.text}</p>;
  if (part.type === "reasoning") return <p data-part="reasoning">{part.text}</p>;
  if (!("toolCallId" in part)) return null;
  const name = part.type.replace(/^tool-/, "");
  const output = part.state === "output-available" ? JSON.stringify(part.output) : "";
  return (
    <div data-part="tool">
      {name} {part.state} {output}
      {part.state === "approval-requested" && (
        <>
          <button onClick={() => answer(part.approval.id, true)}>Allow</button>
          <button onClick={() => answer(part.approval.id, false)}>Deny</button>
        </>
      )}
    </div>
  );
}

function Chat() {
  const [text, setText] = useState("");
  const chat = useChat({
    id,
    transport,
    messages: JSON.parse(stored ?? "[]"),
    resume: stored !== null,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const asked = chat.messages.filter((message) => message.role === "user");
  if (asked.length) sessionStorage.setItem(storageKey, JSON.stringify(chat.messages.slice(0, chat.messages.indexOf(asked.at(-1)!) + 1)));
  const send = (event: React.FormEvent) => {
    event.preventDefault();
    void chat.sendMessage({ text });
    setText("");
  };
  return (
    <main>
      {chat.messages.map((message) => (
        <section key={message.id} data-role={message.role}>
          {message.parts.map((part, index) => (
            <Shown key={index} part={part} answer={(id, approved) => chat.addToolApprovalResponse({ id, approved })} />
          ))}
        </section>
      ))}
      <output>{chat.status}</output>
      {chat.error && <p role="alert">{chat.error.message}</p>}
      <form onSubmit={send}>
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
      </form>
      <button onClick={() => chat.stop()}>Stop</button>
    </main>
  );
}

createRoot(document.getElementById("root")!).render(<Chat />);
