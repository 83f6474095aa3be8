// What a client can do, told line by line: each ability and why it failed.
import assert from "node:assert/strict";

export const ROOT = process.argv[2];
export const URL = `${ROOT}/v1`;
export const TEXT = "Hello from the scripted model";
export const PERSON = { name: "Ada", age: 36 };
export const saying = (content) => [{ role: "user", content }];
export const same = (found, expected) => assert.deepEqual(found, expected);

/** Run a function, and tell whether the client has the ability. */
export async function ability(name, work) {
  let failure = null;
  try {
    await work();
  } catch (error) {
    failure = String(error);
  }
  console.log("told: " + JSON.stringify({ ability: name, failure }));
}
