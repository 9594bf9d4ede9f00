package rpc

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"flexiq/pkg/fault"
)

// wire is what connect passes between its codecs and a route: the message, and
// what was wrong with its body. Connect would answer a decoding error itself,
// without its reason; so the codec keeps it for the route.
type wire struct {
	msg proto.Message
	err error
}

// wireCodec decodes into [wire].
type wireCodec struct {
	codec Codec
	name  string
}

func (c wireCodec) Name() string { return c.name }

func (c wireCodec) Marshal(v any) ([]byte, error) {
	if w, ok := v.(*wire); ok {
		v = w.msg
	}
	return c.codec.Marshal(v) // connect's own messages, such as gRPC's status, too
}

func (c wireCodec) Unmarshal(body []byte, v any) error {
	w, ok := v.(*wire)
	if !ok {
		return fmt.Errorf("%T is not a request", v)
	}
	w.err = c.codec.decode(body, w.msg)
	return nil
}

func tooLarge(limit int) *fault.Error {
	return fault.New(fault.PayloadTooLarge, "the message is larger than the limit of %d bytes", limit).
		With("limit", fmt.Sprint(limit))
}

// maxDrain is how much of a refused body is read and thrown away before the
// answer: most clients look for one only when they have sent everything, and
// see a broken connection when the server hangs up before.
const maxDrain = 16 << 20

// limitBody makes a request's body fail beyond a limit, with the error that the
// caller is to get: connect passes on an error of its own type as it is. Closing
// it reads on for a bounded while.
func limitBody(r *http.Request, limit int) io.ReadCloser {
	return &limitedBody{
		limitedReader: limitedReader{r: r.Body, left: int64(limit), limit: limit},
		raw:           r.Body,
		// A client that asked first has sent nothing, and one that sends more
		// than is drained is not spared the broken connection.
		hopeless: r.Header.Get("Expect") != "" || r.ContentLength > int64(limit)+maxDrain,
	}
}

type limitedBody struct {
	limitedReader
	raw      io.ReadCloser
	hopeless bool
	drained  bool
}

// Read also keeps the texts of network errors, with their addresses, inside.
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.limitedReader.Read(p)
	var told *connect.Error
	switch {
	case err == nil, err == io.EOF:
		return n, err
	case errors.As(err, &told):
		b.drain()
		return n, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, connectError(fault.New(fault.DeadlineExceeded, "the body did not arrive in time"))
	}
	return n, connectError(fault.New(fault.Cancelled, "the body broke off"))
}

func (b *limitedBody) drain() {
	if !b.hopeless && !b.drained {
		_, _ = io.CopyN(io.Discard, b.raw, maxDrain) // ends in an error as a rule: the body's end
	}
	b.drained = true
}

// Close implements io.Closer. It may be called twice.
func (b *limitedBody) Close() error {
	b.drain()
	return b.raw.Close()
}

type limitedReader struct {
	r     io.Reader
	left  int64
	limit int
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, connectError(tooLarge(l.limit))
	}
	return n, err
}

// limitedGzip is what connect decompresses messages of gRPC with.
func limitedGzip(limit int) connect.HandlerOption {
	return connect.WithCompression(encodingGzip,
		func() connect.Decompressor { return &gunzip{header: "Grpc-Encoding", limit: limit} },
		func() connect.Compressor { return gzip.NewWriter(io.Discard) },
	)
}

// gunzip is gzip whose output is limited, so that a small body cannot become a
// large one. Its errors are what the caller is to get. It reads nothing before
// it is read, because connect would answer an error of Reset itself.
type gunzip struct {
	header string // what says that the body is gzip
	limit  int
	src    io.Reader
	text   gzip.Reader
	opened bool
	out    limitedReader
}

// Reset implements connect.Decompressor.
func (g *gunzip) Reset(r io.Reader) error {
	g.src, g.opened = r, false
	return nil
}

// Read implements io.Reader. No input is no output.
func (g *gunzip) Read(p []byte) (int, error) {
	if !g.opened {
		if err := g.text.Reset(g.src); err != nil {
			return 0, g.told(err)
		}
		g.opened, g.out = true, limitedReader{r: &g.text, left: int64(g.limit), limit: g.limit}
	}
	n, err := g.out.Read(p)
	return n, g.told(err)
}

func (g *gunzip) told(err error) error {
	var told *connect.Error
	if err == nil || err == io.EOF || errors.As(err, &told) {
		return err
	}
	return connectError(fault.Invalid(g.header, "the body is not valid gzip"))
}

// Close implements connect.Decompressor.
func (g *gunzip) Close() error { return nil } // gzip holds nothing

// inflated is a body that arrives compressed as a whole.
func inflated(body io.ReadCloser, limit int) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{&gunzip{header: "Content-Encoding", limit: limit, src: body}, body}
}

// withStatus answers an error with a status of its own.
type withStatus struct {
	http.ResponseWriter
	status int
}

// WriteHeader leaves gRPC's status alone, which is always 200.
func (w withStatus) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		status = w.status
	}
	w.ResponseWriter.WriteHeader(status)
}

// errorText takes the escapes of HTML out of errors: connect writes them into
// JSON that no browser sees as HTML, and a message such as
// "500 pending >= max_pending 500" is to be read and searched for as it is.
type errorText struct {
	http.ResponseWriter
	failed bool
}

func (e *errorText) WriteHeader(status int) {
	e.failed = status >= http.StatusBadRequest
	e.ResponseWriter.WriteHeader(status)
}

// Write relies on connect writing an error at once.
func (e *errorText) Write(p []byte) (int, error) {
	if !e.failed {
		return e.ResponseWriter.Write(p)
	}
	if _, err := e.ResponseWriter.Write(unescapeHTML(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush is what connect's streams need.
func (e *errorText) Flush() {
	_ = http.NewResponseController(e.ResponseWriter).Flush() // fails when the client is gone, as the next write does
}

// Unwrap is for http.ResponseController.
func (e *errorText) Unwrap() http.ResponseWriter { return e.ResponseWriter }

var htmlEscapes = map[string]byte{`\u003c`: '<', `\u003e`: '>', `\u0026`: '&'}

// unescapeHTML undoes what encoding/json does for HTML's sake.
func unescapeHTML(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			out = append(out, text[i])
			continue
		}
		if i+6 <= len(text) {
			if plain := htmlEscapes[string(text[i:i+6])]; plain != 0 {
				out = append(out, plain)
				i += 5
				continue
			}
		}
		out = append(out, text[i], text[i+1]) // an escape of two bytes, or the start of another one
		i++
	}
	return out
}

// NewServer makes an HTTP server that speaks HTTP/1.1 and HTTP/2, the latter
// also without TLS, as gRPC needs it. It has no time limit on requests as a
// whole: long polls take a minute, and every call has its own deadline.
func NewServer(h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}
