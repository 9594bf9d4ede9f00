package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/namespace"
)

// The namespaces of the isolation tests: callers with a plain name and with
// names made of what means something in subjects, keys and patterns, and
// victims that nobody but themselves may reach.
var (
	callers = []string{"lark", "a.b.*", "> é:1", "quota:ns:4:wren"}
	victims = []string{"wren", "w.*.> Ü"}
)

// tenantScopes are the scopes of tokens with a namespace.
var tenantScopes = []auth.Scope{auth.Produce, auth.Work, auth.Inspect, auth.Admin}

// isolation is an installation with tokens of single scopes for every caller,
// and with victims that hold one object of each kind.
type isolation struct {
	t        *testing.T
	d        *daemon
	urls     map[string]string // of services that another process has
	http     *http.Client      // also for gRPC, without TLS
	platform string
	tokens   map[string]map[auth.Scope]string // by caller
	victims  map[string]*victim
}

// victim is a namespace with something to reach for.
type victim struct {
	name    string
	token   string            // all scopes
	objects map[string]string // ids by kind
	lease   string
	page    string // a page token of its jobs
	worker  *client.Client
}

// modes are the two ways to run NATS.
func modes(t *testing.T, test func(t *testing.T, d *daemon)) {
	t.Run("embedded", func(t *testing.T) {
		home(t)
		test(t, inProcess(t))
	})
	t.Run("outside", func(t *testing.T) {
		home(t)
		d, _ := newOutsideNATS(t).daemon()
		test(t, d)
	})
}

func newIsolation(t *testing.T, d *daemon, others ...*daemon) *isolation {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	in := &isolation{
		t: t, d: d, http: &http.Client{Transport: transport}, platform: tokensOf(t, d)["platform"],
		tokens: map[string]map[auth.Scope]string{}, victims: map[string]*victim{}, urls: map[string]string{},
	}
	for _, o := range others {
		for _, service := range o.served() {
			in.urls[service] = o.httpURL
		}
	}
	for _, ns := range callers {
		in.tokens[ns] = map[auth.Scope]string{auth.Platform: in.platform}
		for _, s := range tenantScopes {
			in.tokens[ns][s] = in.token(ns, s)
		}
	}
	for _, ns := range victims {
		in.victims[ns] = in.newVictim(ns)
	}
	return in
}

// url is where a service is.
func (in *isolation) url(service string) string {
	if url, ok := in.urls[service]; ok {
		return url
	}
	return in.d.httpURL
}

// token makes a token of any namespace.
func (in *isolation) token(ns string, scopes ...auth.Scope) string {
	in.t.Helper()
	req := &flexiqv1.CreateTokenRequest{Namespace: ns, Name: "isolation"}
	for _, s := range scopes {
		req.Scopes = append(req.Scopes, string(s))
	}
	a := in.call(auth.DoorHTTP, in.platform, method(in.t, "CreateToken"), req)
	var res flexiqv1.CreateTokenResponse
	if err := protojson.Unmarshal([]byte(a.body), &res); err != nil || res.GetToken() == "" {
		in.t.Fatalf("a token of %q: %+v", ns, a)
	}
	return res.GetToken()
}

// newVictim fills a namespace: a pending, a running, a complete and a dead job,
// a unique key, a quota and tokens.
func (in *isolation) newVictim(ns string) *victim {
	in.t.Helper()
	v := &victim{name: ns, token: in.token(ns, tenantScopes...), objects: map[string]string{}}
	c, err := client.Dial(in.t.Context(), client.Options{Server: in.url(auth.ProducerService), Token: v.token})
	if err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(func() { _ = c.Close(context.Background()) })
	v.worker = c
	ctx := in.t.Context()
	for range 3 {
		if _, err := c.Enqueue(ctx, client.Job{Task: "work", Queue: "hold", Payload: []byte("theirs")}); err != nil {
			in.t.Fatal(err)
		}
	}
	a := in.call(auth.DoorHTTP, v.token, method(in.t, "Claim"), &flexiqv1.ClaimRequest{Queues: []string{"hold"}, MaxJobs: 3, LeaseFor: seconds(3600)})
	var claimed flexiqv1.ClaimResponse
	if err := protojson.Unmarshal([]byte(a.body), &claimed); err != nil || len(claimed.GetJobs()) != 3 {
		in.t.Fatalf("claim: %+v", a)
	}
	jobs := claimed.GetJobs()
	in.must(in.call(auth.DoorHTTP, v.token, method(in.t, "Settle"), &flexiqv1.SettleRequest{Settlements: []*flexiqv1.Settlement{
		{JobId: jobs[0].GetJob().GetId(), Lease: jobs[0].GetLease(), Outcome: "complete"},
		{JobId: jobs[1].GetJob().GetId(), Lease: jobs[1].GetLease(), Outcome: "dead", Error: proto.String("boom")},
	}}))
	pending, err := c.Enqueue(ctx, client.Job{Task: "work", Queue: "theirs", UniqueKey: "theirs"})
	if err != nil {
		in.t.Fatal(err)
	}
	if _, err := c.Enqueue(ctx, client.Job{Task: "work", Queue: "theirs"}); err != nil {
		in.t.Fatal(err)
	}
	v.objects = map[string]string{
		"complete": jobs[0].GetJob().GetId(), "dead": jobs[1].GetJob().GetId(), "running": jobs[2].GetJob().GetId(),
		"pending": pending.Job.GetId(), "token": idOf(in.t, v.token),
	}
	v.lease = jobs[2].GetLease()
	in.must(in.call(auth.DoorHTTP, v.token, method(in.t, "SetQuota"), &flexiqv1.SetQuotaRequest{
		Quota: &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(1000), EnqueueRate: proto.String("100/h")},
	}))
	list := in.call(auth.DoorHTTP, v.token, method(in.t, "ListJobs"), &flexiqv1.ListJobsRequest{PageSize: 1})
	var page flexiqv1.ListJobsResponse
	if err := protojson.Unmarshal([]byte(list.body), &page); err != nil || page.GetNextPageToken() == "" {
		in.t.Fatalf("list: %+v", list)
	}
	v.page = page.GetNextPageToken()
	return v
}

func (in *isolation) must(a answer) {
	in.t.Helper()
	if a.code != "" {
		in.t.Fatalf("%+v", a)
	}
}

func method(t *testing.T, name string) auth.Method {
	t.Helper()
	m, ok := auth.MethodNamed(name)
	if !ok {
		t.Fatalf("no method %s", name)
	}
	return m
}

func seconds(n int64) *durationpb.Duration { return &durationpb.Duration{Seconds: n} }

func idOf(t *testing.T, token string) string {
	t.Helper()
	id, err := tokenID(token)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// describe finds the descriptor of a method.
func describe(t *testing.T, m auth.Method) protoreflect.MethodDescriptor {
	t.Helper()
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(m.Service))
	if err != nil {
		t.Fatal(err)
	}
	return d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(m.Name))
}

// answer is what a call came to. code is empty for a success.
type answer struct{ code, message, body string }

// raw carries encoded bodies through connect.
type raw struct{ bytes []byte }

type rawCodec struct{ name string }

func (c rawCodec) Name() string                { return c.name }
func (rawCodec) Marshal(v any) ([]byte, error) { return v.(*raw).bytes, nil }
func (rawCodec) Unmarshal(b []byte, v any) error {
	if m, ok := v.(proto.Message); ok { // the status of a gRPC error
		return proto.Unmarshal(b, m)
	}
	v.(*raw).bytes = slices.Clone(b)
	return nil
}

// call calls a method over HTTP with JSON or over gRPC. The body of the answer
// comes back as JSON in both cases. Headers that name a namespace change nothing.
func (in *isolation) call(door, token string, m auth.Method, req proto.Message) answer {
	in.t.Helper()
	encode, codec, opts := protojson.MarshalOptions{UseProtoNames: true}.Marshal, rawCodec{"json"}, []connect.ClientOption{}
	if door == auth.DoorGRPC {
		encode, codec, opts = proto.Marshal, rawCodec{"proto"}, []connect.ClientOption{connect.WithGRPC()}
	}
	text, err := encode(req)
	if err != nil {
		in.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(in.t.Context(), 10*time.Second)
	defer cancel()
	call := connect.NewRequest(&raw{text})
	if token != "" {
		call.Header().Set("Authorization", "Bearer "+token)
	}
	for _, h := range []string{"Fq-Namespace", "X-Namespace", "Namespace"} {
		call.Header().Set(h, namespace.Encode(victims[0]))
	}
	res, err := connect.NewClient[raw, raw](in.http, in.url(m.Service)+m.Procedure(), append(opts, connect.WithCodec(codec))...).CallUnary(ctx, call)
	if err != nil {
		code := connect.CodeOf(err).String()
		return answer{code: code, message: strings.TrimPrefix(err.Error(), code+": ")}
	}
	if door != auth.DoorGRPC {
		return answer{body: string(res.Msg.bytes)}
	}
	msg := dynamicpb.NewMessage(describe(in.t, m).Output())
	if err := proto.Unmarshal(res.Msg.bytes, msg); err != nil {
		in.t.Fatal(err)
	}
	body, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(msg)
	if err != nil {
		in.t.Fatal(err)
	}
	return answer{body: string(body)}
}

// volatile are what two looks at an untouched namespace may differ in.
// Workers are told of a second later.
var volatile = []string{"last_minute", "last_sweep", "last_used_at", "last_seen", "oldest_wait", "enqueued_last_minute", "finished_last_minute", "ahead", "estimate", "since", "workers"}

// look reads everything of a namespace that its own token can read without
// naming it.
func (in *isolation) look(v *victim) map[string]any {
	in.t.Helper()
	seen := map[string]any{}
	for _, m := range auth.Methods {
		if !strings.HasPrefix(m.Name, "List") && !strings.HasPrefix(m.Name, "Get") {
			continue
		}
		a := in.call(auth.DoorHTTP, v.token, m, dynamicpb.NewMessage(describe(in.t, m).Input()))
		if a.code != "" {
			continue
		}
		var body any
		if err := json.Unmarshal([]byte(a.body), &body); err != nil {
			in.t.Fatal(err)
		}
		seen[m.Name] = calm(body)
	}
	if len(seen) < 6 {
		in.t.Fatalf("a look at %q sees only %v", v.name, slices.Collect(maps.Keys(seen)))
	}
	return seen
}

// calm leaves out what is volatile.
func calm(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range volatile {
			delete(v, name)
		}
		for k := range v {
			v[k] = calm(v[k])
		}
	case []any:
		for i := range v {
			v[i] = calm(v[i])
		}
	}
	return v
}

// untouched runs a test and wants every victim as it was, its tokens of
// enqueue_rate included.
func (in *isolation) untouched(test func()) {
	in.t.Helper()
	before := map[string]map[string]any{}
	for ns, v := range in.victims {
		before[ns] = in.look(v)
	}
	test()
	for ns, v := range in.victims {
		if diff := cmp.Diff(before[ns], in.look(v)); diff != "" {
			in.t.Errorf("namespace %q has changed (-before +after):\n%s", ns, diff)
		}
	}
	// The bucket was set full after the enqueues, so all of it must be there.
	for ns, v := range in.victims {
		jobs := make([]client.Job, 100)
		for i := range jobs {
			jobs[i].Task = "all"
		}
		if _, err := v.worker.EnqueueBatch(in.t.Context(), jobs); err != nil {
			in.t.Errorf("namespace %q cannot spend its own tokens: %v", ns, err)
		}
	}
}

func where(door, ns string, scope auth.Scope, m auth.Method) string {
	return fmt.Sprintf("%s: %s of %q calls %s", door, scope, ns, m.Name)
}
