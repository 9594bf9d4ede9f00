package main

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"flexiq/pkg/auth"
	"flexiq/pkg/namespace"
	"flexiq/pkg/testkit"
)

// natsCase is what one token tries over NATS, and what must come of it.
type natsCase struct {
	Token     string   `json:"token"`
	Inbox     string   `json:"inbox"`     // prefix of its inboxes
	Answered  []string `json:"answered"`  // requests that a service answers
	Allowed   []string `json:"allowed"`   // subscriptions that stand
	Publish   []string `json:"publish"`   // forbidden
	Subscribe []string `json:"subscribe"` // forbidden
}

// natsCases are every scope of every caller with every verb, on its own and on
// another's namespace, with its own and another's token id; and every subject
// that is none of a tenant's business.
func (in *isolation) natsCases() map[string]natsCase {
	cases := map[string]natsCase{}
	for i, ns := range callers {
		v := in.victims[victims[i%len(victims)]]
		for _, scope := range auth.Scopes {
			cases[string(scope)+" of "+ns] = in.natsCase(in.tokens[ns][scope], scope, v)
		}
	}
	return cases
}

func (in *isolation) natsCase(token string, scope auth.Scope, v *victim) natsCase {
	parts, err := auth.Parse(token)
	if err != nil {
		in.t.Fatal(err)
	}
	own, id := parts.NSToken, parts.ID
	other, theirs := namespace.Encode(v.name), v.objects["token"]
	c := natsCase{Token: token, Inbox: auth.Inbox(own, id), Allowed: []string{auth.Inbox(own, id) + ".>"}}
	for _, m := range auth.Methods {
		if subject := auth.Subject(m.Verb, own, id); (auth.Identity{Scopes: []auth.Scope{scope}}).Has(m.Scopes...) && !m.Stream {
			c.Answered = append(c.Answered, subject)
		} else {
			c.Publish = append(c.Publish, subject)
		}
		c.Publish = append(c.Publish,
			auth.Subject(m.Verb, other, id), auth.Subject(m.Verb, own, theirs), auth.Subject(m.Verb, other, theirs),
			auth.Subject(m.Verb, own, id)+".more")
		c.Subscribe = append(c.Subscribe, auth.Subject(m.Verb, own, id), auth.Subject(m.Verb, "*", "*"), auth.Subject(m.Verb, other, ">"))
	}
	c.Publish = append(c.Publish,
		"fqi.v1.ready", "fqi.v1.config.quota."+own, "fqi.v1.config.quota."+other, "fqi.v1.progress", "fqi.v1.stats.admission",
		"fqe.v1."+own+".job.complete", "fqe.v1."+other+".job.complete", "fqx.v1."+other+".trigger",
		auth.Inbox(other, theirs)+".x.1", auth.ServiceInbox+".x.1", "_INBOX.x",
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.AUTH", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.USER.INFO",
		"$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.DELETE.KV_FQ_LEASE", "$JS.ACK.s.c.1.1.1.1.1", "$KV.FQ_LEASE.leader",
		"$SRV.PING", "$SRV.INFO.flexiq", "fq.v1.ping."+own+"."+id, "anything")
	c.Subscribe = append(c.Subscribe,
		">", "*", "fq.>", "fq.v1.>", "fqi.>", "fqi.v1.ready", "fqe.>", "fqe.v1.*.>", "fqe.v1."+other+".>", "fqx.>", "fqx.v1."+own+".>",
		"_INBOX.>", "_INBOX.*.*.>", auth.Inbox(other, theirs)+".>", auth.Inbox(own, "*")+".>", auth.Inbox(own, theirs)+".>", auth.ServiceInbox+".>",
		"$SYS.>", "$SYS.REQ.USER.AUTH", "$SYS.ACCOUNT.>", "$JS.>", "$JS.API.>", "$JS.EVENT.>", "$KV.>", "$KV.FQ_LEASE.>", "$SRV.>", "$SRV.PING")
	trigger, events := "fqx.v1."+own+".trigger", "fqe.v1."+own+".>"
	if scope != auth.Produce {
		c.Publish = append(c.Publish, trigger)
	}
	if scope == auth.Inspect {
		c.Allowed = append(c.Allowed, events)
	} else {
		c.Subscribe = append(c.Subscribe, events)
	}
	return c
}

var violationText = regexp.MustCompile(`(?i)permissions violation for (publish|subscription|publish with reply) (?:to|of) "([^"]*)"`)

// denials collects what the server forbade a connection.
type denials struct {
	mu   sync.Mutex
	n    int
	seen map[string]bool // "publish fq.v1…"
}

func (d *denials) hear(_ *nats.Conn, _ *nats.Subscription, err error) {
	if m := violationText.FindStringSubmatch(err.Error()); m != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.n++
		d.seen[strings.ToLower(m[1])+" "+m[2]] = true
	}
}

func (d *denials) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n
}

func (d *denials) list() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.seen))
}

func TestIsolationOverNATS(t *testing.T) {
	modes(t, func(t *testing.T, d *daemon) {
		in := newIsolation(t, d)
		in.untouched(func() {
			for name, c := range in.natsCases() {
				in.tryNATS(name, c)
			}
		})
	})
}

func (in *isolation) tryNATS(name string, c natsCase) {
	in.t.Helper()
	heard := &denials{seen: map[string]bool{}}
	nc := bare(in.t, in.d.natsURL, c.Token, nats.ErrorHandler(heard.hear))
	defer nc.Close()
	var want []string
	for _, s := range c.Publish {
		want = append(want, "publish "+s)
		if err := nc.PublishRequest(s, nc.NewInbox(), []byte("{}")); err != nil {
			in.t.Fatal(err)
		}
	}
	for _, s := range c.Subscribe {
		want = append(want, "subscription "+s)
		if _, err := nc.SubscribeSync(s); err != nil {
			in.t.Fatal(err)
		}
	}
	slices.Sort(want)
	if err := nc.Flush(); err != nil {
		in.t.Fatal(err)
	}
	testkit.Eventually(in.t, name+": everything forbidden is told so", func() bool { return len(heard.list()) >= len(want) })
	for _, s := range c.Allowed {
		if _, err := nc.SubscribeSync(s); err != nil {
			in.t.Fatal(err)
		}
	}
	for _, s := range c.Answered {
		msg, err := nc.Request(s, []byte("{}"), testkit.Patience)
		if err != nil {
			in.t.Errorf("%s: %s is not answered: %v", name, s, err)
		} else if reason := msg.Header.Get("Fq-Reason"); reason == "UNAUTHENTICATED" || reason == "INTERNAL" {
			in.t.Errorf("%s: %s is answered with %s", name, s, msg.Data)
		}
	}
	if got := heard.list(); !slices.Equal(got, want) {
		in.t.Errorf("%s: forbidden are %v, want %v", name, without(got, want), without(want, got))
	}
}

// without are the elements of a that b lacks.
func without(a, b []string) []string {
	var out []string
	for _, s := range a {
		if !slices.Contains(b, s) {
			out = append(out, s)
		}
	}
	return out
}

// A reply subject that is not the caller's own makes a request as good as not
// sent: no work, no message there, one more in the count.
func TestForgedReplySubjectsCauseNoWork(t *testing.T) {
	modes(t, func(t *testing.T, d *daemon) {
		in := newIsolation(t, d)
		v := in.victims[victims[0]]
		victim := bare(t, d.natsURL, v.token)
		parts, err := auth.Parse(v.token)
		if err != nil {
			t.Fatal(err)
		}
		inbox := auth.Inbox(parts.NSToken, parts.ID) + "."
		heard, err := victim.SubscribeSync(inbox + ">")
		if err != nil {
			t.Fatal(err)
		}
		if err := victim.Flush(); err != nil {
			t.Fatal(err)
		}
		token := in.token("lark", tenantScopes...)
		refused := &denials{seen: map[string]bool{}} // the server itself forbids replies to parts of the JetStream API
		nc := bare(t, d.natsURL, token, nats.ErrorHandler(refused.hear))
		mine, err := auth.Parse(token)
		if err != nil {
			t.Fatal(err)
		}
		forged := []string{
			inbox + "x.1", auth.ServiceInbox + ".x.1", "$JS.API.STREAM.DELETE.KV_FQ_LEASE", "$KV.FQ_LEASE.leader", "$SYS.REQ.SERVER.PING",
			"fqi.v1.config.quota." + parts.NSToken, auth.Subject("clear-quota", parts.NSToken, parts.ID), "fqe.v1." + parts.NSToken + ".job.complete",
			"_INBOX.lark", auth.Inbox("lark", mine.ID), auth.Inbox("lark", mine.ID+"x") + ".1",
		}
		before := dropped(t, d, "reply")
		n := 0
		in.untouched(func() {
			for _, m := range auth.Methods {
				if m.Stream || !slices.ContainsFunc(m.Scopes, func(s auth.Scope) bool { return s != auth.Platform }) {
					continue
				}
				for _, reply := range forged {
					body := "{}"
					if m.Name == "Enqueue" {
						body = `{"job":{"task":"forged"}}`
					}
					if err := nc.PublishRequest(auth.Subject(m.Verb, "lark", mine.ID), reply, []byte(body)); err != nil {
						t.Fatal(err)
					}
					n++
				}
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "every forged request is counted, or forbidden by the server", func() bool {
				return dropped(t, d, "reply")-before+float64(refused.count()) >= float64(n)
			})
		})
		if got := dropped(t, d, "reply") - before + float64(refused.count()); got != float64(n) {
			t.Errorf("%g of %d forged requests are counted", got, n)
		}
		if msg, err := heard.NextMsg(50 * time.Millisecond); err == nil { // whatever was sent has been sent before the look at the victims
			t.Errorf("the victim received %s on %s", msg.Data, msg.Subject)
		}
		usage, body := post(t, d, token, "AdminService/GetUsage", "{}")
		if usage.StatusCode != 200 || body["pending"] != "0" {
			t.Errorf("the forger's namespace after it: %v, want no job", body)
		}
		testNoReply(t, d, nc, mine.ID)
	})
}

// testNoReply sends every verb without a reply subject: only those that may be
// published plainly are carried out.
func testNoReply(t *testing.T, d *daemon, nc *nats.Conn, id string) {
	t.Helper()
	before, n := dropped(t, d, "no_reply"), 0
	for _, m := range auth.Methods {
		if m.Plain || m.Stream || !slices.ContainsFunc(m.Scopes, func(s auth.Scope) bool { return s != auth.Platform }) {
			continue
		}
		if err := nc.Publish(auth.Subject(m.Verb, "lark", id), []byte("{}")); err != nil {
			t.Fatal(err)
		}
		n++
	}
	testkit.Eventually(t, "every request without a reply subject is counted", func() bool { return dropped(t, d, "no_reply") >= before+float64(n) })
}

func dropped(t *testing.T, d *daemon, why string) float64 {
	t.Helper()
	return testkit.Metric(t, prometheus.Gatherer(d.reg), "flexiq_bus_dropped_total", "why", why)
}
