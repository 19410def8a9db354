import { flushSync } from "react-dom";
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
flushSync(() => root.render(<App />)); // at once, so that no key is pressed in between
