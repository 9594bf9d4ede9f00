package sqlite

import (
	"cmp"
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// lane is one row of lanes in a turn: its due jobs in order, read a few at a time.
type lane struct {
	queue, label string
	rank         int64
	limits       [2]*limit    // that hold all of its jobs
	due          []*candidate // read and not yet taken
	dry          bool         // no due job beyond those
	next         time.Time    // when dry: the first later run_at, zero when none
	lastAt       int64        // where reading goes on: after this run_at and id
	lastID       string
}

// candidate is a due job.
type candidate struct {
	row   int64 // its rowid, which holds for the transaction
	job   *job.Job
	aside int64 // bytes of a payload that was not read yet
}

func (c *candidate) size() int64 { return max(c.aside, int64(len(c.job.Payload))) }

func (c *candidate) before(o *candidate) bool {
	return cmp.Or(c.job.RunAt.Compare(o.job.RunAt), strings.Compare(c.job.ID, o.job.ID)) < 0
}

// grant serves one want.
func (d *dispatch) grant(w *store.Want, out *store.Grant) error {
	f, err := d.floor(w.Namespace)
	switch {
	case err != nil:
		return err
	case f.stamp != w.Stamp:
		out.Err = store.ErrStale
		return nil
	case f.id == 0:
		return nil
	}
	if err := d.prepare(f); err != nil {
		return err
	}
	lanes, err := d.lanesOf(f, w.Queues)
	if err != nil {
		return err
	}
	room, capped := int64(w.Max), false
	if w.MaxRunning != nil && *w.MaxRunning-f.running < room {
		room, capped = max(0, *w.MaxRunning-f.running), true
	}
	var bytes int64
	passed := make(holds)
	for int64(len(out.Jobs)) < room {
		l, err := d.front(f, lanes, room-int64(len(out.Jobs)), passed)
		if err != nil {
			return err
		}
		if l == nil {
			break
		}
		c := l.due[0]
		if bytes += c.size(); w.MaxBytes > 0 && bytes > w.MaxBytes && len(out.Jobs) > 0 {
			return nil
		}
		leased, err := d.claim(f, l, c, w)
		if err != nil {
			return err
		}
		l.due = l.due[1:]
		f.running++
		out.Jobs = append(out.Jobs, leased)
	}
	if len(out.Jobs) < w.Max {
		if err := d.held(f, lanes, capped && int64(len(out.Jobs)) == room, passed); err != nil {
			return err
		}
		out.Held = passed.sorted()
	}
	if len(out.Jobs) == 0 {
		out.NextAt, err = d.nextAt(f, lanes)
	}
	return err
}

// prepare reads what holds a namespace, once a turn and after the settlements.
// While its jobs move between lanes, it moves some.
func (d *dispatch) prepare(f *floor) (err error) {
	if f.limits != nil {
		return nil
	}
	if f.relabelling {
		if err := d.relabel(f.space); err != nil {
			return err
		}
	}
	f.limits = &limits{}
	*f.limits, err = d.tx.limits(f.space)
	return err
}

const (
	lanesOfSpace = `SELECT queue, lane, rank FROM lanes WHERE ns = ? AND pending > 0`
	lanesOfQueue = `SELECT queue, lane, rank FROM lanes WHERE ns = ? AND queue = ? AND pending > 0`
)

// lanesOf lists the lanes of some queues, or of all, that have pending jobs, in
// the order of their ranks.
func (d *dispatch) lanesOf(f *floor, queues []string) ([]*lane, error) {
	if len(queues) == 0 && !f.all {
		if err := d.readLanes(f, lanesOfSpace, f.id); err != nil {
			return nil, err
		}
		f.all = true
	}
	var out []*lane
	if len(queues) == 0 {
		for _, ls := range f.lanes {
			out = append(out, ls...)
		}
	}
	for i, q := range queues {
		if slices.Contains(queues[:i], q) {
			continue
		}
		if _, read := f.lanes[q]; !read && !f.all {
			f.lanes[q] = nil
			if err := d.readLanes(f, lanesOfQueue, f.id, q); err != nil {
				return nil, err
			}
		}
		out = append(out, f.lanes[q]...)
	}
	slices.SortFunc(out, func(a, b *lane) int { return cmp.Compare(a.rank, b.rank) })
	return out, nil
}

// readLanes reads lanes into f, but none twice.
func (d *dispatch) readLanes(f *floor, query string, args ...any) error {
	fresh := make(map[string][]*lane)
	err := d.each(query, func(r *row) bool {
		l := &lane{queue: r.text(), label: r.text(), rank: r.int(), lastAt: -1}
		l.limits = f.limits.of(l.queue, l.label)
		fresh[l.queue] = append(fresh[l.queue], l)
		return true
	}, args...)
	for q, ls := range fresh {
		if f.lanes[q] == nil {
			f.lanes[q] = ls
		}
	}
	return err
}

// front finds the lane whose first due job is next, nil when no job may run.
// Lanes are in the order of their ranks. want is how many jobs are asked for.
// What it passes by job by job it adds to passed; the limits of whole lanes it does not.
func (d *dispatch) front(f *floor, lanes []*lane, want int64, passed holds) (*lane, error) {
	for from := 0; from < len(lanes); {
		to := from
		for to < len(lanes) && lanes[to].rank == lanes[from].rank {
			to++
		}
		var first *lane
		for _, l := range lanes[from:to] {
			room := least(l.limits)
			if room == 0 {
				continue
			}
			if err := d.ready(f, l, min(want/int64(to-from)+1, room), passed); err != nil {
				return nil, err
			}
			if len(l.due) > 0 && (first == nil || l.due[0].before(first.due[0])) {
				first = l
			}
		}
		if first != nil {
			return first, nil
		}
		from = to
	}
	return nil, nil
}

// mostPassed bounds the jobs that a claim passes by one at a time.
const mostPassed = 2 * relabelBatch

// ready makes a due job that may run the first of those that were read of a
// lane, if there is one. Only while jobs move between lanes are there, in the
// common lane of a queue, such as may not.
func (d *dispatch) ready(f *floor, l *lane, want int64, passed holds) error {
	for n := 0; n < mostPassed; n++ {
		if len(l.due) == 0 && !l.dry {
			if err := d.fill(f, l, want); err != nil {
				return err
			}
		}
		if len(l.due) == 0 || !f.relabelling || l.label != "" {
			return nil
		}
		own := f.limits.tasks[l.due[0].job.Task]
		if own == nil || own.room > 0 {
			return nil
		}
		passed[own.hold] = true
		l.due = l.due[1:]
	}
	return nil
}

// holds are those that kept due jobs back.
type holds map[store.Hold]bool

func (h holds) sorted() []store.Hold {
	return slices.SortedFunc(maps.Keys(h), func(a, b store.Hold) int {
		return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Name, b.Name))
	})
}

// held adds what keeps the due jobs that are left in lanes.
func (d *dispatch) held(f *floor, lanes []*lane, capped bool, into holds) error {
	for _, l := range lanes {
		var own []store.Hold
		for _, lim := range l.limits {
			if lim != nil && lim.room == 0 {
				own = append(own, lim.hold)
			}
		}
		if own == nil && capped {
			own = []store.Hold{{What: store.HoldMaxRunning}}
		}
		if !slices.ContainsFunc(own, func(h store.Hold) bool { return !into[h] }) {
			continue
		}
		if len(l.due) == 0 && !l.dry {
			if err := d.fill(f, l, 1); err != nil {
				return err
			}
		}
		if len(l.due) > 0 {
			for _, h := range own {
				into[h] = true
			}
		}
	}
	return nil
}

const (
	mostAtOnce = 128 // candidates read at a time from one lane
	selectDue  = `SELECT ` + liveColumns + payloadColumns + `, rowid FROM jobs INDEXED BY jobs_pending
		WHERE ns = ? AND queue = ? AND lane = ? AND rank = ? AND state = 0 AND (run_at, id) > (?, ?)
		ORDER BY run_at, id LIMIT ?`
	selectNext = `SELECT run_at FROM jobs INDEXED BY jobs_pending
		WHERE ns = ? AND queue = ? AND lane = ? AND rank = ? AND state = 0 AND run_at > ? ORDER BY run_at LIMIT 1`
)

// fill reads the next due jobs of a lane.
func (d *dispatch) fill(f *floor, l *lane, n int64) error {
	n = min(n, mostAtOnce)
	read := int64(0)
	err := d.each(selectDue, func(r *row) bool {
		j, _ := r.job(f.name)
		if j.RunAt.After(d.now) {
			l.dry, l.next = true, j.RunAt
			return false
		}
		c := &candidate{job: j, aside: r.int()}
		j.Payload, c.row = r.bytes(), r.int()
		l.due = append(l.due, c)
		l.lastAt, l.lastID = micros(j.RunAt), j.ID
		read++
		return true
	}, f.id, l.queue, l.label, l.rank, l.lastAt, l.lastID, n)
	if read < n {
		l.dry = true
	}
	return err
}

// nextAt is the earliest run_at in the future among lanes, zero when none waits
// for its time.
func (d *dispatch) nextAt(f *floor, lanes []*lane) (next time.Time, err error) {
	for _, l := range lanes {
		if least(l.limits) == 0 {
			continue
		}
		at := l.next
		if !l.dry {
			_, err = d.one(selectNext, func(r *row) { at = r.time() }, f.id, l.queue, l.label, l.rank, d.now)
			if err != nil {
				return time.Time{}, err
			}
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next, nil
}

const (
	claimWith = `UPDATE OR ROLLBACK jobs SET state = 1, attempt = attempt + 1, started_at = ?, lease = ?, lease_expires = ?, worker = ?`
	claimJob  = claimWith + ` WHERE rowid = ?`
	claimInto = claimWith + `, lane = ? WHERE rowid = ?` // another lane than it waited in
)

// claim makes a due job running, counted by the limits that are its own.
func (d *dispatch) claim(f *floor, l *lane, c *candidate, w *store.Want) (store.Leased, error) {
	if c.aside > 0 {
		body, err := d.payload(f.id, c.job.ID)
		if err != nil {
			return store.Leased{}, err
		}
		c.job.Payload = body
	}
	j := *c.job
	j.State, j.Attempt, j.StartedAt, j.Worker = job.Running, j.Attempt+1, d.now, w.Worker
	leased := store.Leased{Job: j, Lease: rand.Text(), ExpiresAt: d.now.Add(min(w.LeaseFor, j.Timeout)).Truncate(time.Microsecond)}
	own := l.limits
	query, args := claimJob, []any{d.now, leased.Lease, leased.ExpiresAt, null(w.Worker), c.row}
	if task := f.limits.tasks[j.Task]; task != nil && l.label == "" { // while jobs move between lanes
		own = f.limits.of(j.Queue, j.Task)
		query, args = claimInto, append(args[:4:4], j.Task, c.row)
	}
	for _, lim := range own {
		if lim != nil {
			lim.room--
		}
	}
	return leased, d.exec(query, args...)
}
