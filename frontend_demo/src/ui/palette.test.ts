import { expect, test } from "vitest";
import { matching } from "./Palette";

test("commands are found by words of their names and of what is said about them", () => {
  const commands = [{ name: "New conversation", run: () => undefined }, { name: "Owls", about: "Conversation", run: () => undefined }, { name: "Light colours", run: () => undefined }];
  const names = (words: string) => matching(commands, words).map(({ name }) => name);
  expect(names("")).toHaveLength(3);
  expect(names("conv")).toEqual(["New conversation", "Owls"]);
  expect(names("owls conversation")).toEqual(["Owls"]);
  expect(names("nothing")).toEqual([]);
});
