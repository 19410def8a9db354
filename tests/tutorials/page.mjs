// Shows a tutorial's page without a browser: mounts its compiled App in jsdom and uses it as a person does.
//
// node page.mjs FOLDER JSDOM STEPS. FOLDER has the compiled App.js and node_modules; JSDOM is that package's folder. STEPS
// is a JSON list of { write: text }, { press: key }, { click: a button's label } and { see: text }, taken in order. Prints the page's text.
import { createRequire, register } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, jsdom, steps] = process.argv.slice(2);
const WAIT = 20_000;
// Vite takes imports of style sheets out of the script; Node has to be told to.
register(`data:text/javascript,${encodeURIComponent(
  'export const load = (url, context, next) => url.endsWith(".css") ? { format: "module", source: "", shortCircuit: true } : next(url, context);',
)}`);

const { JSDOM } = createRequire(import.meta.url)(jsdom);
const dom = new JSDOM('<!doctype html><div id="root"></div>', { url: "http://localhost:5173/", pretendToBeVisual: true });
const { window } = dom;
// what React and the components look for in the page and jsdom lacks
window.Element.prototype.scrollTo = window.Element.prototype.scrollIntoView = () => {};
window.matchMedia = () => ({ matches: false, addEventListener() {}, removeEventListener() {}, addListener() {}, removeListener() {} });
class Observer {
  observe() {}
  unobserve() {}
  disconnect() {}
}
Object.assign(window, { ResizeObserver: Observer, IntersectionObserver: Observer });
for (const name of Object.getOwnPropertyNames(window)) {
  if (!(name in globalThis)) Object.defineProperty(globalThis, name, { get: () => window[name], configurable: true });
}

const load = createRequire(path.join(folder, "App.js"));
const { createElement } = load("react");
const { createRoot } = load("react-dom/client");
const { default: App } = await import(pathToFileURL(path.join(folder, "App.js")));
createRoot(document.getElementById("root")).render(createElement(App));

async function until(what, find) {
  for (const end = Date.now() + WAIT; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 20))) {
    const found = find();
    if (found) return found;
  }
  throw new Error(`${what} did not come. The page: ${document.body.textContent}`);
}

const button = (label) => [...document.querySelectorAll("button")].find((each) => [each.textContent.trim(), each.getAttribute("aria-label")].includes(label) && !each.disabled);

const box = () => document.querySelector("textarea:not([aria-hidden])");

for (const { write, press, click, see } of JSON.parse(steps)) {
  if (write) {
    const field = await until("A field to write in", box);
    Object.getOwnPropertyDescriptor(window.HTMLTextAreaElement.prototype, "value").set.call(field, write);
    field.dispatchEvent(new window.Event("input", { bubbles: true }));
  }
  // CopilotKit takes nothing while it is connecting to a thread, so a person presses again
  for (let tries = 0; press && box().value && tries < 20; tries++) {
    box().dispatchEvent(new window.KeyboardEvent("keydown", { key: press, bubbles: true, cancelable: true }));
    for (let passed = 0; box().value && passed < 1_000; passed += 20) await new Promise((resolve) => setTimeout(resolve, 20));
  }
  if (click) (await until(`The button ${click}`, () => button(click))).click();
  if (see) await until(see, () => document.body.textContent.includes(see));
}
console.log(document.body.textContent);
process.exit(0);
