// Enqueues jobs over HTTP with nothing but what Node brings.
const url = `${process.env.FLEXIQ_SERVER}/flexiq.v1.ProducerService/Enqueue`;
const headers = { Authorization: `Bearer ${process.env.FLEXIQ_TOKEN}`, "Content-Type": "application/json" };

for (let n = 0; n < Number(process.argv[2] ?? 1); n++) {
  const body = JSON.stringify({ job: { task: "mail", args: { to: "ada", n } } });
  const response = await fetch(url, { method: "POST", headers, body });
  const answer = await response.json();
  if (response.ok) {
    console.log(answer.result.job.status, answer.result.job.id);
  } else if (response.status === 429) {
    const refusal = answer.details[0].debug;
    console.log(refusal.reason, JSON.stringify(refusal.metadata));
  } else {
    throw new Error(answer.message);
  }
}
