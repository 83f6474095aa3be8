// openai of npm, the official client.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { PERSON, TEXT, URL, ability, same, saying } from "./told.mjs";

const client = new OpenAI({ baseURL: URL, apiKey: "none", maxRetries: 0, timeout: 30000 });
const model = "scripted";
const messages = saying("say hello");
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const Person = z.object({ name: z.string(), age: z.int().min(0).max(150) });
const isCall = (call) => {
  same(call.function.name, "weather");
  same(JSON.parse(call.function.arguments), { city: "Ada" });
};

await ability("chat", async () => {
  const done = await client.chat.completions.create({ model, messages });
  same([done.choices[0].message.content, done.usage.total_tokens], [TEXT, 7]);
  same((await client.completions.create({ model, prompt: "hello" })).choices[0].text, TEXT);
});
await ability("stream", async () => {
  let text = "";
  for await (const part of await client.chat.completions.create({ model, messages, stream: true }))
    text += part.choices[0].delta.content ?? "";
  same(text, TEXT);
});
await ability("tools", async () => {
  const done = await client.chat.completions.create({ model, messages, tools });
  isCall(done.choices[0].message.tool_calls[0]);
});
await ability("stream tools", async () => {
  const stream = client.chat.completions.stream({ model, messages, tools });
  isCall((await stream.finalChatCompletion()).choices[0].message.tool_calls[0]);
});
await ability("structured", async () => {
  const response_format = zodResponseFormat(Person, "person");
  const done = await client.chat.completions.parse({ model, messages, response_format });
  same(done.choices[0].message.parsed, PERSON);
});
await ability("logprobs", async () => {
  const more = { logprobs: true, top_logprobs: 1 };
  const done = await client.chat.completions.create({ model, messages, ...more });
  same(done.choices[0].logprobs.content[0].token, "Hello");
});
await ability("embeddings", async () => {
  const done = await client.embeddings.create({ model: "vectors", input: ["abc", "de"] });
  same(done.data.map((each) => each.embedding[0]), [3, 2]);
});
await ability("responses", async () => {
  const asked = { model, input: "hello" };
  same((await client.responses.create(asked)).output_text, TEXT);
  same((await client.responses.stream(asked).finalResponse()).output_text, TEXT);
  const late = await client.responses.create({ model, input: "fail late", stream: true });
  await assert.rejects(Array.fromAsync(late), OpenAI.APIError);
});
await ability("errors", async () => {
  const create = (more) => client.chat.completions.create({ model, ...more });
  await assert.rejects(create({ model: "none", messages }), OpenAI.NotFoundError);
  await assert.rejects(create({ messages: saying("refuse") }), OpenAI.BadRequestError);
  const stream = await create({ messages: saying("fail late"), stream: true });
  await assert.rejects(Array.fromAsync(stream), OpenAI.APIError);
});
await ability("retries", async () => {
  const asked = { model, messages: saying("busy openai npm") };
  const done = await client.chat.completions.create(asked, { maxRetries: 2 });
  same(done.choices[0].message.content, TEXT);
});
