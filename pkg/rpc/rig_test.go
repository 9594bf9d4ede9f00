package rpc_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
)

// tokens is a store of tokens in memory.
type tokens map[string]store.Token

func (s tokens) Token(_ context.Context, id string) (*store.Token, error) {
	if t, ok := s[id]; ok {
		return &t, nil
	}
	return nil, fault.Missing("token")
}

// refusal is a call of the hook OnRefused.
type refusal struct {
	method string
	id     auth.Identity
	door   string
	req    proto.Message
	err    error
}

// rig is a door, and methods behind it whose outcome the test chooses.
type rig struct {
	url      string
	source   tokens
	log      *safeBuffer
	registry *prometheus.Registry

	getJob func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error)
	claim  func(context.Context, *flexiqv1.ClaimRequest, func(*flexiqv1.ClaimResponse, error))

	refusals    chan refusal
	undelivered chan *flexiqv1.ClaimResponse
}

const maxBytes = 64 << 10

func newRig(t *testing.T, change ...func(*rpc.HandlerOptions)) *rig {
	t.Helper()
	r := &rig{
		source:      tokens{},
		log:         new(safeBuffer),
		registry:    prometheus.NewRegistry(),
		refusals:    make(chan refusal, 8),
		undelivered: make(chan *flexiqv1.ClaimResponse, 8),
	}
	o := rpc.HandlerOptions{Log: zerolog.New(r.log), Metrics: rpc.NewMetrics(r.registry), MaxBytes: maxBytes}
	for _, c := range change {
		c(&o)
	}
	r.url = serve(t, rpc.Handler(r.methods(), auth.NewVerifier(r.source, time.Now), o))
	return r
}

func (r *rig) methods() []rpc.Method {
	refused := func(ctx context.Context, method string, req proto.Message, err error) {
		r.refusals <- refusal{method, auth.From(ctx), auth.Door(ctx), req, err}
	}
	return []rpc.Method{
		rpc.Unary("GetJob", func(ctx context.Context, q *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
			return r.getJob(ctx, q)
		}),
		rpc.Async("Claim", func(ctx context.Context, q *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
			r.claim(ctx, q, done)
		}, rpc.OnUndelivered(func(_ auth.Identity, _ *flexiqv1.ClaimRequest, res *flexiqv1.ClaimResponse) {
			r.undelivered <- res
		})),
		rpc.Unary("SetQuota", func(_ context.Context, q *flexiqv1.SetQuotaRequest) (*flexiqv1.SetQuotaResponse, error) {
			return &flexiqv1.SetQuotaResponse{Quota: q.GetQuota()}, nil
		}, rpc.OnRefused(refused)),
	}
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := rpc.NewServer(h)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return "http://" + l.Addr().String()
}

func (r *rig) mint(t *testing.T, ns string, scopes ...auth.Scope) string {
	t.Helper()
	text, tok, err := auth.Mint(ns, scopes, "", time.Hour, "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.source[tok.ID] = tok
	return text
}

// answer is what came back over plain HTTP.
type answer struct {
	status int
	header http.Header
	body   string
}

// post sends a request as curl would.
func (r *rig) post(t *testing.T, path, token, body string, header ...string) answer {
	t.Helper()
	got, err := r.send(t.Context(), path, token, strings.NewReader(body), header...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// send is post for other goroutines than the test's.
func (r *rig) send(ctx context.Context, path, token string, body io.Reader, header ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, body)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	for name, values := range res.Trailer {
		res.Header[name] = values
	}
	return answer{res.StatusCode, res.Header, string(text)}, err
}

// counted are the counts of calls, by "<method> <door> <code>".
func (r *rig) counted(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]float64)
	for _, f := range families {
		if f.GetName() != "flexiq_rpc_requests_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := make(map[string]string)
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			counts[labels["method"]+" "+labels["door"]+" "+labels["code"]] = m.GetCounter().GetValue()
		}
	}
	return counts
}

// h2c is a client for gRPC without TLS.
func h2c(t *testing.T) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// protocols are the ways in that connect knows, by name.
func protocols() map[string][]connect.ClientOption {
	return map[string][]connect.ClientOption{
		"connect":      nil,
		"connect json": {connect.WithProtoJSON()},
		"grpc":         {connect.WithGRPC()},
		"grpc-web":     {connect.WithGRPCWeb()},
		"grpc gzip":    {connect.WithGRPC(), connect.WithSendGzip()},
	}
}

// call calls a method over one of the protocols.
func call[Req, Res any](t *testing.T, r *rig, token, procedure string, req *Req, opts ...connect.ClientOption) (*Res, error) {
	t.Helper()
	client := connect.NewClient[Req, Res](h2c(t), r.url+procedure, opts...)
	in := connect.NewRequest(req)
	if token != "" {
		in.Header().Set("Authorization", "Bearer "+token)
	}
	out, err := client.CallUnary(t.Context(), in)
	if err != nil {
		return nil, err
	}
	return out.Msg, nil
}

const (
	pathGetJob   = "/flexiq.v1.ProducerService/GetJob"
	pathEnqueue  = "/flexiq.v1.ProducerService/Enqueue"
	pathClaim    = "/flexiq.v1.WorkerService/Claim"
	pathSetQuota = "/flexiq.v1.AdminService/SetQuota"
)

// safeBuffer is a log that may be read while it is written.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
