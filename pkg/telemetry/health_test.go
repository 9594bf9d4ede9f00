package telemetry

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"flexiq/pkg/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func passes(context.Context) error { return nil }

func fails(context.Context) error { return fault.New(fault.StorageUnavailable, "the disk is full") }

func get(h http.Handler) (int, string) {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	return rec.Code, strings.TrimSpace(rec.Body.String())
}

func TestReadiness(t *testing.T) {
	tests := map[string]struct {
		checks []Check
		code   int
		body   string
	}{
		"no checks": {nil, 200, `{"status":"ready","checks":[]}`},
		"all pass": {[]Check{{"store", true, passes}, {"retention", false, passes}}, 200,
			`{"status":"ready","checks":[{"name":"store","status":"ok","critical":true},{"name":"retention","status":"ok","critical":false}]}`},
		"a critical one fails": {[]Check{{"store", true, fails}, {"retention", false, passes}}, 503,
			`{"status":"unready","checks":[{"name":"store","status":"failed","error":"the disk is full","critical":true},{"name":"retention","status":"ok","critical":false}]}`},
		"another one fails": {[]Check{{"retention", false, fails}, {"store", true, passes}}, 200,
			`{"status":"degraded","checks":[{"name":"retention","status":"failed","error":"the disk is full","critical":false},{"name":"store","status":"ok","critical":true}]}`},
		"both kinds fail": {[]Check{{"retention", false, fails}, {"store", true, fails}, {"tokens", false, fails}}, 503,
			`{"status":"unready","checks":[{"name":"retention","status":"failed","error":"the disk is full","critical":false},{"name":"store","status":"failed","error":"the disk is full","critical":true},{"name":"tokens","status":"failed","error":"the disk is full","critical":false}]}`},
		"what is not safe to show is hidden": {[]Check{{"store", true, func(context.Context) error { return errors.New("password=hunter2") }}}, 503,
			`{"status":"unready","checks":[{"name":"store","status":"failed","error":"internal error","critical":true}]}`},
		"a panic is a failure": {[]Check{{"store", true, func(context.Context) error { panic("broken") }}}, 503,
			`{"status":"unready","checks":[{"name":"store","status":"failed","error":"internal error","critical":true}]}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := NewHealth(zerolog.Nop(), tc.checks...)
				code, body := get(h.Ready())
				if code != tc.code {
					t.Errorf("status %d, want %d", code, tc.code)
				}
				if diff := cmp.Diff(tc.body, body); diff != "" {
					t.Errorf("body (-want +got):\n%s", diff)
				}
				if code, body := get(h.Live()); code != 200 || body != `{"status":"alive"}` {
					t.Errorf("the process lives, and /healthz says %d %s", code, body)
				}
				res, err := h.Checker("flexiq.v1.AdminService").Check(t.Context(), &grpchealth.CheckRequest{Service: "flexiq.v1.AdminService"})
				if err != nil || (res.Status == grpchealth.StatusServing) != (tc.code == 200) {
					t.Errorf("grpc health %v, %v", res, err)
				}
			})
		})
	}
}

func TestGRPCHealthKnowsItsServices(t *testing.T) {
	c := NewHealth(zerolog.Nop()).Checker("flexiq.v1.AdminService")
	if res, err := c.Check(t.Context(), &grpchealth.CheckRequest{}); err != nil || res.Status != grpchealth.StatusServing {
		t.Errorf("the process: %v, %v", res, err)
	}
	if _, err := c.Check(t.Context(), &grpchealth.CheckRequest{Service: "flexiq.v1.Other"}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a strange service: %v, want not found", err)
	}
}

func TestAReportIsSharedForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		h := NewHealth(zerolog.Nop(), Check{Name: "store", Run: func(context.Context) error {
			asked.Add(1)
			time.Sleep(100 * time.Millisecond)
			return nil
		}})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { h.Report() })
		}
		wg.Wait()
		time.Sleep(reportAge - time.Nanosecond)
		h.Report()
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times within a second, want once", n)
		}
		time.Sleep(time.Nanosecond)
		h.Report()
		if n := asked.Load(); n != 2 {
			t.Errorf("asked %d times after a second, want twice", n)
		}
	})
}

func TestChecksRunAtOnceAndEndAtTheirDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		obedient := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		release := make(chan struct{})
		var asked atomic.Int32
		deaf := func(context.Context) error {
			asked.Add(1)
			<-release
			return nil
		}
		h := NewHealth(zerolog.Nop(), Check{"a", true, obedient}, Check{"b", true, obedient}, Check{"deaf", false, deaf}, Check{"fine", true, passes})
		status := func() (out []string) {
			for _, r := range h.Report().Checks {
				out = append(out, r.Status)
			}
			return out
		}
		start := time.Now()
		for range 3 {
			if diff := cmp.Diff([]string{"failed", "failed", "failed", "ok"}, status()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			time.Sleep(reportAge)
		}
		if took := time.Since(start); took != 3*(checkTimeout+reportAge) {
			t.Errorf("three reports took %v, want one deadline each", took)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("a check that hangs was asked %d times, want once", n)
		}
		close(release)
		synctest.Wait()
		if got := status(); got[2] != "ok" {
			t.Errorf("a check that came back is %q, want ok", got[2])
		}
	})
}

func TestAddingACheckRenewsTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth(zerolog.Nop())
		h.Report()
		h.Add(Check{"slow", false, func(context.Context) error { time.Sleep(time.Second); return nil }})
		go func() {
			time.Sleep(time.Millisecond)
			h.Add(Check{"late", true, fails})
		}()
		if r := h.Report(); r.Status != Unready || len(r.Checks) != 2 {
			t.Errorf("report %+v, want both checks in it", r)
		}
	})
}

func TestStopIsUnreadyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth(zerolog.Nop(), Check{"store", true, passes})
		h.Report()
		h.Stop()
		h.Stop()
		code, body := get(h.Ready())
		want := `{"status":"unready","checks":[{"name":"store","status":"ok","critical":true},{"name":"process","status":"failed","error":"the process is shutting down","critical":true}]}`
		if code != 503 || body != want {
			t.Errorf("got %d %s", code, body)
		}
		if code, _ := get(h.Live()); code != 200 {
			t.Errorf("/healthz of a stopping process is %d, want 200", code)
		}
	})
}

func TestTheLogHearsOfChangesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		failing := true
		h := NewHealth(zerolog.New(&log), Check{"store", true, func(ctx context.Context) error {
			if failing {
				return fails(ctx)
			}
			return nil
		}})
		report := func() {
			h.Report()
			time.Sleep(reportAge)
		}
		report()
		report()
		failing = false
		report()
		report()
		want := `{"level":"warn","error":"STORAGE_UNAVAILABLE: the disk is full","check":"store","critical":true,"message":"health check fails"}
{"level":"info","check":"store","message":"health check passes again"}
`
		if diff := cmp.Diff(want, log.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
