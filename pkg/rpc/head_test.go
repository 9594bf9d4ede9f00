package rpc_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
	"flexiq/pkg/testkit"
)

// info reads what an error's envelope says.
func (a answer) info(t *testing.T) (reason, field, message string) {
	t.Helper()
	var body struct {
		Message string
		Details []struct {
			Debug struct {
				Reason   string
				Metadata map[string]string
			}
		}
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil || len(body.Details) == 0 {
		t.Errorf("no envelope: %v: %d %q", err, a.status, a.body)
		return "", "", ""
	}
	return body.Details[0].Debug.Reason, body.Details[0].Debug.Metadata[fault.KeyField], body.Message
}

// Whatever is wrong with the headers, the answer has the form of every other error.
func TestWrongHeadersHaveReasons(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		t.Error("a method ran")
		return &flexiqv1.GetJobResponse{}, nil
	}
	const wrongType = "Content-Type: must be application/json or application/protobuf"
	tests := []struct {
		header, value string
		status        int
		reason        string
		message       string // part of it
	}{
		{"Content-Type", "text/plain", 415, "INVALID_REQUEST", wrongType},
		{"Content-Type", "application/x-www-form-urlencoded", 415, "INVALID_REQUEST", wrongType},
		{"Content-Type", "application/json; charset=utf-16", 415, "INVALID_REQUEST", wrongType},
		{"Content-Type", "application/connect+json", 415, "INVALID_REQUEST", wrongType},
		{"Content-Type", ";", 415, "INVALID_REQUEST", wrongType},
		{"Content-Encoding", "br", 400, "INVALID_REQUEST", `must be gzip or identity, got "br"`},
		{"Content-Encoding", "gzip", 400, "INVALID_REQUEST", "the body is not valid gzip"},
		{"Connect-Protocol-Version", "7", 400, "INVALID_REQUEST", `must be 1, got "7"`},
		{"Connect-Timeout-Ms", "abc", 400, "INVALID_REQUEST", "whole number of milliseconds"},
		{"Connect-Timeout-Ms", "-1", 400, "INVALID_REQUEST", "whole number of milliseconds"},
		{"Connect-Timeout-Ms", "12345678901", 400, "INVALID_REQUEST", "at most 10 digits"},
		{"Connect-Timeout-Ms", "0", 504, "DEADLINE_EXCEEDED", ""},
	}
	for _, tt := range tests {
		got := r.post(t, pathGetJob, token, `{}`, tt.header, tt.value)
		reason, field, message := got.info(t)
		if got.status != tt.status || got.header.Get("Fq-Reason") != tt.reason || reason != tt.reason {
			t.Errorf("%s: %s: %d %v %s", tt.header, tt.value, got.status, got.header, got.body)
		}
		if !strings.Contains(message, tt.message) || tt.status != 504 && (field != tt.header || !strings.HasPrefix(message, tt.header+": ")) {
			t.Errorf("%s: %s: field %q, message %q", tt.header, tt.value, field, message)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		req, err := http.NewRequestWithContext(t.Context(), method, r.url+pathGetJob, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := h2c(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		got := answer{res.StatusCode, res.Header, string(text)}
		reason, _, message := got.info(t)
		if err != nil || got.status != 405 || got.header.Get("Allow") != "POST" || reason != "INVALID_REQUEST" ||
			got.header.Get("Fq-Reason") != reason || !strings.Contains(message, "must be POST, got "+method) {
			t.Errorf("%s: %v %d %v %s", method, err, got.status, got.header, got.body)
		}
	}
}

// The bodies that doors know have the same names on each.
func TestContentTypes(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		return &flexiqv1.GetJobResponse{}, nil
	}
	for _, contentType := range []string{
		"", "application/json", "Application/JSON; Charset=UTF-8", "application/json;x=y", "application/proto", "application/protobuf",
	} {
		if got := r.post(t, pathGetJob, token, ``, "Content-Type", contentType); got.status != 200 {
			t.Errorf("%q: %d %s", contentType, got.status, got.body)
		}
	}
	if got := r.post(t, pathGetJob, token, ``, "Content-Encoding", "gzip"); got.status != 200 { // nothing is nothing
		t.Errorf("an empty body: %d %s", got.status, got.body)
	}
}

func TestWrongHeadersOfGRPC(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	message := func(flags byte, text string) string { return string([]byte{flags, 0, 0, 0, byte(len(text))}) + text }
	tests := []struct{ header, value, body, code, reason string }{
		{"Grpc-Timeout", "5x", message(0, ""), "3", "INVALID_REQUEST"},
		{"Grpc-Timeout", "123456789S", message(0, ""), "3", "INVALID_REQUEST"},
		{"Grpc-Timeout", "0S", message(0, ""), "4", "DEADLINE_EXCEEDED"},
		{"Grpc-Encoding", "br", message(0, ""), "3", "INVALID_REQUEST"},
		{"Grpc-Encoding", "gzip", message(1, "junk"), "3", "INVALID_REQUEST"},
		{"Content-Type", "application/grpc+xml", message(0, ""), "3", "INVALID_REQUEST"},
	}
	for _, tt := range tests {
		got := r.post(t, pathGetJob, token, tt.body, "Content-Type", "application/grpc", tt.header, tt.value)
		if got.status != 200 || got.header.Get("Grpc-Status") != tt.code || got.header.Get("Fq-Reason") != tt.reason {
			t.Errorf("%s: %s: %d %v", tt.header, tt.value, got.status, got.header)
		}
	}
}

// The caller's deadline reaches the method over gRPC as over HTTP.
func TestDeadlineOfGRPC(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	left := make(chan time.Duration, 1)
	r.getJob = func(ctx context.Context, _ *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		end, _ := ctx.Deadline()
		left <- time.Until(end)
		return &flexiqv1.GetJobResponse{}, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	in := connect.NewRequest(&flexiqv1.GetJobRequest{})
	in.Header().Set("Authorization", "Bearer "+token)
	client := connect.NewClient[flexiqv1.GetJobRequest, flexiqv1.GetJobResponse](h2c(t), r.url+pathGetJob, connect.WithGRPC())
	if _, err := client.CallUnary(ctx, in); err != nil {
		t.Fatal(err)
	}
	if got := <-left; got > 100*time.Second || got < 100*time.Second-testkit.Patience {
		t.Errorf("%s left", got)
	}
}

// A client that sends everything before it looks for the answer finds it.
func TestLargeBodiesAreReadBeforeTheAnswer(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	const size = 12 << 20 // more than the buffers of a connection hold
	heads := map[string]string{
		"announced": fmt.Sprintf("Content-Length: %d\r\n\r\n", size),
		"chunked":   fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", size),
		"wrong":     fmt.Sprintf("Content-Encoding: br\r\nContent-Length: %d\r\n\r\n", size),
	}
	for name, head := range heads {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
				t.Fatal(err)
			}
			text := "POST " + pathGetJob + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n" + head
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(bytes.Repeat([]byte("x"), size)); err != nil {
				t.Fatal(err)
			}
			if name == "chunked" {
				if _, err := io.WriteString(conn, "\r\n0\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusBadRequest || res.Header.Get(rpc.HeaderReason) == "" {
				t.Errorf("%d %v", res.StatusCode, res.Header)
			}
		})
	}
}
