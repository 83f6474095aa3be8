// ai of npm with @ai-sdk/openai-compatible.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { PERSON, TEXT, URL, ability, same } from "./told.mjs";

const provider = createOpenAICompatible({
  name: "here",
  baseURL: URL,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const asked = { model: provider("scripted"), prompt: "say hello", maxRetries: 0 };
const weather = tool({ inputSchema: z.object({ city: z.string() }) });
const Person = z.object({ name: z.string(), age: z.number().int().min(0).max(150) });
const isCall = ([call]) => same([call.toolName, call.input], ["weather", { city: "Ada" }]);

await ability("chat", async () => {
  const done = await generateText(asked);
  same([done.text, done.usage.totalTokens, done.finishReason], [TEXT, 7, "stop"]);
});
await ability("stream", async () => {
  const stream = streamText(asked);
  same((await Array.fromAsync(stream.textStream)).join(""), TEXT);
  same((await stream.usage).outputTokens, 5);
});
await ability("tools", async () => {
  isCall((await generateText({ ...asked, tools: { weather } })).toolCalls);
});
await ability("stream tools", async () => {
  isCall(await streamText({ ...asked, tools: { weather } }).toolCalls);
});
await ability("structured", async () => {
  const output = Output.object({ schema: Person });
  same((await generateText({ ...asked, output })).output, PERSON);
});
await ability("embeddings", async () => {
  const model = provider.embeddingModel("vectors");
  const done = await embedMany({ model, values: ["abc", "de"] });
  same(done.embeddings.map((each) => each[0]), [3, 2]);
});
await ability("errors", async () => {
  await assert.rejects(generateText({ ...asked, prompt: "refuse" }), APICallError);
  const errors = [];
  const onError = ({ error }) => errors.push(error);
  await streamText({ ...asked, prompt: "fail late", onError }).consumeStream();
  assert.ok(errors.length > 0, "the stream raised nothing");
});
await ability("retries", async () => {
  same((await generateText({ ...asked, prompt: "busy ai", maxRetries: 2 })).text, TEXT);
});
