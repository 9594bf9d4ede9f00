package main

import (
	"fmt"

	"strings"

	"github.com/google/uuid"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/testkit"
)

// plainPaths are publishes without a reply subject: nobody is told anything.
var plainPaths = []producerPath{
	{
		name: "a plain publish", from: []string{"rpc Enqueue", "func admission.enqueue", "store Admit"},
		try: func(s *scene, again bool) reply {
			return s.publish("Enqueue", again, 1, `{"job":%s}`, `"unique_key":"plain"`)
		},
		line: untold(job.OriginEnqueue, 1),
	},
	{
		name: "a plain publish of a batch", from: []string{"rpc EnqueueBatch", "func admission.enqueueBatch", "store Admit"},
		try: func(s *scene, again bool) reply {
			return s.publish("EnqueueBatch", again, 2, `{"jobs":[%s]}`, `"metadata":{"k":"v"}`)
		},
		line: untold(job.OriginEnqueue, 2),
	},
}

// publish sends jobs plainly and waits for what shows that they were decided:
// the jobs, or the count of refusals.
func (s *scene) publish(name string, again bool, n int, body, option string) reply {
	s.t.Helper()
	parts, err := auth.Parse(s.token)
	s.must(err, "the token")
	before := s.refusals()
	ids, specs := make([]string, n), make([]string, n)
	for i := range specs {
		ids[i] = newJobID(s)
		specs[i] = fmt.Sprintf(`{"id":%q,"task":"t","queue":"work",%s}`, ids[i], option)
	}
	subject := auth.Subject(method(s.t, name).Verb, parts.NSToken, parts.ID)
	s.must(s.nc.Publish(subject, []byte(fmt.Sprintf(body, strings.Join(specs, ",")))), "publish")
	if !again && !s.sit.drop {
		s.waitFor("the refusal is counted", func() bool { return s.refusals() > before })
		return reply{reason: fmt.Sprint(s.refusals() - before)}
	}
	var r reply
	for _, id := range ids {
		s.waitFor("the job is there", func() bool {
			j, err := s.d.store.Job(s.t.Context(), s.ns, id)
			if err == nil {
				r.states = append(r.states, string(j.State))
			}
			return err == nil
		})
	}
	return r
}

// untold is the line of what nobody waits for: counted, and told by an event, or
// where the quota cannot be read by the log, which is for operators.
func untold(origin string, n int64) line {
	return func(s *scene, p *producerPath, got reply) (shed, back int64) {
		if s.sit.drop {
			return refused(n)(s, p, got)
		}
		if got.reason != "1" {
			s.t.Errorf("%s: counted %s times, want once", p.name, got.reason)
		}
		if s.sit.unreadable {
			if !strings.Contains(s.log.String(), "unreadable quota") {
				s.t.Errorf("%s: the log does not tell of the unreadable quota", p.name)
			}
			return 0, 0
		}
		s.waitFor(p.name+": an event tells of the refusal", func() bool {
			return s.events.has(func(e *flexiqv1.Event) bool {
				return e.GetType() == "job.rejected" && e.GetReason() == s.sit.reason && e.GetOrigin() == origin && e.GetCount() >= n
			})
		})
		return 0, 0
	}
}

// A call as every door makes it, and how many jobs it is of.
type kindOfCall struct {
	name   string
	jobs   int
	method string
	from   string
	body   string // around the jobs
	option string // of each job
}

var kindsOfCalls = []kindOfCall{
	{"a call", 1, "Enqueue", "func admission.enqueue", `{"job":%s}`, `"priority":3`},
	{"a delayed job", 1, "Enqueue", "func admission.enqueue", `{"job":%s}`, `"delay":"3600s"`},
	{"a job at a time", 1, "Enqueue", "func admission.enqueue", `{"job":%s}`, `"run_at":"2200-01-01T00:00:00Z"`},
	{"a unique job", 1, "Enqueue", "func admission.enqueue", `{"job":%s}`, `"unique_key":"unique DOOR"`},
	{"a debounced job", 1, "Enqueue", "func admission.enqueue", `{"job":%s}`, `"debounce":{"key":"bounce DOOR","window":"600s"}`},
	{"a batch", 2, "EnqueueBatch", "func admission.enqueueBatch", `{"jobs":[%s]}`, `"metadata":{"k":"v"}`},
	{"a batch as one of several calls", 2, "EnqueueCalls", "func admission.enqueueCalls", `{"calls":[{"jobs":[%s]}]}`, `"metadata":{"k":"v"}`},
}

// callPaths are every kind of call through every door, and the Go client.
var callPaths = func() []producerPath {
	var out []producerPath
	doors := []struct {
		name string
		call door
	}{{"HTTP", overHTTP}, {"gRPC", overGRPC}, {"NATS", overNATS}}
	for _, kind := range kindsOfCalls {
		for _, d := range doors {
			name := kind.name + " over " + d.name
			out = append(out, producerPath{
				name: name, from: []string{"rpc " + kind.method, kind.from, "store Admit"},
				try: func(s *scene, _ bool) reply {
					specs := make([]string, kind.jobs)
					for i := range specs {
						queue := "work " + name
						if i > 0 {
							queue = "another" // a refusal names the first
						}
						specs[i] = fmt.Sprintf(`{"id":%q,"task":"t","queue":%q,%s}`, newJobID(s), queue, strings.ReplaceAll(kind.option, "DOOR", d.name))
					}
					return d.call(s, kind.method, fmt.Sprintf(kind.body, strings.Join(specs, ","))).unit(s)
				},
				line: refused(int64(kind.jobs)),
			})
		}
	}
	for _, transport := range []string{"NATS", "HTTP"} {
		for _, n := range []int{1, 3} {
			name := fmt.Sprintf("%d of the Go client over %s", n, transport)
			out = append(out, producerPath{
				name: name, from: []string{"rpc EnqueueBatch", "rpc EnqueueCalls", "store Admit"},
				try:  func(s *scene, _ bool) reply { return s.goClient(transport, n, "work "+name) },
				line: refused(int64(n)),
			})
		}
	}
	return out
}()

// unit reads the one outcome of EnqueueCalls, which itself succeeds.
func (r reply) unit(s *scene) reply {
	s.t.Helper()
	outcome, _ := testkit.Dig(r.body, "outcomes", 0).(map[string]any)
	if outcome == nil {
		return r
	}
	if e, _ := outcome["error"].(map[string]any); e != nil {
		var of reply
		of.errorIn(e)
		return of
	}
	return reply{body: outcome}.read()
}

func (s *scene) goClient(transport string, n int, queue string) reply {
	s.t.Helper()
	c := s.clients[transport]
	specs := make([]client.Job, n)
	for i := range specs {
		specs[i] = client.Job{Task: "t", Queue: queue}
	}
	var results []client.Result
	var err error
	if n == 1 {
		var one client.Result
		if one, err = c.Enqueue(s.t.Context(), specs[0]); err == nil {
			results = []client.Result{one}
		}
	} else {
		results, err = c.EnqueueBatch(s.t.Context(), specs)
	}
	if err != nil {
		f := fault.Of(err)
		_, retry := f.RetryAfter()
		return reply{code: string(f.Reason.Code()), reason: string(f.Reason), message: f.Message, details: f.Details, retry: retry}
	}
	var r reply
	for _, one := range results {
		r.states, r.merged = append(r.states, one.Status), r.merged || one.Deduplicated || one.Debounced
	}
	return r
}

func newJobID(s *scene) string {
	s.t.Helper()
	id, err := uuid.NewV7()
	s.must(err, "an id")
	return id.String()
}

// jobsOf are the states of the jobs of an origin.
func (s *scene) jobsOf(origin string) (states []string) {
	s.t.Helper()
	for after := ""; ; {
		page, err := s.d.store.ListJobs(s.t.Context(), s.ns, everything, after, 500)
		s.must(err, "list jobs")
		for i := range page.Items {
			if page.Items[i].Origin == origin {
				states = append(states, string(page.Items[i].State))
			}
		}
		if after = page.Next; after == "" {
			return states
		}
	}
}

// returnPaths put back what was running: no enqueue, so no limit keeps it out.
var returnPaths = []producerPath{
	{
		name: "a retry of a running job", from: []string{"store Turn"},
		prepare: func(s *scene) { s.kept["retry"] = []string{s.running("returned", "3600s")} },
		try: func(s *scene, again bool) reply {
			if !again {
				s.settle(s.kept["retry"][0], `"outcome":"fail","error":"boom","retry_after":"0s"`)
			}
			return reply{}
		},
		line: comesBack,
	},
	{
		name: "a release of a running job", from: []string{"store Turn"},
		prepare: func(s *scene) { s.kept["release"] = []string{s.running("released", "3600s")} },
		try: func(s *scene, again bool) reply {
			if !again {
				s.settle(s.kept["release"][0], `"outcome":"release"`)
			}
			return reply{}
		},
		line: comesBack,
	},
	{
		// The job that was retried is claimed again: there is more work than the
		// limit allows, so no room opens by it. Under an unreadable quota nothing
		// is claimed.
		name: "a job of a lost worker", from: []string{"store Expire"},
		try: func(s *scene, again bool) reply {
			if again || s.sit.unreadable {
				return reply{}
			}
			id := s.kept["retry"][0]
			s.admin("Claim", `{"queues":["returned"],"max_jobs":1,"wait":"10s","lease_for":"1s"}`)
			s.waitFor("the lost job is back", func() bool {
				j, err := s.d.store.Job(s.t.Context(), s.ns, id)
				s.must(err, "the job")
				return j.State == job.Pending && j.Attempt == 2
			})
			return reply{}
		},
		line: func(*scene, *producerPath, reply) (shed, back int64) { return 0, 0 },
	},
}

func comesBack(*scene, *producerPath, reply) (shed, back int64) { return 0, 1 }
