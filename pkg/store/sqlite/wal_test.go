package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"flexiq/pkg/store"
)

// TestLogStaysBounded writes while readers overlap all the time, which by
// itself lets the log grow without end.
func TestLogStaysBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	s.walLimit = 128 << 10
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range readers + 1 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.ListJobs(ctx, "ns", store.Filter{}, "", 20); err != nil && ctx.Err() == nil {
					t.Errorf("list: %v", err)
				}
			}
		})
	}
	most := int64(0)
	for range 10 {
		s.checkpointed = time.Time{} // do not wait between two attempts
		if _, err := s.Admit(ctx, calls(t, "ns", 1, 100)); err != nil {
			t.Fatal(err)
		}
		most = max(most, logSize(t, path))
	}
	stop()
	wg.Wait()
	if most > 512<<10 {
		t.Errorf("the log grew to %d bytes", most)
	}
	if n := ask(t, path, "SELECT count(*) FROM jobs"); n != 1000 {
		t.Errorf("%d jobs, want 1000", n)
	}
}

func logSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
