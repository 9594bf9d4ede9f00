package rpc

import (
	"context"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
)

// Media types of bodies, on every door.
const (
	TypeJSON     = "application/json"
	TypeProtobuf = "application/protobuf"
	typeProto    = "application/proto" // connect's name of the latter
)

// CodecOf reads a Content-Type; an empty one is JSON. Another type than JSON
// and protobuf is an INVALID_REQUEST, and so is another charset than UTF-8.
func CodecOf(contentType string) (Codec, error) {
	switch contentType { // as almost all send it
	case "", TypeJSON:
		return JSON, nil
	case TypeProtobuf, typeProto:
		return Binary, nil
	}
	switch mediaType(contentType) {
	case TypeJSON:
		return JSON, nil
	case TypeProtobuf, typeProto:
		return Binary, nil
	}
	return JSON, fault.Invalid("Content-Type", "must be %s or %s", TypeJSON, TypeProtobuf)
}

// mediaType is a Content-Type without its parameters. It is empty when the text
// is none, or names a charset that is not read here.
func mediaType(contentType string) string {
	base, params, err := mime.ParseMediaType(contentType)
	if charset, ok := params["charset"]; err != nil || ok && !strings.EqualFold(charset, "utf-8") {
		return ""
	}
	return base
}

// grpcTypes are what connect serves as gRPC and gRPC-Web.
var grpcTypes = []string{
	"application/grpc", "application/grpc+proto", "application/grpc+json",
	"application/grpc-web", "application/grpc-web+proto", "application/grpc-web+json",
}

const encodingGzip = "gzip"

// head is what a request's headers say of its body and its time.
type head struct {
	gzip     bool      // the whole body is compressed; a gRPC message says so itself
	deadline time.Time // of the caller; zero: none
}

// readHead checks the headers that connect would refuse with errors of its own,
// which have no reason, and leaves it nothing to refuse: a deadline is kept
// here, and a body arrives there uncompressed. status is the answer's, 0 for
// the fault's own.
func readHead(r *http.Request, doorName string, stream bool) (h head, status int, f *fault.Error) {
	if r.Method != http.MethodPost {
		return h, http.StatusMethodNotAllowed, fault.New(fault.InvalidRequest, "the HTTP method must be POST, got %s", quoted(r.Method))
	}
	if doorName == auth.DoorGRPC {
		return readGRPCHead(r)
	}
	if f = bodyHead(r, stream); f != nil {
		return h, http.StatusUnsupportedMediaType, f
	}
	const version = "Connect-Protocol-Version"
	if got := r.Header.Get(version); got != "" && got != "1" {
		return h, 0, fault.Invalid(version, "must be 1, got %q", quoted(got))
	}
	if h.gzip, f = encoding(r.Header, "Content-Encoding"); f != nil {
		return h, 0, f
	}
	r.Header.Del("Content-Encoding")
	h.deadline, f = deadline(r.Header, "Connect-Timeout-Ms", connectTimeout)
	return h, 0, f
}

// bodyHead reads the type of a body over HTTP.
func bodyHead(r *http.Request, stream bool) *fault.Error {
	if stream {
		return streamHead(r)
	}
	codec, err := CodecOf(r.Header.Get("Content-Type"))
	if err != nil {
		return fault.Of(err)
	}
	r.Header.Set("Content-Type", "application/"+codec.Name())
	return nil
}

func readGRPCHead(r *http.Request) (h head, status int, f *fault.Error) {
	base := mediaType(r.Header.Get("Content-Type"))
	if !slices.Contains(grpcTypes, base) {
		return h, http.StatusUnsupportedMediaType,
			fault.Invalid("Content-Type", "must be application/grpc or application/grpc-web, with +proto, +json or neither")
	}
	r.Header.Set("Content-Type", base)
	if _, f = encoding(r.Header, "Grpc-Encoding"); f != nil {
		return h, 0, f
	}
	h.deadline, f = deadline(r.Header, "Grpc-Timeout", grpcTimeout)
	return h, 0, f
}

// encoding reads whether a header says gzip.
func encoding(headers http.Header, name string) (bool, *fault.Error) {
	switch got := headers.Get(name); got {
	case encodingGzip:
		return true, nil
	case "", "identity":
		return false, nil
	default:
		return false, fault.Invalid(name, "must be %s or identity, got %q", encodingGzip, quoted(got))
	}
}

// deadline takes the caller's timeout out of the headers.
func deadline(headers http.Header, name string, parse func(string) (time.Duration, string)) (time.Time, *fault.Error) {
	text := headers.Get(name)
	headers.Del(name)
	if text == "" {
		return time.Time{}, nil
	}
	timeout, wrong := parse(text)
	switch {
	case wrong != "":
		return time.Time{}, fault.Invalid(name, "%s, got %q", wrong, quoted(text))
	case timeout == 0:
		return time.Time{}, fault.Of(context.DeadlineExceeded)
	}
	return time.Now().Add(min(timeout, MaxDeadline)), nil
}

var (
	connectTimeouts = regexp.MustCompile(`^[0-9]{1,10}$`)
	grpcTimeouts    = regexp.MustCompile(`^([0-9]{1,8})([HMSmun])$`)
	grpcUnits       = map[string]time.Duration{
		"H": time.Hour, "M": time.Minute, "S": time.Second,
		"m": time.Millisecond, "u": time.Microsecond, "n": time.Nanosecond,
	}
)

func connectTimeout(text string) (timeout time.Duration, wrong string) {
	if !connectTimeouts.MatchString(text) {
		return 0, "must be a whole number of milliseconds, at most 10 digits"
	}
	n, _ := strconv.ParseInt(text, 10, 64) // 10 digits always fit
	return time.Duration(n) * time.Millisecond, ""
}

func grpcTimeout(text string) (timeout time.Duration, wrong string) {
	m := grpcTimeouts.FindStringSubmatch(text)
	if m == nil {
		return 0, "must be a whole number of at most 8 digits and a unit H, M, S, m, u or n"
	}
	n, _ := strconv.ParseInt(m[1], 10, 64) // 8 digits always fit
	unit := grpcUnits[m[2]]
	return unit * time.Duration(min(n, int64(MaxDeadline/unit)+1)), ""
}
