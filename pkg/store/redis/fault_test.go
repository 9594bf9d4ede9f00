package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// unavailableFor does what fails while a server is in trouble.
func unavailableFor(t *testing.T, s *Store, what string) {
	t.Helper()
	_, err := s.Admit(t.Context(), calls(t, "ns", 1, 2))
	if !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("admit on a server that %s: %v", what, err)
	}
	if err := s.Ping(t.Context()); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("ping of a server that %s: %v", what, err)
	}
}

// TestTroubles: what a server cannot do now is STORAGE_UNAVAILABLE, leaves
// nothing half done, and is over by itself.
func TestTroubles(t *testing.T) {
	server := testkit.StartRedis(t)
	s := openAt(t, server.URL(), Options{Timeout: 500 * time.Millisecond})
	enqueue(t, s, calls(t, "ns", 1, 10)...)
	ctx := t.Context()
	set := func(name, value string) {
		t.Helper()
		if err := s.db.ConfigSet(ctx, name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for what, trouble := range map[string]struct{ begin, end func() }{
		"is full":      {func() { set("maxmemory", "1") }, func() { set("maxmemory", "0") }},
		"is a replica": {func() { s.db.SlaveOf(ctx, "127.0.0.1", "1") }, func() { s.db.SlaveOf(ctx, "no", "one") }},
		"cannot save":  {func() { set("min-replicas-to-write", "1") }, func() { set("min-replicas-to-write", "0") }},
	} {
		trouble.begin()
		unavailableFor(t, s, what)
		_, _, err := s.Turn(ctx, nil, []store.Want{want("ns", 1)})
		if !fault.Is(err, fault.StorageUnavailable) {
			t.Errorf("claim on a server that %s: %v", what, err)
		}
		trouble.end()
		claim(t, s, "ns", 1)
		enqueue(t, s, calls(t, "ns", 1, 1)...)
	}
	consistent(t, s)
}

// TestFrozenServer: every operation ends by its deadline, and the store goes on
// when the server does.
func TestFrozenServer(t *testing.T) {
	server := testkit.StartRedis(t)
	s := openAt(t, server.URL(), Options{Timeout: 300 * time.Millisecond})
	enqueue(t, s, calls(t, "ns", 1, 1)...)
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	unavailableFor(t, s, "is frozen")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Usage(ctx, []string{"ns"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with the caller's deadline: %v", err)
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the store answers again", func() bool { return s.Ping(t.Context()) == nil })
	consistent(t, s)
}

// TestRestart: connections to a server that was restarted are replaced, and
// scripts that it does not know any more are sent again.
func TestRestart(t *testing.T) {
	server := testkit.StartRedis(t, "appendonly", "yes", "appendfsync", "always")
	s := openAt(t, server.URL(), Options{})
	enqueue(t, s, calls(t, "ns", 3, 5)...)
	if err := server.Crash(); err != nil {
		t.Fatal(err)
	}
	unavailableFor(t, s, "is gone")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	claim(t, s, "ns", 15)
	consistent(t, s)
	for range 2 { // in the middle of a pipeline too
		if err := s.db.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		enqueue(t, s, append(calls(t, "a", 2, 600), calls(t, "b", 1, 1)...)...)
	}
}

// TestUnavailable tells errors about the database from those about a request.
func TestUnavailable(t *testing.T) {
	s := open(t, Options{})
	if err := s.db.Set(t.Context(), s.key("bad", "live"), "not a set", 0).Err(); err != nil {
		t.Fatal(err)
	}
	out, err := s.Admit(t.Context(), append(calls(t, "good", 1, 1), calls(t, "bad", 1, 1)...))
	if err != nil || out[0].Err != nil || !fault.Is(out[1].Err, fault.Internal) {
		t.Errorf("one namespace is damaged: %v, %+v", err, out)
	}
	if strings.Contains(fault.Of(out[1].Err).Message, "WRONGTYPE") {
		t.Error("the message shows the database's words")
	}
	closed := open(t, Options{})
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := closed.Ping(t.Context()); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("after Close: %v", err)
	}
}

func TestOpen(t *testing.T) {
	url, prefix := testkit.RedisPrefix(t)
	for name, tt := range map[string]struct {
		url    string
		o      Options
		reason fault.Reason
	}{
		"nobody answers": {"redis://127.0.0.1:1", Options{}, fault.StorageUnavailable},
		"a bad password": {strings.Replace(url, "://", "://x:secret@", 1), Options{Prefix: prefix}, fault.StorageUnavailable},
		"a bad URL":      {"redis://a:secret@host:port", Options{}, fault.Internal},
		"no such store":  {url, Options{Prefix: prefix, NoMigrate: true}, fault.Internal},
		"a brace":        {url, Options{Prefix: "{a}"}, fault.Internal},
	} {
		s, err := Open(t.Context(), tt.url, tt.o)
		if err == nil {
			s.Close()
			t.Errorf("%s: no error", name)
			continue
		}
		if got := fault.Of(err).Reason; got != tt.reason || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := openAt(t, url, Options{Prefix: prefix})
	openAt(t, url, Options{Prefix: prefix, NoMigrate: true})
	if err := s.db.HSet(t.Context(), s.key(installation, "ns"), "oldest", formatNow+1).Err(); err != nil {
		t.Fatal(err)
	}
	if newer, err := Open(t.Context(), url, Options{Prefix: prefix}); err == nil {
		newer.Close()
		t.Error("a store that only a newer program may use was opened")
	}
}

// TestWarnings: what loses jobs is told.
func TestWarnings(t *testing.T) {
	for settings, warned := range map[string]string{
		"appendonly yes": "",
		"appendonly no":  "appendonly",
		"appendonly yes maxmemory-policy allkeys-lru":            "maxmemory-policy",
		"appendonly yes maxmemory-policy noeviction maxmemory 0": "",
	} {
		server := testkit.StartRedis(t, strings.Fields(settings)...)
		var log strings.Builder
		openAt(t, server.URL(), Options{Log: zerolog.New(&log)})
		if (warned == "") != (log.Len() == 0) || !strings.Contains(log.String(), warned) {
			t.Errorf("with %q the log says %s", settings, log.String())
		}
	}
}

// TestServerClock: without a clock of its own the store goes by the server's.
func TestServerClock(t *testing.T) {
	s := open(t, Options{})
	before := s.db.Time(t.Context()).Val()
	enqueue(t, s, calls(t, "ns", 1, 1)...)
	page, err := s.ListJobs(t.Context(), "ns", store.Filter{}, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	j := page.Items[0]
	if after := s.db.Time(t.Context()).Val(); j.CreatedAt.Before(before) || j.CreatedAt.After(after) || j.State != job.Pending {
		t.Errorf("created %s, between %s and %s", j.CreatedAt, before, after)
	}
}
