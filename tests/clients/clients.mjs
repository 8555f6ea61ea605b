// Node's clients through a gateway, each plain and streaming: `node clients.mjs NAME HOST:PORT`.

import assert from "node:assert";
import { createHash } from "node:crypto";

const [name, gateway] = process.argv.slice(2);
const url = `http://${gateway}`;
const large = Buffer.alloc(3 << 20, "0123456789abcdef");
const digest = createHash("sha256").update(large).digest("hex");
const library = name === "undici" ? await import("undici") : globalThis;
const fetch = library.fetch;

async function* pieces() {
  for (let at = 0; at < large.length; at += 50_000) yield large.subarray(at, at + 50_000);
}

async function call() {
  const headers = { "Idempotency-Key": name, "Content-Type": "application/json" };
  const answer = await fetch(`${url}/guarded/charges`, { method: "POST", headers, body: '{"amount": 5}' });
  return [answer.status, await answer.text(), answer.headers.get("idempotent-replayed")];
}

const [first, second] = [await call(), await call()];
assert.deepEqual(first, [201, second[1], null]);
assert.deepEqual(second, [201, first[1], "true"]);

for (const path of ["/open/upload", "/guarded/upload"]) {
  for (const body of [large, pieces()]) {
    const answer = await fetch(url + path, { method: "POST", body, duplex: "half" });
    assert.equal((await answer.json()).sha256, digest);
  }
}

for (const [method, path] of [["GET", "/open/events"], ["POST", "/open/events"], ["POST", "/guarded/events"]]) {
  const query = `?name=${name}-${method}-${path}`;
  const answer = await fetch(url + path + query, { method });
  let number = 0;
  for await (const piece of answer.body) {
    assert.equal(Buffer.from(piece).toString(), `data: ${number++}\n\n`);
    await (await fetch(`${url}/open/more${query}`, { method: "POST" })).text();
  }
  assert.equal(number, 3);
}

const refused = await fetch(`${url}/small`, { method: "POST", body: large });
assert.deepEqual([refused.status, (await refused.json()).code], [413, "body-too-large"]);

if (name === "undici") {
  const headers = { "Idempotency-Key": "undici-request" };
  const told = [];
  for (let turn = 0; turn < 2; turn++) {
    const { statusCode, body } = await library.request(`${url}/guarded/upload`, { method: "POST", headers, body: large });
    told.push([statusCode, await body.text()]);
  }
  assert.deepEqual(told[0], told[1]);
}
