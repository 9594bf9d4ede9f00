// Tries over NATS what the file named first says, and prints what came of it:
// {name: {denied: [...], answered: {subject: reason}}}.
import { readFileSync } from "node:fs";
import { connect } from "@nats-io/transport-node";

const { url, cases } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const results = {};
for (const [name, c] of Object.entries(cases)) {
  const nc = await connect({ servers: url, token: c.token, inboxPrefix: c.inbox });
  const denied = new Set();
  (async () => {
    for await (const s of nc.status()) {
      const e = s.error;
      if (s.type === "error" && e?.operation) denied.add(`${e.operation} ${e.subject}`);
    }
  })();
  for (const s of c.publish) nc.publish(s, "{}", { reply: `${c.inbox}.x.1` });
  for (const s of c.subscribe) nc.subscribe(s, { callback: () => {} });
  await nc.flush();
  for (const s of c.allowed) nc.subscribe(s, { callback: () => {} });
  const answered = {};
  for (const s of c.answered) {
    const m = await nc.request(s, "{}", { timeout: 20000 });
    answered[s] = m.headers?.get("Fq-Reason") ?? "";
  }
  await nc.flush();
  results[name] = { denied: [...denied].sort(), answered };
  await nc.close();
}
console.log(JSON.stringify(results));
