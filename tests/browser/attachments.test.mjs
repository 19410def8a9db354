// Files beside a message: picked, dropped and pasted, refused in words, shown, kept over a reload and an edit.
import assert from "node:assert/strict";
import { test } from "node:test";
import { becomes, browser, converse, openDemo, picture, PHONE, server, settled, startModule, WIDE, withServer } from "./harness.mjs";

withServer();

const LIMITS = { timeout: 60_000 };
const NOTES = { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("Owls hunt at night.") };
const DOT = { name: "dot.png", mimeType: "image/png", buffer: Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64") };

/** Hands files over as the browser does when somebody drops them anywhere on the page, or pastes them. */
function hand(page, event, ...files) {
  return page.getByRole("textbox", { name: "Message" }).evaluate((box, [kind, given]) => {
    const data = new DataTransfer();
    for (const { name, type, text } of given) data.items.add(new File([text], name, { type }));
    const made = kind === "drop"
      ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })
      : new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
    (kind === "drop" ? document.querySelector(".messages") : box).dispatchEvent(made);
    if (!made.defaultPrevented) throw new Error("the browser leaves the page for a file");
  }, [event, files]);
}

const names = (page) => page.getByRole("list", { name: "Files" }).locator("li").evaluateAll((items) => items.map((item) => item.title));

test("documents go with the message, are shown with it, and stay over a reload and in other words", LIMITS, async () => {
  const page = await openDemo(browser, server.url);
  await page.getByLabel("Files to add").setInputFiles(NOTES);
  await hand(page, "drop", { name: "dropped.md", type: "", text: "# More" });
  await hand(page, "paste", { name: "pasted.csv", type: "text/csv", text: "a,b" });
  await becomes(() => names(page), ["notes.txt", "dropped.md", "pasted.csv"]);
  await page.getByRole("button", { name: "Leave out dropped.md" }).click();
  await picture(page, "files");
  await converse(page, "What is the weather?");
  await page.locator('[data-role="assistant"]').first().waitFor();
  await becomes(() => names(page), ["notes.txt", "pasted.csv"]);
  const threadId = new URLSearchParams(new URL(page.url()).hash.slice(1)).get("thread");
  const kept = await (await fetch(`${server.url}/agui/threads/${threadId}`)).json();
  assert.deepEqual(kept.messages[0].content.map(({ type, text, source }) => text ?? `${type} ${source.mimeType} ${atob(source.value)}`), ["document text/plain Owls hunt at night.", "document text/csv a,b", "What is the weather?"]);
  await page.reload();
  await page.locator('[data-role="assistant"]').first().waitFor();
  await becomes(() => names(page), ["notes.txt", "pasted.csv"]);
  await page.locator(".asked").hover();
  await page.getByRole("button", { name: "Change message" }).click();
  await page.getByRole("textbox", { name: "Your message in other words" }).fill("And the weather now?");
  await page.getByRole("button", { name: "Send again" }).click();
  await page.locator('.message.user', { hasText: "And the weather now?" }).waitFor();
  await settled(page);
  await becomes(() => names(page), ["notes.txt", "pasted.csv"]);
  assert.deepEqual(page.faults, []);
  await page.leave();
});

test("a picture is refused in words where the model takes none, and a file can be sent without words", LIMITS, async () => {
  for (const viewport of [WIDE, PHONE]) {
    const page = await openDemo(browser, server.url, { viewport });
    await page.getByLabel("Files to add").setInputFiles([DOT, NOTES]);
    await page.getByRole("alert").getByText("This model takes no pictures: dot.png was not added.").waitFor();
    await becomes(() => names(page), ["notes.txt"]);
    await picture(page, `files-refused-${viewport.width}`);
    await page.getByRole("button", { name: "Send", exact: true }).click();
    await page.locator('[data-role="assistant"]').waitFor();
    await becomes(() => names(page), ["notes.txt"]);
    assert.deepEqual(page.faults, []);
    await page.leave();
  }
});

test("a sound goes to a model that hears, and can be played where it was said", { timeout: 180_000 }, async () => {
  const hearing = await startModule("tests.browser.serve", "--hearing");
  const page = await openDemo(browser, hearing.url);
  await page.locator('.attach[title="Add sounds or documents"]').waitFor();
  await page.getByLabel("Files to add").setInputFiles([DOT, { name: "beep.wav", mimeType: "audio/wav", buffer: beep() }]);
  await page.getByRole("alert").getByText("This model takes no pictures: dot.png was not added.").waitFor();
  await becomes(() => names(page), ["beep.wav"]);
  await converse(page, "What do you hear?");
  await page.locator('[data-role="assistant"]').first().waitFor();
  await picture(page, "sound");
  await becomes(() => page.locator('.asked audio[aria-label="beep.wav"]').evaluate((player) => Math.round(player.duration * 10)), 5);
  const threadId = new URLSearchParams(new URL(page.url()).hash.slice(1)).get("thread");
  const kept = async () => (await (await fetch(`${hearing.url}/agui/threads/${threadId}`)).json()).messages.map(({ role, content }) => [role, Array.isArray(content) ? content.map(({ type }) => type) : typeof content]);
  await becomes(kept, [["user", ["audio", "text"]], ["assistant", "string"]]);
  assert.deepEqual(page.faults, []);
  await page.leave();
  await hearing.stop();
});

/** Half a second of a tone as a WAV file, 16,000 samples a second. */
function beep() {
  const count = 8_000;
  const file = Buffer.alloc(44 + 2 * count);
  file.write("RIFF", 0); file.writeUInt32LE(36 + 2 * count, 4); file.write("WAVEfmt ", 8);
  file.writeUInt32LE(16, 16); file.writeUInt16LE(1, 20); file.writeUInt16LE(1, 22); file.writeUInt32LE(16_000, 24); file.writeUInt32LE(32_000, 28); file.writeUInt16LE(2, 32); file.writeUInt16LE(16, 34);
  file.write("data", 36); file.writeUInt32LE(2 * count, 40);
  for (let at = 0; at < count; at++) file.writeInt16LE(Math.round(8_000 * Math.sin(at / 6)), 44 + 2 * at);
  return file;
}
