import type { IconName } from "../ui/icons";

export interface Suggestion {
  icon: IconName;
  title: string;
  about: string;
  prompt: string;
}

/** What the bundled model is good at; each shows a different part of the page. */
export const SUGGESTIONS: readonly Suggestion[] = [
  { icon: "cloud", title: "Weather in Oslo", about: "A tool that the server runs", prompt: "What is the weather in Oslo?" },
  { icon: "calculator", title: "12 × 7", about: "A call and its result", prompt: "What is 12*7?" },
  { icon: "list", title: "Plan a trip to Rome", about: "Steps that you edit and confirm", prompt: "Plan a trip to Rome" },
  { icon: "brush", title: "Make the background teal", about: "A tool that this page runs", prompt: "Make the background teal" },
  { icon: "mail", title: "Send an email", about: "Waits for your approval", prompt: "Send an email to anna@example.com about lunch" },
  { icon: "search", title: "Search for threads", about: "Another tool of the server", prompt: "Search for threads" },
  { icon: "question", title: "What can you do?", about: "The model about itself", prompt: "What can you do?" },
  { icon: "chip", title: "Load a real model", about: "How to leave the demo", prompt: "How do I load a real model?" },
];
