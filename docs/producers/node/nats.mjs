// Enqueues jobs over NATS with its own client.
import { connect } from "@nats-io/transport-node";

const token = process.env.FLEXIQ_TOKEN;
const [, namespace, id] = token.split("."); // fqt.<namespace>.<id>.<secret>
const nc = await connect({ servers: process.env.FLEXIQ_SERVER, token, inboxPrefix: `_INBOX.${namespace}.${id}` });

for (let n = 0; n < Number(process.argv[2] ?? 1); n++) {
  const body = JSON.stringify({ job: { task: "mail", args: { to: "ada", n } } });
  const message = await nc.request(`fq.v1.enqueue.${namespace}.${id}`, body, { timeout: 10_000 });
  const { result, error } = message.json();
  if (result) {
    console.log(result.job.status, result.job.id);
  } else if (error.code === "RESOURCE_EXHAUSTED") {
    console.log(error.reason, JSON.stringify(error.details));
  } else {
    throw new Error(error.message);
  }
}
await nc.drain();
