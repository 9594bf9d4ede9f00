// Package model is a store in memory, as plain as can be: one lock, one map of
// rows a namespace, every count a loop, every bucket a fraction. It follows the
// prose of package store and shares no decision with package admit, so that the
// two can be compared. It is the reference of the suite's model test, and the
// store on which the suite itself is tested.
package model

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// World is what the handles on one store share.
type World struct {
	mu       sync.Mutex
	spaces   map[string]*space
	standard document // the installation's default quota
	tokens   map[string]*store.Token
	minted   bool // a token was ever stored
	audit    []record
	records  int            // ever written
	changes  []store.Change // the change number is the index + 1
	term     int64
	lease    int64  // leases given out
	poison   string // a task whose jobs cannot be inserted
	producers
	skew map[string]int64 // how far the kept count of pending jobs is off, by namespace
}

// New makes an empty world.
func New() *World {
	return &World{spaces: map[string]*space{}, tokens: map[string]*store.Token{}, producers: newProducers(), skew: map[string]int64{}}
}

// Open makes a handle with a clock of its own.
func (w *World) Open(now func() time.Time) *Store { return &Store{World: w, now: now} }

// Store is one handle.
type Store struct {
	*World
	now func() time.Time
}

var _ store.Store = (*Store)(nil)

// space is one namespace.
type space struct {
	rows      map[string]*row
	doc       document
	bucket    quota.Bucket
	overrides map[subject]store.Override
	settings  map[string]store.Setting
}

type record struct {
	store.Record
	seq int
}

type document struct {
	raw      []byte
	revision int64
	at       time.Time
	by       string
}

// row is a job in any state.
type row struct {
	job         job.Job
	fingerprint [16]byte
	cancel      bool // its cancellation was requested
	lease       string
	leaseEnds   time.Time
	settled     string      // the lease of the last settlement, which may be repeated,
	settledAs   job.Outcome // and its outcome
}

// clock reads the time as stores keep it.
func (s *Store) clock() time.Time { return s.now().UTC().Truncate(time.Microsecond) }

// space returns a namespace, made when it is missing.
func (w *World) space(ns string) *space {
	sp := w.spaces[ns]
	if sp == nil {
		sp = &space{rows: map[string]*row{}, settings: map[string]store.Setting{}, overrides: map[subject]store.Override{}}
		w.spaces[ns] = sp
	}
	return sp
}

// stamp is that of the quota in force.
func (w *World) stamp(ns string) store.Stamp {
	var st store.Stamp
	sp := w.spaces[ns]
	if sp != nil {
		st.Revision = sp.doc.revision
	}
	if sp == nil || sp.doc.raw == nil {
		st.Default = w.standard.revision
	}
	return st
}

// sorted returns the rows that match, by id.
func (sp *space) sorted(match func(*row) bool) []*row {
	var out []*row
	if sp == nil {
		return nil
	}
	for _, r := range sp.rows {
		if match(r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *row) int { return cmp.Compare(a.job.ID, b.job.ID) })
	return out
}

func (sp *space) count(match func(*row) bool) int64 {
	n := int64(0)
	if sp != nil {
		for _, r := range sp.rows {
			if match(r) {
				n++
			}
		}
	}
	return n
}

func in(states ...job.State) func(*row) bool {
	return func(r *row) bool { return slices.Contains(states, r.job.State) }
}

func (r *row) live() bool { return r.job.State == job.Pending || r.job.State == job.Running }

// bare is a job without payload and result.
func (r *row) bare() job.Job {
	j := r.job
	j.Payload, j.Result = nil, nil
	return j
}

// finish takes a row off the live ones.
func (r *row) finish(state job.State, now time.Time) {
	r.job.State, r.job.FinishedAt, r.job.Worker = state, now, ""
	r.lease, r.leaseEnds = "", time.Time{}
	if state != job.Dead {
		r.job.AutoRetries = 0
	}
}

// Job implements [store.Jobs].
func (s *Store) Job(_ context.Context, ns, id string) (*job.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp := s.spaces[ns]; sp != nil && sp.rows[id] != nil {
		j := sp.rows[id].job
		return &j, nil
	}
	return nil, fault.Missing("job")
}

// ListJobs implements [store.Jobs].
func (s *Store) ListJobs(_ context.Context, ns string, f store.Filter, after string, limit int) (store.Page[job.Job], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var page store.Page[job.Job]
	for _, r := range s.spaces[ns].sorted(func(r *row) bool { return r.job.ID > after && matches(f, &r.job) }) {
		if len(page.Items) == limit {
			page.Next = page.Items[limit-1].ID
			break
		}
		page.Items = append(page.Items, r.bare())
	}
	return page, nil
}

func matches(f store.Filter, j *job.Job) bool {
	dead := j.State == job.Dead
	return (f.State == "" || f.State == j.State) &&
		(f.Queue == "" || f.Queue == j.Queue) &&
		(f.Task == "" || f.Task == j.Task) &&
		(f.CreatedBefore.IsZero() || j.CreatedAt.Before(f.CreatedBefore)) &&
		(f.DiedBefore.IsZero() || dead && j.FinishedAt.Before(f.DiedBefore)) &&
		(f.Shed == nil || dead && j.Shed() == *f.Shed)
}

// Usage implements [store.Jobs].
func (s *Store) Usage(ctx context.Context, namespaces []string) ([]store.Usage, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]store.Usage, len(namespaces))
	for i, ns := range namespaces {
		out[i] = s.usage(ns)
		out[i].Pending += s.skew[ns]
	}
	return out, nil
}

func (s *Store) usage(ns string) store.Usage {
	sp := s.spaces[ns]
	u := store.Usage{
		Namespace: ns,
		Pending:   sp.count(in(job.Pending)),
		Running:   sp.count(in(job.Running)),
		Archived:  sp.count(in(job.Complete, job.Cancelled)),
		Dead:      sp.count(in(job.Dead)),
		Shed:      sp.count(func(r *row) bool { return r.job.State == job.Dead && r.job.Shed() }),
		Stamp:     s.stamp(ns),
		Now:       s.clock(),
	}
	if sp != nil {
		u.Bucket = sp.bucket
	}
	return u
}

// Recount implements [store.Upkeep].
func (s *Store) Recount(_ context.Context, ns string) (store.Usage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage(ns), nil
}

// Skew makes the kept count of a namespace's pending jobs wrong. Only Usage
// shows it: this store decides by its rows.
func (w *World) Skew(ns string, by int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skew[ns] += by
}

// Examine implements [store.Upkeep].
func (s *Store) Examine(_ context.Context, ns string, repair bool) ([]store.Finding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := s.skew[ns]
	if by == 0 {
		return nil, nil
	}
	if repair {
		delete(s.skew, ns)
	}
	pending := s.usage(ns).Pending
	return []store.Finding{{Defect: store.Miscounted, Where: "pending", Kept: pending + by, Counted: pending}}, nil
}

// Namespaces implements [store.Jobs].
func (s *Store) Namespaces(_ context.Context, after string, limit int) (store.Page[string], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var page store.Page[string]
	var names []string
	for ns := range s.spaces {
		if ns > after {
			names = append(names, ns)
		}
	}
	slices.Sort(names)
	if len(names) > limit {
		names = names[:limit]
		page.Next = names[limit-1]
	}
	page.Items = names
	return page, nil
}

// Ping implements [store.Upkeep].
func (s *Store) Ping(context.Context) error { return nil }

// Close implements [store.Upkeep].
func (s *Store) Close() error { return nil }
