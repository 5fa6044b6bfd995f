// The official Node SDK of OpenAI; SDK names the package, so that two releases can be run.

import { z } from "zod";

const { default: OpenAI } = await import(process.env.SDK);
const { zodResponseFormat } = await import(`${process.env.SDK}/helpers/zod`);

const model = "gpt-4o-mini";
const messages = [
  { role: "system", content: "You know rivers." },
  { role: "user", content: "What does a weir do? Ünïcödé, 水, 🌊" },
];
const steady = { temperature: 0, seed: 1, max_tokens: 8 };
const River = z.object({ name: z.string(), length_km: z.number(), tributaries: z.array(z.string()) });
const parameters = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
};
const tool = { type: "function", function: { name: "get_weather", parameters } };

const client = new OpenAI();
const hasty = client.withOptions({ maxRetries: 0 });
const both = [SIMULATOR, LLAMA];
const asked = (more) => ({ model, messages, ...more });

on(both, "chat", () => client.chat.completions.create(asked(steady)));

on(both, "chat streamed", async () => all(await client.chat.completions.create(asked({ ...steady, stream: true }))));

on(both, "chat streamed with usage", async () =>
  all(
    await client.chat.completions.create(
      asked({ ...steady, stream: true, stream_options: { include_usage: true } }),
    ),
  ),
);

on([SIMULATOR], "chat accumulated", async () => client.chat.completions.stream(asked({ n: 2 })).finalChatCompletion());

on([SIMULATOR], "tools accumulated", async () =>
  client.chat.completions
    .stream(asked({ tools: [tool], tool_choice: "required" }), { headers: { "x-sim-tool-call": "2" } })
    .finalChatCompletion(),
);

on([SIMULATOR], "tool loop", async () => {
  const results = [];
  const runner = client.chat.completions.runTools({
    model,
    messages: [{ role: "user", content: "Please get weather for Ghent." }],
    tools: [
      {
        type: "function",
        function: {
          name: "get_weather",
          description: "Look up the weather.",
          parameters,
          parse: JSON.parse,
          function: (given) => {
            results.push(given);
            return "rain";
          },
        },
      },
    ],
  });
  return [await runner.finalContent(), results, await runner.totalUsage()];
});

on([SIMULATOR], "structured", async () =>
  client.chat.completions.parse(asked({ response_format: zodResponseFormat(River, "river") })),
);

on([SIMULATOR], "slow stream with comments", async () =>
  all(
    await client.chat.completions.create(asked({ stream: true }), {
      headers: { "x-sim-tokens": "4", "x-sim-token-ms": "120", "x-sim-comment-every": "2" },
    }),
  ),
);

on([SIMULATOR], "stream that breaks", async () =>
  readUntilItBreaks(
    await hasty.chat.completions.create(asked({ stream: true }), { headers: { "x-sim-cut-after": "4" } }),
  ),
);

on([SIMULATOR], "error event in a stream", async () => {
  const headers = { "x-sim-error-event-after": "3" };
  const stream = await hasty.chat.completions.create(asked({ stream: true }), { headers });
  return refusal(() => all(stream));
});

on([SIMULATOR], "caller that leaves and comes back", async () => {
  const stream = await client.chat.completions.create(asked({ stream: true }), { headers: { "x-sim-tokens": "300" } });
  const read = [];
  for await (const chunk of stream) {
    read.push(chunk);
    if (read.length === 3) break;
  }
  return [read, await client.chat.completions.create(asked())];
});

on([SIMULATOR], "refusals", async () => {
  const seen = [await refusal(() => hasty.chat.completions.create({ model, messages: [{ role: "nobody" }] }))];
  for (const status of ["401", "404", "422", "429", "500"]) {
    seen.push(await refusal(() => hasty.chat.completions.create(asked(), { headers: { "x-sim-status": status } })));
  }
  return seen;
});

on([LLAMA], "refusals of llama", () =>
  refusal(() => hasty.chat.completions.create(asked({ response_format: zodResponseFormat(River, "river") }))),
);

on([SIMULATOR], "retries of the SDK", () =>
  refusal(() =>
    client.chat.completions.create(asked(), {
      maxRetries: 2,
      headers: { "x-sim-status": "503", "x-sim-retry-after": "0.01" },
    }),
  ),
);

on([SIMULATOR], "embeddings", async () => [
  await client.embeddings.create({ model: "text-embedding-3-small", input: "river", dimensions: 8 }),
  await client.embeddings.create({ model: "text-embedding-3-small", input: ["a", "b"], encoding_format: "float" }),
]);

on([SIMULATOR], "models", async () => all(client.models.list()));

on(both, "responses streamed", async () =>
  all(
    await client.responses.create({
      model,
      input: "What does a weir do?",
      max_output_tokens: 16,
      temperature: 0,
      stream: true,
    }),
  ),
);

on([SIMULATOR], "responses accumulated with tools", async () => {
  const flat = { type: "function", name: "get_weather", strict: true, parameters };
  const stream = client.responses.stream({ model, input: "Use a tool.", tools: [flat], tool_choice: "required" });
  return stream.finalResponse();
});

on([SIMULATOR], "many at once", async () =>
  Promise.all(
    Array.from({ length: 16 }, async (_, number) => {
      const question = { model, messages: [{ role: "user", content: `Question ${number}` }] };
      if (number % 2) return (await client.chat.completions.create(question)).choices[0].message.content;
      const chunks = await all(await client.chat.completions.create({ ...question, stream: true }));
      return chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join("");
    }),
  ),
);

await goThrough();
