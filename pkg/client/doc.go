// Package client is what a Go program holds to use FlexiQ: a producer that
// enqueues, a worker that runs jobs, and the operators' calls.
//
//	c, err := client.FromEnvironment(ctx)
//	…
//	result, err := c.Enqueue(ctx, client.Job{Task: "send-invoice", Args: invoice})
//
// A [Client] is one token on one server, over NATS (nats://…) or HTTP
// (http://…); outcomes and errors are the same on both. It is safe for
// concurrent use, and enqueues of many goroutines share messages: while one is
// on its way the next gathers, and a lone call waits for nobody.
//
// What is asked for often has types of its own: [Job] for an enqueue, [Task]
// for a worker. Everything else takes and gives the messages of package
// flexiqv1, so that a new field of the interface needs no change here.
//
// # Errors
//
// Every error has a *fault.Error in its chain, whatever went wrong: decide by
// its Reason. [AsRefusal] takes a quota's refusal apart.
//
// # Safe repeats
//
// A call whose outcome is unknown (the connection broke, no answer came) or
// that met an unavailable server is sent again, for [Options.RetryFor]. That
// is safe for enqueues because the client makes the job's id: the server
// recognises a repeated call and answers with the first outcome. Refusals are
// not repeated unless [Options.RetryRefusals] asks for it, and writes of the
// operators' door never are.
//
// # Workers
//
// A [Worker] claims jobs for its free slots only, keeps their leases alive,
// and tells each outcome until the server has taken it. The package exports
// more than twenty names because a worker and a producer are one client here:
// they share the connection, the token and the repeats.
package client
