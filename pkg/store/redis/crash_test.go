package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// TestKilledServer kills the server under load. With appendfsync always every
// acknowledged job is there afterwards, in one state, and every index is right.
func TestKilledServer(t *testing.T) {
	server := testkit.StartRedis(t, "appendonly", "yes", "appendfsync", "always")
	s := openAt(t, server.URL(), Options{Timeout: testkit.Patience})
	var mu sync.Mutex
	acknowledged := map[string]string{} // namespace by id
	for round := range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		var workers sync.WaitGroup
		enough := make(chan struct{})
		var once sync.Once
		for range 4 {
			workers.Go(func() {
				var running []store.Settlement
				for n := 0; ctx.Err() == nil; n++ {
					ids, err := step(ctx, s, &running)
					mu.Lock()
					for id, ns := range ids {
						acknowledged[id] = ns
					}
					if len(acknowledged) > 300*(round+1) {
						once.Do(func() { close(enough) })
					}
					mu.Unlock()
					if err != nil {
						if !fault.Is(err, fault.StorageUnavailable) && ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		<-enough
		if err := server.Crash(); err != nil {
			t.Fatal(err)
		}
		cancel()
		workers.Wait()
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		consistent(t, s)
	}
	for id, ns := range acknowledged {
		if _, err := s.Job(t.Context(), ns, id); err != nil {
			t.Fatalf("a job, one of %d that were acknowledged, is lost: %v", len(acknowledged), err)
		}
	}
}

// step does one thing at random that writes jobs. It returns the ids that were
// acknowledged.
func step(ctx context.Context, s *Store, running *[]store.Settlement) (map[string]string, error) {
	ns := []string{"a", "b", "c"}[rand.N(3)]
	switch rand.N(7) {
	case 0, 1, 2:
		return stepAdmit(ctx, s, ns)
	case 3, 4:
		settle := *running
		*running = nil
		_, grants, err := s.Turn(ctx, settle, []store.Want{want(ns, 1+rand.N(20))})
		if err != nil {
			return nil, err
		}
		for _, l := range grants[0].Jobs {
			if o := append(job.Outcomes, "none")[rand.N(5)]; o.Valid() {
				*running = append(*running, store.Settlement{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Outcome: o, Error: "boom"})
			}
		}
		return nil, grants[0].Err
	case 5:
		_, err := s.Expire(ctx, 50)
		return nil, err
	}
	_, err := s.Cancel(ctx, ns, store.Selection{Filter: store.Filter{Queue: "q"}}, 3)
	return nil, err
}

func stepAdmit(ctx context.Context, s *Store, ns string) (map[string]string, error) {
	call := store.Call{Namespace: ns, Origin: job.OriginEnqueue}
	for range 1 + rand.N(20) {
		sp := job.Spec{ID: uuid.Must(uuid.NewV7()).String(), Task: "t", Queue: []string{"p", "q"}[rand.N(2)], Priority: rand.Int32N(3),
			Payload: make([]byte, rand.N(2)*4000), Form: job.Bytes, MaxAttempts: 2, Timeout: time.Second}
		switch rand.N(6) {
		case 0:
			sp.UniqueKey = fmt.Sprint(rand.N(10))
		case 1:
			sp.Delay = time.Second
		}
		if err := sp.Normalize("job", job.LargestMaxPayload); err != nil {
			return nil, err
		}
		call.Jobs = append(call.Jobs, sp)
	}
	out, err := s.Admit(ctx, []store.Call{call})
	if err != nil {
		return nil, err
	}
	ids := map[string]string{}
	for _, r := range out[0].Results {
		if r.Job != nil {
			ids[r.Job.ID] = ns
		}
	}
	return ids, out[0].Err
}

// TestRandomWork does the same without a crash, and with the debounce and
// history that the crash leaves out.
func TestRandomWork(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.Now})
	term, err := s.NewTerm(t.Context(), "leader")
	if err != nil {
		t.Fatal(err)
	}
	var running []store.Settlement
	for i := range 300 {
		c.now = c.now.Add(time.Duration(rand.N(2000)) * time.Millisecond)
		if _, err := step(t.Context(), s, &running); err != nil {
			t.Fatal(err)
		}
		if i%5 == 0 {
			d := spec(t, func(sp *job.Spec) {
				sp.Debounce = job.Debounce{Key: fmt.Sprint(rand.N(3)), Window: time.Second}
				sp.Payload, sp.Form = make([]byte, rand.N(2)*3000), job.Bytes
			})
			enqueue(t, s, store.Call{Namespace: "a", Jobs: []job.Spec{d}})
		}
		if i%10 == 0 {
			table := []store.Table{store.Archive, store.DeadLetters}[rand.N(2)]
			if _, err := s.Trim(t.Context(), store.Trim{Term: term, Namespace: "b", Table: table, Keep: new(int64(3)), Limit: 50}); err != nil {
				t.Fatal(err)
			}
		}
		if i%50 == 0 {
			consistent(t, s)
		}
	}
	consistent(t, s)
}
