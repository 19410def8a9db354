import { createRoot } from "react-dom/client";
import { App } from "./app";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/chat.css";
import "./styles/tools.css";
import "./styles/panel.css";

createRoot(document.getElementById("root") as HTMLElement).render(<App />);
