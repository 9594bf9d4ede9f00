package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// childEnv makes the test binary a process that works on the store at its
// value until it is killed.
const childEnv = "FLEXIQ_SQLITE_TEST_CHILD"

// child does everything at random that writes jobs. It prints the ids of every
// call that was answered.
func child(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	term, err := s.NewTerm(ctx, "child")
	if err != nil {
		return err
	}
	var running []store.Settlement
	for {
		if err := childStep(ctx, s, term, &running); err != nil {
			return err
		}
	}
}

func childStep(ctx context.Context, s *Store, term int64, running *[]store.Settlement) error {
	ns := []string{"a", "b"}[rand.N(2)]
	switch rand.N(6) {
	case 0, 1:
		call := store.Call{Namespace: ns, Origin: job.OriginEnqueue}
		for range 1 + rand.N(20) {
			sp := job.Spec{ID: uuid.Must(uuid.NewV7()).String(), Task: "t", Queue: []string{"p", "q"}[rand.N(2)], Priority: rand.Int32N(2),
				Payload: make([]byte, rand.N(2)*4000), Form: job.Bytes, MaxAttempts: 2, Timeout: time.Second}
			if err := sp.Normalize("job", job.LargestMaxPayload); err != nil {
				return err
			}
			call.Jobs = append(call.Jobs, sp)
		}
		out, err := s.Admit(ctx, []store.Call{call})
		if err != nil {
			return fmt.Errorf("admit: %w", err)
		}
		if out[0].Err != nil {
			return fmt.Errorf("admit: %w", out[0].Err)
		}
		for _, r := range out[0].Results {
			fmt.Println(r.Job.ID)
		}
	case 2, 3:
		settle := *running
		*running = nil
		_, grants, err := s.Turn(ctx, settle, []store.Want{{Namespace: ns, Max: 1 + rand.N(20), LeaseFor: time.Second}})
		if err != nil {
			return fmt.Errorf("turn: %w", err)
		}
		for _, l := range grants[0].Jobs {
			if o := append(job.Outcomes, "none")[rand.N(5)]; o.Valid() {
				*running = append(*running, store.Settlement{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Outcome: o})
			}
		}
	case 4:
		_, err := s.Expire(ctx, 50)
		return err
	case 5:
		if _, err := s.Cancel(ctx, ns, store.Selection{Filter: store.Filter{Queue: "q", State: job.Running}}, 3); err != nil {
			return fmt.Errorf("cancel: %w", err)
		}
		_, err := s.Trim(ctx, store.Trim{Term: term, Namespace: ns, Table: store.DeadLetters, Before: time.Unix(1, 0), Limit: 5})
		return err
	}
	return nil
}

// TestKilledProcesses kills processes in the middle of their work. What they
// were answered must be there, and every count must be that of the rows.
func TestKilledProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	var mu sync.Mutex
	var answered []string
	for round := range 3 {
		var wg sync.WaitGroup
		for range 2 {
			ids, wait := startChild(t, path)
			kill := 20 + rand.N(200)
			wg.Go(func() {
				defer wait()
				for n := 0; ids.Scan(); n++ {
					mu.Lock()
					answered = append(answered, ids.Text())
					mu.Unlock()
					if n == kill {
						return
					}
				}
				t.Error("a process ended by itself")
			})
		}
		wg.Wait()
		consistent(t, path)
		for _, ns := range []string{"a", "b"} {
			counted, err := s.Recount(t.Context(), ns)
			if err != nil {
				t.Fatal(err)
			}
			kept, err := s.Usage(t.Context(), []string{ns})
			if err != nil {
				t.Fatal(err)
			}
			if c, k := counted, kept[0]; c.Pending != k.Pending || c.Running != k.Running || c.Archived != k.Archived || c.Dead != k.Dead {
				t.Errorf("round %d: counted %+v, kept %+v", round, c, k)
			}
		}
	}
	there := make(map[string]bool)
	c, err := connect(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.each("SELECT id FROM jobs UNION ALL SELECT id FROM archive UNION ALL SELECT id FROM dead_letters", func(r *row) bool {
		there[r.text()] = true
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range answered {
		if !there[id] {
			t.Fatalf("job %s, one of %d that were answered, is lost", id, len(answered))
		}
	}
}

// startChild starts a process and gives its output. wait kills it.
func startChild(t *testing.T, path string) (*bufio.Scanner, func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return bufio.NewScanner(out), func() {
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // its state says that it was killed
		if said.Len() > 0 {
			t.Errorf("a process said: %s", said.String())
		}
	}
}
