import { expect, test } from "vitest";
import { attach, attachmentsOf, bytesOf, contentOf, reworded, takenInWords } from "./attachments";

const file = (name: string, type: string, bytes = 3): File => new File([new Uint8Array(bytes)], name, { type });
const ALL = { image: true, audio: true, document: true };

test("pictures, sounds, PDFs, texts and code are taken, where the model takes them", async () => {
  const files = [file("a.png", "image/png"), file("a.wav", "audio/wav"), file("b.pdf", "application/pdf"), file("c.md", ""), file("d.ts", "video/mp2t"), file("e.zip", "application/zip")];
  const { taken, refused } = await attach(files, ALL, 0);
  expect(taken.map(({ name, kind }) => `${name} ${kind}`)).toEqual(["a.png image", "a.wav audio", "b.pdf document", "c.md document", "d.ts document"]);
  expect(refused).toEqual(["e.zip is neither a picture, a sound, a PDF nor a text."]);
  expect((await attach(files.slice(0, 2), { ...ALL, image: false, audio: false }, 0)).refused).toEqual(["This model takes no pictures: a.png was not added.", "This model takes no sounds: a.wav was not added."]);
});

test("what may be added is told in words", () => {
  expect(takenInWords(ALL)).toBe("pictures, sounds or documents");
  expect(takenInWords({ ...ALL, image: false })).toBe("sounds or documents");
  expect(takenInWords({ image: false, audio: false, document: true })).toBe("documents");
  expect(takenInWords({ image: false, audio: false, document: false })).toBe("");
});

test("more than a request holds is refused, and what fits beside it is taken", async () => {
  const { taken, refused } = await attach([file("large.pdf", "application/pdf", 2_000_000), file("small.txt", "text/plain", 10)], ALL, 1_000_000);
  expect(taken.map(({ name }) => name)).toEqual(["small.txt"]);
  expect(refused).toEqual(["large.pdf has 2.0 MB; a conversation holds 2.8 MB of files."]);
});

test("files stand before the words as AG-UI's parts, are read back, and stay when the words change", async () => {
  const { taken } = await attach([file("a.png", "image/png", 6), file("s.wav", "audio/wav", 3), file("n.txt", "text/plain", 3)], ALL, 0);
  expect(contentOf("Hi", [])).toBe("Hi");
  const content = contentOf("Hi", taken);
  expect(content).toMatchInlineSnapshot(`
    [
      {
        "metadata": {
          "filename": "a.png",
        },
        "source": {
          "mimeType": "image/png",
          "type": "data",
          "value": "AAAAAAAA",
        },
        "type": "image",
      },
      {
        "metadata": {
          "filename": "s.wav",
        },
        "source": {
          "mimeType": "audio/wav",
          "type": "data",
          "value": "AAAA",
        },
        "type": "audio",
      },
      {
        "metadata": {
          "filename": "n.txt",
        },
        "source": {
          "mimeType": "text/plain",
          "type": "data",
          "value": "AAAA",
        },
        "type": "document",
      },
      {
        "text": "Hi",
        "type": "text",
      },
    ]
  `);
  expect(attachmentsOf(content)).toEqual(taken);
  const message = { id: "1", role: "user" as const, content };
  expect(bytesOf([message])).toBe(12);
  const next = reworded(message, "Hello");
  expect([attachmentsOf(next), next.at(-1)]).toEqual([taken, { type: "text", text: "Hello" }]);
});

test("a file at a URL is named by it", () => {
  const content = [{ type: "image", source: { type: "url", value: "https://pictures.example/a.png" } }];
  expect(attachmentsOf(content)).toEqual([{ name: "https://pictures.example/a.png", kind: "image", mimeType: "", data: "" }]);
});
