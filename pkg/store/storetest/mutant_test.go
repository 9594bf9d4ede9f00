package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/store/internal/model"
	"flexiq/pkg/store/storetest"
)

// mutantVariable names the wrong store that TestMutant runs the suite on.
const mutantVariable = "FLEXIQ_STORETEST_MUTANT"

// mutants are stores with one mistake each, and the cases that must see it.
// Each is one that real queues have made.
var mutants = map[string]struct {
	wrap  func(*model.Store) store.Store
	cases []string
}{
	"counts, then inserts": {
		func(s *model.Store) store.Store { return &countThenInsert{Store: s} },
		[]string{
			"Admit/depth_is_exact_with_many_handles", "Admit/depth_is_exact_at_first_use",
		},
	},
	"trusts the caller's quota": {
		func(s *model.Store) store.Store { return &trusting{s} },
		[]string{"Admit/a_stale_stamp_writes_nothing", "Claim/a_stale_want", "Quotas/nobody_decides_by_an_old_one", "Model"},
	},
	"admits what fits of a batch": {
		func(s *model.Store) store.Store { return &partial{s} },
		[]string{"Admit/a_batch_is_one_unit", "Model"},
	},
	"takes zero for unlimited": {
		func(s *model.Store) store.Store { return &zeroUnlimited{s} },
		[]string{"Admit/zero_lets_nothing_in", "Claim/max_running_zero"},
	},
	"keeps the bucket in the process": {
		func(s *model.Store) store.Store { return &ownBucket{Store: s} },
		[]string{"Rate/another_handle_continues", "Rate/rate_is_exact_with_many_handles"},
	},
	"compares keys without case": {
		func(s *model.Store) store.Store { return &foldedKeys{s} },
		[]string{"Names/unique_and_debounce_keys_never_meet", "Model"},
	},
	"takes any lease": {
		func(s *model.Store) store.Store { return &anyLease{Store: s, last: map[string]string{}} },
		[]string{"Settle/a_stale_lease_has_no_effect"},
	},
	"spends an attempt on a release": {
		func(s *model.Store) store.Store { return &releaseFails{s} },
		[]string{"Settle/release_keeps_attempt_and_place", "Model"},
	},
	"counts apart from the rows": {
		func(s *model.Store) store.Store { return &drift{Store: s} },
		[]string{"Lease/rounds_of_lost_workers"},
	},
	"trims one too many": {
		func(s *model.Store) store.Store { return &trimsMore{s} },
		[]string{"Trim/to_exactly_the_ceiling", "Trim/ties_are_broken_by_id", "Model"},
	},
	"trims under any term": {
		func(s *model.Store) store.Store { return &unfenced{s} },
		[]string{"Trim/an_older_term_deletes_nothing"},
	},
	"replays and keeps the dead letter": {
		func(s *model.Store) store.Store { return &replaysTwice{s} },
		[]string{"Letters/each_moves_once_with_many_handles", "Model"},
	},
	"spends a token on a held key": {
		func(s *model.Store) store.Store { return &replaySpends{s} },
		[]string{"Letters/a_held_unique_key_stays_and_spends_nothing"},
	},
	"skips changes beyond a page": {
		func(s *model.Store) store.Store { return &skipsChanges{s} },
		[]string{"Quotas/changes,_each_object_once"},
	},
	"ignores a task's cap": {
		func(s *model.Store) store.Store { return &ignoresTasks{s} },
		[]string{"Hold/a_capped_task", "Hold/never_over_a_task's_cap_with_many_handles", "Model"},
	},
	"looks at a queue's cap before the claim": {
		func(s *model.Store) store.Store { return &looksBefore{s} },
		[]string{"Hold/never_over_a_queue's_cap_with_many_handles"},
	},
	"looks at max_running before the claim": {
		func(s *model.Store) store.Store { return &runningBefore{s} },
		[]string{"Claim/never_over_max_running_with_many_handles"},
	},
	"uses a signature up before the call": {
		func(s *model.Store) store.Store { return &signsBefore{Store: s, used: map[string]bool{}} },
		[]string{"Triggers/a_refused_call_uses_no_signature_up", "Triggers/a_signature_in_a_group"},
	},
	"looks at a signature before the call": {
		func(s *model.Store) store.Store { return &looksAtSignature{Store: s, used: map[string]bool{}} },
		[]string{"Triggers/a_signature_is_used_once_from_many_handles"},
	},
	"finds jobs of any namespace": {
		func(s *model.Store) store.Store { return &crossNamespace{s} },
		[]string{"List/a_missing_job"},
	},
}

// TestSuiteCatches runs the suite on each wrong store, in a process of its own,
// and wants each of the named cases to fail.
func TestSuiteCatches(t *testing.T) {
	t.Parallel()
	for name, m := range mutants {
		for _, c := range m.cases {
			t.Run(name+"/"+c, func(t *testing.T) {
				t.Parallel()
				caught(t, name, c)
			})
		}
	}
}

// TestSuiteCatchesCountThenInsert names the mistake that matters most: a check
// and an insert that are two steps.
func TestSuiteCatchesCountThenInsert(t *testing.T) {
	t.Parallel()
	caught(t, "counts, then inserts", "Admit/depth_is_exact_with_many_handles")
}

func caught(t *testing.T, mutant, c string) {
	t.Helper()
	pattern := "^TestMutant$"
	for part := range strings.SplitSeq(c, "/") {
		pattern += "/^" + part + "$"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run="+pattern, "-test.v",
		"-rapid.seed=1", "-rapid.checks=300", "-rapid.shrinktime=1ms", "-rapid.nofailfile")
	cmd.Env = append(os.Environ(), mutantVariable+"="+mutant)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !bytes.Contains(out, []byte("--- FAIL: TestMutant/"+c)) {
		t.Errorf("the case passes on a store that %s: %v\n%s", mutant, err, out)
	}
}

// TestMutant runs the suite on the wrong store that the environment names.
func TestMutant(t *testing.T) {
	m, ok := mutants[os.Getenv(mutantVariable)]
	if !ok {
		t.Skip("only TestSuiteCatches runs the suite on a wrong store")
	}
	b := memory
	b.Open = func(_ context.Context, address string, now func() time.Time) (store.Store, error) {
		if now == nil {
			now = time.Now
		}
		return m.wrap(world(address).Open(now)), nil
	}
	storetest.Run(t, b)
}

// countThenInsert looks at the depth, and then inserts without looking again.
type countThenInsert struct{ *model.Store }

func (s *countThenInsert) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	var out []store.Outcome
	for _, c := range calls {
		u, err := s.Usage(ctx, []string{c.Namespace})
		if err != nil {
			return nil, err
		}
		if q := c.Quota; q.MaxPending != nil && u[0].Pending+int64(len(c.Jobs)) <= *q.MaxPending {
			time.Sleep(time.Millisecond) // as a round trip would take
			c.Quota.MaxPending = nil
		}
		o, err := s.Store.Admit(ctx, []store.Call{c})
		if err != nil {
			return nil, err
		}
		out = append(out, o...)
	}
	return out, nil
}

// trusting takes every stamp for the one in force.
type trusting struct{ *model.Store }

func (s *trusting) stamp(ctx context.Context, ns string) store.Stamp {
	docs, _ := s.Quotas(ctx, []string{ns}) // in memory it never fails
	return docs[0].Stamp
}

func (s *trusting) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	for i := range calls {
		calls[i].Stamp = s.stamp(ctx, calls[i].Namespace)
	}
	return s.Store.Admit(ctx, calls)
}

func (s *trusting) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	for i := range wants {
		wants[i].Stamp = s.stamp(ctx, wants[i].Namespace)
	}
	return s.Store.Turn(ctx, settlements, wants)
}

// partial lets in as much of a refused batch as there is room for.
type partial struct{ *model.Store }

func (s *partial) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	out, err := s.Store.Admit(ctx, calls)
	for i := range out {
		if !fault.Is(out[i].Err, fault.QueueFull) {
			continue
		}
		for _, spec := range calls[i].Jobs {
			one := calls[i]
			one.Jobs = []job.Spec{spec}
			if _, err := s.Store.Admit(ctx, []store.Call{one}); err != nil {
				return nil, err
			}
		}
	}
	return out, err
}

// zeroUnlimited takes a limit of zero for one that is not set.
type zeroUnlimited struct{ *model.Store }

func (s *zeroUnlimited) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	for i := range calls {
		if n := calls[i].Quota.MaxPending; n != nil && *n == 0 {
			calls[i].Quota.MaxPending = nil
		}
	}
	return s.Store.Admit(ctx, calls)
}

func (s *zeroUnlimited) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	for i := range wants {
		if n := wants[i].MaxRunning; n != nil && *n == 0 {
			wants[i].MaxRunning = nil
		}
	}
	return s.Store.Turn(ctx, settlements, wants)
}

// ownBucket is a limiter in the memory of each process.
type ownBucket struct {
	*model.Store
	mu      sync.Mutex
	buckets map[string]quota.Bucket
}

func (s *ownBucket) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]store.Outcome, len(calls))
	for i, c := range calls {
		u, err := s.Usage(ctx, []string{c.Namespace})
		if err != nil {
			return nil, err
		}
		v := c.Quota.Decide(quota.Usage{Bucket: s.buckets[c.Namespace]}, quota.Ask{Namespace: c.Namespace, Jobs: int64(len(c.Jobs))}, u[0].Now)
		if v.Decision == quota.Refuse {
			out[i] = store.Outcome{Err: v.Fault}
			continue
		}
		if s.buckets == nil {
			s.buckets = map[string]quota.Bucket{}
		}
		s.buckets[c.Namespace] = v.Bucket
		c.Quota.EnqueueRate = nil
		o, err := s.Store.Admit(ctx, []store.Call{c})
		if err != nil {
			return nil, err
		}
		out[i] = o[0]
	}
	return out, nil
}

// foldedKeys is a database whose collation ignores case.
type foldedKeys struct{ *model.Store }

func (s *foldedKeys) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	for i := range calls {
		calls[i].Jobs = slices.Clone(calls[i].Jobs)
		for k := range calls[i].Jobs {
			calls[i].Jobs[k].UniqueKey = strings.ToLower(calls[i].Jobs[k].UniqueKey)
		}
	}
	return s.Store.Admit(ctx, calls)
}

// anyLease settles a job under whatever lease is shown.
type anyLease struct {
	*model.Store
	mu   sync.Mutex
	last map[string]string
}

func (s *anyLease) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range settlements {
		settlements[i].Lease = s.last[settlements[i].JobID]
	}
	settled, grants, err := s.Store.Turn(ctx, settlements, wants)
	for _, g := range grants {
		for _, l := range g.Jobs {
			s.last[l.Job.ID] = l.Lease
		}
	}
	return settled, grants, err
}

// releaseFails treats a release as a failure that is tried again at once.
type releaseFails struct{ *model.Store }

func (s *releaseFails) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	for i := range settlements {
		if settlements[i].Outcome == job.Released {
			settlements[i].Outcome, settlements[i].RetryAfter = job.Failed, new(time.Duration(0))
		}
	}
	return s.Store.Turn(ctx, settlements, wants)
}

// drift keeps a counter of its own, which forgets jobs that come back from a
// lost worker.
type drift struct {
	*model.Store
	mu   sync.Mutex
	lost int64
}

func (s *drift) Expire(ctx context.Context, limit int) ([]store.Ended, error) {
	ended, err := s.Store.Expire(ctx, limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost += int64(len(ended))
	return ended, err
}

func (s *drift) Usage(ctx context.Context, namespaces []string) ([]store.Usage, error) {
	u, err := s.Store.Usage(ctx, namespaces)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range u {
		u[i].Pending -= s.lost
	}
	return u, err
}

// trimsMore is off by one.
type trimsMore struct{ *model.Store }

func (s *trimsMore) Trim(ctx context.Context, t store.Trim) (store.Trimmed, error) {
	if t.Keep != nil && *t.Keep > 0 {
		t.Keep = new(*t.Keep - 1)
	}
	return s.Store.Trim(ctx, t)
}

// unfenced deletes for a leader of any term.
type unfenced struct{ *model.Store }

func (s *unfenced) Trim(ctx context.Context, t store.Trim) (store.Trimmed, error) {
	t.Term = 1 << 40
	return s.Store.Trim(ctx, t)
}

// skipsChanges gives the newest change number with every page.
type skipsChanges struct{ *model.Store }

func (s *skipsChanges) Changes(ctx context.Context, since int64, limit int) (store.Changes, error) {
	c, err := s.Store.Changes(ctx, since, limit)
	if err != nil {
		return c, err
	}
	all, err := s.Store.Changes(ctx, since, 1_000_000)
	c.Latest = all.Latest
	return c, err
}

// crossNamespace looks a job up by its id alone.
type crossNamespace struct{ *model.Store }

func (s *crossNamespace) Job(ctx context.Context, ns, id string) (*job.Job, error) {
	page, err := s.Namespaces(ctx, "", 1000)
	if err != nil {
		return nil, err
	}
	for _, other := range append([]string{ns}, page.Items...) {
		if j, err := s.Store.Job(ctx, other, id); err == nil {
			return j, nil
		}
	}
	return nil, fault.Missing("job")
}

// replaysTwice moves a dead letter and leaves it where it was.
type replaysTwice struct{ *model.Store }

func (s *replaysTwice) Replay(ctx context.Context, r store.Replay) ([]store.Replayed, error) {
	var kept []*job.Job
	for _, l := range r.Letters {
		if j, err := s.Job(ctx, r.Namespace, l.ID); err == nil && j.State == job.Dead {
			kept = append(kept, j)
		}
	}
	out, err := s.Store.Replay(ctx, r)
	for _, j := range kept {
		s.Bury(j)
	}
	return out, err
}

// replaySpends takes a token for a dead letter that stays.
type replaySpends struct{ *model.Store }

func (s *replaySpends) Replay(ctx context.Context, r store.Replay) ([]store.Replayed, error) {
	out, err := s.Store.Replay(ctx, r)
	for _, o := range out {
		if fault.Is(o.Err, fault.UniqueKeyHeld) && r.Quota.EnqueueRate != nil {
			s.Spend(r.Namespace)
		}
	}
	return out, err
}

// ignoresTasks keeps caps of tasks and does not obey them.
type ignoresTasks struct{ *model.Store }

func (s *ignoresTasks) PutOverride(ctx context.Context, o store.Override, audit store.Record) error {
	if o.Kind == store.OverrideTask {
		o.MaxConcurrent = nil
	}
	return s.Store.PutOverride(ctx, o, audit)
}

// runningBefore compares with max_running in a step before the claim.
type runningBefore struct{ *model.Store }

func (s *runningBefore) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	settled, _, err := s.Store.Turn(ctx, settlements, nil)
	if err != nil {
		return nil, nil, err
	}
	grants := make([]store.Grant, len(wants))
	for i, w := range wants {
		if w.MaxRunning != nil {
			u, err := s.Usage(ctx, []string{w.Namespace})
			if err != nil {
				return nil, nil, err
			}
			time.Sleep(20 * time.Millisecond) // as a slow round trip would take
			w.Max = min(w.Max, int(*w.MaxRunning-u[0].Running))
			w.MaxRunning = nil
		}
		if w.Max > 0 {
			_, one, err := s.Store.Turn(ctx, nil, []store.Want{w})
			if err != nil {
				return nil, nil, err
			}
			grants[i] = one[0]
		}
	}
	return settled, grants, nil
}

// looksBefore compares with the caps of queues in a step before the claim.
type looksBefore struct{ *model.Store }

// queueCaps are those of each store in memory, which the store does not see.
var queueCaps sync.Map

func (s *looksBefore) PutOverride(ctx context.Context, o store.Override, audit store.Record) error {
	if o.Kind == store.OverrideQueue && o.MaxConcurrent != nil {
		queueCaps.Store(s.World, *o.MaxConcurrent)
		o.MaxConcurrent = nil
	}
	return s.Store.PutOverride(ctx, o, audit)
}

func (s *looksBefore) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	settled, _, err := s.Store.Turn(ctx, settlements, nil)
	if err != nil {
		return nil, nil, err
	}
	grants := make([]store.Grant, len(wants))
	for i, w := range wants {
		if limit, capped := queueCaps.Load(s.World); capped {
			u, err := s.Usage(ctx, []string{w.Namespace})
			if err != nil {
				return nil, nil, err
			}
			time.Sleep(20 * time.Millisecond) // as a slow round trip would take
			w.Max = min(w.Max, int(limit.(int64)-u[0].Running))
		}
		if w.Max > 0 {
			_, one, err := s.Store.Turn(ctx, nil, []store.Want{w})
			if err != nil {
				return nil, nil, err
			}
			grants[i] = one[0]
		}
	}
	return settled, grants, nil
}

// signsBefore uses signatures up in a step of its own, and then decides.
type signsBefore struct {
	*model.Store
	mu   sync.Mutex
	used map[string]bool
}

func (s *signsBefore) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	out := make([]store.Outcome, len(calls))
	for i, c := range calls {
		if c.Signature != nil {
			key := c.Namespace + string(c.Signature.Sum[:])
			s.mu.Lock()
			used := s.used[key]
			s.used[key] = true
			s.mu.Unlock()
			if c.Signature = nil; used {
				out[i].Err = store.ErrSignature
				continue
			}
		}
		one, err := s.Store.Admit(ctx, []store.Call{c})
		if err != nil {
			return nil, err
		}
		out[i] = one[0]
	}
	return out, nil
}

// looksAtSignature looks first whether a signature was used, and notes it after
// the call.
type looksAtSignature struct {
	*model.Store
	mu   sync.Mutex
	used map[string]bool
}

func (s *looksAtSignature) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	out := make([]store.Outcome, len(calls))
	for i, c := range calls {
		key := ""
		if c.Signature != nil {
			key = c.Namespace + string(c.Signature.Sum[:])
			c.Signature = nil
			s.mu.Lock()
			used := s.used[key]
			s.mu.Unlock()
			if used {
				out[i].Err = store.ErrSignature
				continue
			}
			time.Sleep(time.Millisecond) // for another one to look
		}
		one, err := s.Store.Admit(ctx, []store.Call{c})
		if err != nil {
			return nil, err
		}
		if out[i] = one[0]; key != "" && out[i].Err == nil {
			s.mu.Lock()
			s.used[key] = true
			s.mu.Unlock()
		}
	}
	return out, nil
}
