//go:build linux

package sqlite

import (
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"flexiq/pkg/fault"
)

// TestWritesFail: no write reaches the disk for a while. The limit is of the
// whole process, so this test is not parallel to others.
func TestWritesFail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	if _, err := s.Admit(t.Context(), calls(t, "ns", 1, 10)); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	limit := func(bytes uint64) {
		t.Helper()
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer limit(was.Cur)
	limit(1)
	group := calls(t, "ns", 1, 100)
	for range 3 {
		if _, err := s.Admit(t.Context(), group); !fault.Is(err, fault.StorageUnavailable) {
			t.Fatalf("when nothing can be written: %v", err)
		}
	}
	limit(was.Cur)
	if out, err := s.Admit(t.Context(), group); err != nil || out[0].Err != nil || out[0].Repeat {
		t.Fatalf("when it can be again: %v, %v", out, err)
	}
	if u, err := s.Recount(t.Context(), "ns"); err != nil || u.Pending != 110 {
		t.Errorf("got %+v, %v; want 110 pending", u, err)
	}
	consistent(t, path)
}
