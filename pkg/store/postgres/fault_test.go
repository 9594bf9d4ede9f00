package postgres

import (
	"context"
	"net"
	"testing"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// TestReadOnly: a server that takes no writes is unavailable, not wrong, and
// the store goes on by itself when it takes them again.
func TestReadOnly(t *testing.T) {
	server := testkit.StartPostgres(t)
	s := openAt(t, server.URL(), Options{Schema: "readonly"})
	must(t, s, calls(t, "a", 1, 1))
	group := calls(t, "a", 1, 1)
	set := func(value string) {
		t.Helper()
		own := server.URL() + "&default_transaction_read_only=off"
		execute(t, own, "alter system set default_transaction_read_only = "+value)
		execute(t, own, "select pg_reload_conf()")
	}
	set("on")
	until(t, "Ping fails", func() bool { return fault.Is(s.Ping(t.Context()), fault.StorageUnavailable) })
	if _, err := s.Admit(t.Context(), group); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("admit: %v", err)
	}
	if _, err := s.Usage(t.Context(), []string{"a"}); err != nil {
		t.Errorf("usage: %v", err)
	}
	set("off")
	until(t, "Ping passes", func() bool { return s.Ping(t.Context()) == nil })
	must(t, s, group)
}

// until waits for a state that the server reaches in its own time.
func until(t *testing.T, what string, reached func() bool) {
	t.Helper()
	for late := time.Now().Add(30 * time.Second); !reached(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("not reached: %s", what)
		}
	}
}

// TestSilentServer: a server that accepts connections and never says a word
// costs no more than the timeout.
func TestSilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = Open(ctx, "postgres://u@"+l.Addr().String()+"/db?sslmode=disable", Options{Timeout: 50 * time.Millisecond})
	if !fault.Is(err, fault.StorageUnavailable) || ctx.Err() != nil {
		t.Errorf("open: %v", err)
	}
}

// TestCancelledCaller: a caller who goes away gets their own error, and leaves
// neither a lock nor a lost session behind.
func TestCancelledCaller(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	s := openAt(t, url, Options{Schema: schema, MaxConns: 1})
	must(t, s, calls(t, "a", 1, 1))
	release := hold(t, url, schema, "a")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Admit(ctx, calls(t, "a", 1, 1))
		done <- err
	}()
	until(t, "the call waits", func() bool { return waiters(t, url, schema) > 0 })
	cancel()
	if err := <-done; fault.Of(err).Reason != fault.Cancelled {
		t.Errorf("the caller's error: %v", err)
	}
	release()
	must(t, s, calls(t, "a", 1, 1))
	consistent(t, url, schema)
}
