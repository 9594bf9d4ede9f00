package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
)

// idleConnections bounds the connections that are kept for later calls.
const idleConnections = 128

// httpTransport speaks connect's protocol with protobuf bodies.
type httpTransport struct {
	http    *http.Client
	own     bool // http was made here
	server  string
	token   string
	reached atomic.Bool // a server has answered
	methods map[string]*connect.Client[body, body]
}

// body is a message that is encoded already, so that one client type serves
// every method.
type body struct{ bytes []byte }

// bodyCodec passes bodies through as what they are: protobuf.
type bodyCodec struct{}

func (bodyCodec) Name() string { return "proto" }

func (bodyCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.(*body)
	if !ok {
		return nil, fmt.Errorf("marshal: unexpected %T", v)
	}
	return b.bytes, nil
}

func (bodyCodec) Unmarshal(data []byte, v any) error {
	switch v := v.(type) {
	case *body:
		v.bytes = append([]byte(nil), data...)
		return nil
	case proto.Message:
		return proto.Unmarshal(data, v)
	}
	return fmt.Errorf("unmarshal: unexpected %T", v)
}

func dialHTTP(opts Options) (*httpTransport, error) {
	t := &httpTransport{http: opts.HTTP, server: opts.Server, token: opts.Token, methods: make(map[string]*connect.Client[body, body], len(auth.Methods))}
	if t.http == nil {
		tr := http.DefaultTransport.(*http.Transport).Clone()
		tr.MaxIdleConns, tr.MaxIdleConnsPerHost = 0, idleConnections
		if opts.CAFile != "" {
			if !strings.HasPrefix(opts.Server, "https:") {
				return nil, fault.Invalid("server", "must start with https:// when its CA certificates are named")
			}
			roots, err := readCAs(opts.CAFile)
			if err != nil {
				return nil, err
			}
			tr.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		}
		t.http, t.own = &http.Client{Transport: tr}, true
	}
	bearer := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			req.Header().Set("Authorization", "Bearer "+opts.Token)
			return next(ctx, req)
		}
	})
	base := strings.TrimRight(opts.Server, "/")
	for _, m := range auth.Methods {
		t.methods[m.Name] = connect.NewClient[body, body](t.http, base+m.Procedure(),
			connect.WithCodec(bodyCodec{}), connect.WithInterceptors(bearer))
	}
	return t, nil
}

func readCAs(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.Invalid("ca_file", "%v", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fault.Invalid("ca_file", "%s holds no certificate in PEM", file)
	}
	return roots, nil
}

func (t *httpTransport) call(ctx context.Context, method string, req, res proto.Message) error {
	text, err := proto.Marshal(req)
	if err != nil {
		return fmt.Errorf("encode %s: %w", method, err)
	}
	answer, err := t.methods[method].CallUnary(ctx, connect.NewRequest(&body{bytes: text}))
	if err != nil {
		f := httpFault(ctx, t.server, err)
		if f.Reason != Unreachable && ctx.Err() == nil {
			t.reached.Store(true)
		}
		return f
	}
	t.reached.Store(true)
	if err := proto.Unmarshal(answer.Msg.bytes, res); err != nil {
		return fmt.Errorf("decode the answer of %s: %w", method, err)
	}
	return nil
}

// poll is a plain call: when ctx ends the request is cancelled, and the server
// undoes a claim whose answer it can no longer write. HTTP has no way to
// confirm that: an answer that crosses the cancellation on its way is lost, and
// its leases have to run out.
func (t *httpTransport) poll(ctx context.Context, req *flexiqv1.ClaimRequest) (*flexiqv1.ClaimResponse, error) {
	res := new(flexiqv1.ClaimResponse)
	if err := t.call(ctx, "Claim", req, res); err != nil {
		return nil, err
	}
	return res, nil
}

func (t *httpTransport) met() bool { return t.reached.Load() }

// maxMessage is not known over HTTP: the server says it when it refuses.
func (t *httpTransport) maxMessage() int { return 0 }

func (t *httpTransport) close(context.Context) error {
	if t.own {
		t.http.CloseIdleConnections()
	}
	return nil
}
