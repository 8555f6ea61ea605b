// One logical call of Node's `openai` for each line of the input, as `sdks.py` does it.

import OpenAI from "openai";
import { createInterface } from "node:readline";

for await (const line of createInterface({ input: process.stdin })) {
  const { url, key, amount = 1, headers = {}, timeout = 60 } = JSON.parse(line);
  const client = new OpenAI({ baseURL: url, apiKey: "sk-1", defaultHeaders: headers, timeout: timeout * 1000 });
  const messages = [{ role: "user", content: `pay ${amount}` }];
  const named = key ? { "Idempotency-Key": key } : {};
  let came;
  try {
    came = { raised: null, text: (await client.chat.completions.create({ model: "m", messages }, { headers: named })).id };
  } catch (error) {
    came = { raised: error.constructor.name, text: error.message };
  }
  console.log(JSON.stringify(came));
}
