// @anthropic-ai/sdk of npm, the official client of /v1/messages.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { ROOT, TEXT, ability, same, saying } from "./told.mjs";

const client = new Anthropic({ baseURL: ROOT, apiKey: "none", maxRetries: 0, timeout: 30000 });
const asked = { model: "scripted", max_tokens: 100, messages: saying("say hello") };
const input_schema = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ name: "weather", input_schema }];
const isCall = ([call]) => same([call.name, call.input], ["weather", { city: "Ada" }]);

await ability("chat", async () => {
  const done = await client.messages.create(asked);
  same([done.content[0].text, done.usage.output_tokens], [TEXT, 5]);
});
await ability("stream", async () => {
  same(await client.messages.stream(asked).finalText(), TEXT);
});
await ability("tools", async () => {
  isCall((await client.messages.create({ ...asked, tools })).content);
});
await ability("stream tools", async () => {
  isCall((await client.messages.stream({ ...asked, tools }).finalMessage()).content);
});
await ability("errors", async () => {
  const create = (more) => client.messages.create({ ...asked, ...more });
  await assert.rejects(create({ model: "none" }), Anthropic.NotFoundError);
  await assert.rejects(create({ messages: saying("refuse") }), Anthropic.BadRequestError);
  const stream = await create({ messages: saying("fail late"), stream: true });
  await assert.rejects(Array.fromAsync(stream), Anthropic.APIError);
});
await ability("retries", async () => {
  const again = { ...asked, messages: saying("busy anthropic npm") };
  same((await client.messages.create(again, { maxRetries: 2 })).content[0].text, TEXT);
});
