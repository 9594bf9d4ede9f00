package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// fillDisk makes the disk full, as far as SQLite can tell, until more is called.
func fillDisk(t *testing.T, s *Store) (more func()) {
	t.Helper()
	limit := func(pages string) {
		t.Helper()
		c := <-s.writer
		defer func() { s.writer <- c }()
		if err := c.run("PRAGMA max_page_count = " + pages); err != nil {
			t.Fatal(err)
		}
	}
	limit("1") // SQLite makes it the present size
	return func() { limit("1000000") }
}

func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	ctx := t.Context()
	if _, err := s.Admit(ctx, calls(t, "ns", 1, 10)); err != nil {
		t.Fatal(err)
	}
	more := fillDisk(t, s)
	group := calls(t, "ns", 3, 50)
	var err error
	for range 10 { // pages that exist may have room for some
		if _, err = s.Admit(ctx, group); err != nil {
			break
		}
		group = calls(t, "ns", 3, 50)
	}
	if !fault.Is(err, fault.StorageUnavailable) {
		t.Fatalf("enqueue on a full disk: %v", err)
	}
	consistent(t, path)
	if _, err := s.Usage(ctx, []string{"ns"}); err != nil {
		t.Errorf("reading on a full disk: %v", err)
	}
	before, err := s.Usage(ctx, []string{"ns"})
	if err != nil {
		t.Fatal(err)
	}
	more()
	out, err := s.Admit(ctx, group)
	if err != nil || out[0].Err != nil || out[0].Repeat {
		t.Fatalf("the same call when there is space again: %v, %v", out[0].Err, err)
	}
	after, err := s.Usage(ctx, []string{"ns"})
	if err != nil || after[0].Pending != before[0].Pending+150 {
		t.Errorf("%d pending, then %d; want 150 more", before[0].Pending, after[0].Pending)
	}
	consistent(t, path)
}

// TestPingBelievesRefusedWrites: where only small writes have room, Ping's own
// proves nothing.
func TestPingBelievesRefusedWrites(t *testing.T) {
	s := open(t, Options{})
	ctx := t.Context()
	refuse := func() (more func()) {
		t.Helper()
		more = fillDisk(t, s)
		for range 10 { // pages that exist may have room for some
			if _, err := s.Admit(ctx, calls(t, "ns", 3, 50)); err != nil {
				return more
			}
		}
		t.Fatal("the disk does not get full")
		return nil
	}
	refused := func(when string) {
		t.Helper()
		if err := s.Ping(ctx); !fault.Is(err, fault.StorageUnavailable) || !strings.Contains(err.Error(), "admit was refused") {
			t.Errorf("%s: %v", when, err)
		}
	}
	good := func(when string) {
		t.Helper()
		if err := s.Ping(ctx); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	more := refuse()
	refused("after an enqueue was refused")
	if err := s.PutToken(ctx, store.Token{ID: "id", Namespace: "ns"}, "", store.Record{}); err != nil {
		t.Fatalf("a small write: %v", err)
	}
	refused("after another operation's small write")
	if err := s.write(ctx, "admit", func(*tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	refused("after an enqueue that wrote nothing")
	more()
	if _, err := s.Admit(ctx, calls(t, "ns", 1, 1)); err != nil {
		t.Fatal(err)
	}
	good("after an enqueue that wrote")

	refuse()
	refused("after an enqueue was refused again")
	r := *s.refused.Load()
	r.at = r.at.Add(-refusalAge)
	s.refused.Store(&r)
	good("when the refusal is old")
}

func TestReadOnlyDisk(t *testing.T) {
	s := open(t, Options{})
	breakWriter(t, s)
	if err := s.Ping(t.Context()); err != nil {
		t.Fatalf("when the disk can be written again: %v", err)
	}
}

func TestDamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	if _, err := s.Admit(t.Context(), calls(t, "ns", 1, 200)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := append([]byte(nil), good...)
	for i := 4096; i < len(bad); i++ {
		bad[i] ^= 0xff
	}
	s = openAt(t, path, Options{})
	if err := os.WriteFile(path, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.Recount(t.Context(), "ns")
	if !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("reading a damaged file: %v", err)
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if u, err := s.Recount(t.Context(), "ns"); err != nil || u.Pending != 200 {
		t.Errorf("after the repair: %v, %v", u, err)
	}
}

// TestLockHeldElsewhere: another process that holds the lock costs time, its
// deadline says whose.
func TestLockHeldElsewhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	if _, err := s.Usage(t.Context(), []string{"ns"}); err != nil { // which opens a connection
		t.Fatal(err)
	}
	long := s.timeout
	other, err := connect(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.run("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	s.timeout = 20 * time.Millisecond
	if err := s.Ping(t.Context()); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("when the store is too slow: %v", err)
	}
	s.timeout = long
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Ping(ended); !errors.Is(err, context.Canceled) || fault.Of(err).Reason != fault.Cancelled {
		t.Errorf("when the caller is gone: %v", err)
	}
	brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.Ping(brief); fault.Of(err).Reason != fault.DeadlineExceeded {
		t.Errorf("when the caller's deadline passed: %v", err)
	}
	if _, err := s.Usage(t.Context(), []string{"ns"}); err != nil {
		t.Errorf("readers must not wait for writers: %v", err)
	}
	if err := other.run("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("when the lock is free: %v", err)
	}
}

func TestClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	if _, err := s.Admit(t.Context(), calls(t, "ns", 1, 10)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Ping(t.Context()); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("after close: %v", err)
	}
	if info, err := os.Stat(path + "-wal"); err == nil && info.Size() > 0 {
		t.Errorf("%d bytes of log are left", info.Size())
	}
}

func TestFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	openAt(t, path, Options{})
	for _, name := range []string{path, path + "-wal"} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}

// TestPanicLeavesNoTransaction: a bug in one operation must not be the end of
// all others.
func TestPanicLeavesNoTransaction(t *testing.T) {
	s := open(t, Options{})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic got lost")
			}
		}()
		_ = s.write(t.Context(), "panic", func(t *tx) error {
			if err := t.exec("UPDATE installation SET pinged_at = 77"); err != nil {
				return err
			}
			panic("a bug")
		})
	}()
	if n := ask(t, s.path, "SELECT pinged_at FROM installation"); n != 0 {
		t.Error("half of an operation was kept")
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestSettlementsFailAlone: what the database refuses of one settlement or want
// stays with it.
func TestUnitsOfTurnFailAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	clock := time.Now()
	s := openAt(t, path, Options{Now: func() time.Time { clock = clock.Add(time.Second); return clock }})
	ctx := t.Context()
	group := calls(t, "ns", 6, 1)
	group[1].Jobs[0].Task, group[4].Jobs[0].Task = "archive", "claim"
	if _, err := s.Admit(ctx, group); err != nil {
		t.Fatal(err)
	}
	one := []store.Want{{Namespace: "ns", Max: 4, LeaseFor: time.Hour}}
	_, grants, err := s.Turn(ctx, nil, one)
	if err != nil || len(grants[0].Jobs) != 4 {
		t.Fatal(grants, err)
	}
	shell(t, path, "CREATE TRIGGER a BEFORE INSERT ON archive WHEN NEW.task = 'archive' BEGIN SELECT raise(ABORT, 'poisoned'); END")
	shell(t, path, "CREATE TRIGGER b BEFORE UPDATE ON jobs WHEN NEW.task = 'claim' AND NEW.state = 1 BEGIN SELECT raise(ABORT, 'poisoned'); END")
	var settle []store.Settlement
	for _, l := range grants[0].Jobs {
		settle = append(settle, store.Settlement{Namespace: "ns", JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed})
	}
	none := int64(1)
	settled, grants, err := s.Turn(ctx, settle, []store.Want{
		{Namespace: "ns", Max: 1, LeaseFor: time.Hour, MaxRunning: &none},
		{Namespace: "ns", Max: 1, LeaseFor: time.Hour},
		{Namespace: "other", Max: 1, LeaseFor: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range settled {
		if got.Accepted != (i != 1) || (got.Err != nil) != (i == 1) {
			t.Errorf("settlement %d: %+v", i, got)
		}
	}
	if len(grants[0].Held) == 0 || grants[0].Err != nil {
		t.Errorf("the job whose settlement failed still runs, but the cap is not seen: %+v", grants[0])
	}
	if fault.Of(grants[1].Err).Reason != fault.Internal {
		t.Errorf("the bad claim: %+v", grants[1])
	}
	if grants[2].Err != nil {
		t.Errorf("another's claim: %v", grants[2].Err)
	}
	consistent(t, path)
}

func TestRefusedByDisk(t *testing.T) {
	for code, want := range map[sqlite.ResultCode]bool{
		sqlite.ResultFull: true, sqlite.ResultIOErrWrite: true, sqlite.ResultReadOnlyDBMoved: true, sqlite.ResultCantOpen: true,
		sqlite.ResultBusy: false, sqlite.ResultInterrupt: false, sqlite.ResultNoMem: false, sqlite.ResultConstraintUnique: false,
		sqlite.ResultOK: false,
	} {
		if got := refusedByDisk(code.ToError()); got != want {
			t.Errorf("%v: refused by the disk is %t", code, got)
		}
	}
}

func TestUnavailable(t *testing.T) {
	for code, want := range map[sqlite.ResultCode]bool{
		sqlite.ResultBusySnapshot: true, sqlite.ResultIOErrFsync: true, sqlite.ResultFull: true, sqlite.ResultCorruptVTab: true,
		sqlite.ResultReadOnlyDBMoved: true, sqlite.ResultInterrupt: true, sqlite.ResultNoMem: true,
		sqlite.ResultConstraintUnique: false, sqlite.ResultError: false, sqlite.ResultTooBig: false, sqlite.ResultMismatch: false,
	} {
		if got := unavailable(code.ToError()); got != want {
			t.Errorf("%v: unavailable is %t", code, got)
		}
	}
	if unavailable(nil) || broken(nil) {
		t.Error("no error is no failure")
	}
}
