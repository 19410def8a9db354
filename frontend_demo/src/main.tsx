import { startTransition } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./app";
import { keepEarlyWords } from "./chat/early";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/chat.css";
import "./styles/tools.css";
import "./styles/panel.css";

keepEarlyWords();
const root = createRoot(document.getElementById("root") as HTMLElement);
startTransition(() => root.render(<App />)); // in short tasks: the page's own text area takes keys meanwhile
