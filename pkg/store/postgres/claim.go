package postgres

import (
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/store"
)

// claims are wants that are served in one transaction. The second want of a
// namespace must see what the first one took, so it comes in another round.
type claims struct {
	wants  []*store.Want
	grants []*store.Grant
	rounds []*round
	next   map[string]int // the round of a namespace's next want
}

func (c *claims) add(w *store.Want, g *store.Grant) {
	if c.next == nil {
		c.next = make(map[string]int)
	}
	n := c.next[w.Namespace]
	c.next[w.Namespace]++
	if n == len(c.rounds) {
		c.rounds = append(c.rounds, &round{})
	}
	c.rounds[n].add(len(c.wants), w)
	c.wants, c.grants = append(c.wants, w), append(c.grants, g)
}

// round is wants of different namespaces, column by column.
type round struct {
	at                   []int32 // among all wants
	ns, worker           []string
	most, bytes, running []int64
	lease                []int64 // in microseconds
	from, to             []int32 // in queues; from > to means all
	queues               []string

	stopped bool // some want came to a cap in the middle
}

// unlimited stands for no max_running.
const unlimited = int64(1<<63 - 1)

func (r *round) add(at int, w *store.Want) {
	limit := unlimited
	if w.MaxRunning != nil {
		limit = *w.MaxRunning
	}
	r.at, r.ns, r.worker = append(r.at, int32(at)), append(r.ns, w.Namespace), append(r.worker, w.Worker)
	r.most, r.bytes, r.running = append(r.most, int64(w.Max)), append(r.bytes, w.MaxBytes), append(r.running, limit)
	r.lease = append(r.lease, w.LeaseFor.Microseconds())
	r.addQueues(w.Queues)
}

func (r *round) addQueues(queues []string) {
	r.from = append(r.from, int32(len(r.queues)+1))
	for _, q := range queues {
		if storable(q) != q {
			q = "" // no queue can have that name, or this one
		}
		r.queues = append(r.queues, q)
	}
	r.to = append(r.to, int32(len(r.queues)))
}

// lanesOf are the lanes with pending jobs of w, a row with a namespace ns and the queues
// from first to last of the array.
func lanesOf(columns, array, where string) string {
	return `select ` + columns + ` from flexiq.lanes where ns = w.ns and w.first > w.last and ` + where + `
		union all select ` + columns + ` from flexiq.lanes
		where ns = w.ns and w.first <= w.last and queue = any((` + array + `)[w.first:w.last]) and ` + where
}

// A lane's front is exact, so each lane whose front is due has a due job, and the first n
// due jobs are in the first n lanes by rank and front. One more of each than there is room for
// costs nothing and is not taken.
var claimJobs = statement(`with ` + pickedJobs + `, taken as (
		update flexiq.jobs set ` + taking + `, lease_expires = $11 + least(p.lease_for, timeout / 1000), worker = p.worker
		from (select at, n, tid, lease_for, worker from picked where fits) p where jobs.ctid = p.tid
		returning p.at, p.n, lease, lease_expires, ` + takenColumns + payloadColumns + `
	)
	` + takenWithPayloads + ` order by t.at, t.n`)

// claimForOne is claimJobs for one want. It takes the picked rows in one scan,
// where the join opens the table again for each of them.
var claimForOne = statement(`with ` + pickedJobs + `, taken as (
		update flexiq.jobs set ` + taking + `, lease_expires = $11 + least(($7::bigint[])[1], timeout / 1000), worker = ($3::text[])[1]
		where ctid = any(array(select tid from picked where fits))
		returning ($1::int[])[1] as at, 0::bigint as n, lease, lease_expires, ` + takenColumns + payloadColumns + `
	)
	` + takenWithPayloads + ` order by t.rank, t.run_at, t.id`)

const (
	taking            = `state = 1, attempt = attempt + 1, started_at = $11, lease = gen_random_uuid(), cancelled = false`
	takenWithPayloads = `select t.*, b.body from taken t
		left join lateral (select body from flexiq.payloads where ns = t.ns and id = t.id and t.aside > 0 limit 1) b on true`
)

// pickedJobs are the jobs of each want, in order, and whether it may have them.
var pickedJobs = `picked as materialized (
		select w.*, p.tid, p.n, p.n <= w.room and (p.n = 1 or w.bytes = 0 or p.total <= w.bytes) as fits
		from (
			select w.*, least(w.most, greatest(w.max_running - coalesce(c.running, 0), 0)) as room
			from unnest($1::int[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::int[], $9::int[])
				w(at, ns, worker, most, bytes, max_running, lease_for, first, last)
			left join lateral (select running from flexiq.usage where ns = w.ns limit 1) c on true
		) w
		cross join lateral (
			select j.tid, row_number() over (order by l.rank, j.run_at, j.id) as n, sum(j.size) over (order by l.rank, j.run_at, j.id) as total
			from (
				select * from (` + lanesOf("queue, lane, rank, front_at, front_id", "$10::text[]", "front_at <= $11") + `) l
				order by rank, front_at, front_id limit w.room
			) l
			cross join lateral (
				select ctid as tid, run_at, id, greatest(aside, coalesce(octet_length(payload), 0)) as size from flexiq.jobs
				where ns = w.ns and queue = l.queue and lane = l.lane and rank = l.rank and state = 0
					and (run_at, id) >= (l.front_at, l.front_id) and run_at <= $11
				order by run_at, id limit w.room
			) j
			order by l.rank, j.run_at, j.id limit w.room
		) p
	)`

// takenColumns are liveColumns where worker alone would be ambiguous.
const takenColumns = commonColumns + `, state, 0::bigint as finished_at, jobs.worker, ''::text as dead_metadata, auto_retries`

// left tells what a round left: whether something is due, and when the next job will be.
var left = statement(`select w.at, coalesce(c.running, 0), coalesce(l.due, false), coalesce(l.next_at, 0)
	from unnest($1::int[], $2::text[], $3::int[], $4::int[]) w(at, ns, first, last)
	left join lateral (select running from flexiq.usage where ns = w.ns limit 1) c on true
	left join lateral (` + dueAndNext("$5::text[]", "$6") + `) l on true`)

// dueAndNext looks at the lanes of w.
func dueAndNext(array, now string) string {
	return `select bool_or(front_at <= ` + now + `) as due, min(case when front_at > ` + now + ` then front_at else (
			select j.run_at from flexiq.jobs j where j.ns = w.ns and j.queue = l.queue and j.lane = l.lane and j.rank = l.rank
				and j.state = 0 and j.run_at > ` + now + ` order by j.run_at, j.id limit 1) end) as next_at
		from (` + lanesOf("queue, lane, rank, front_at", array, "front_at is not null") + `) l`
}

// write queues the claims.
func (c *claims) write(b *batch, now time.Time) {
	for _, r := range c.rounds {
		claim := claimJobs
		if len(r.at) == 1 {
			claim = claimForOne
		}
		b.each(claim, func(scan func(...any) error) error {
			_, _, err := c.take(scan)
			return err
		}, r.at, r.ns, r.worker, r.most, r.bytes, r.running, r.lease, r.from, r.to, r.queues, micros(now))
		b.each(left, func(scan func(...any) error) error { return c.leave(scan) }, r.at, r.ns, r.from, r.to, r.queues, micros(now))
	}
}

// take scans a claimed job, with more after its lease.
func (c *claims) take(scan func(...any) error, more ...any) (at int32, n int64, err error) {
	var r jobRow
	var aside int32
	var expires int64
	var lease [16]byte
	var inline, body []byte
	dests := append(append([]any{&at, &n, &lease, &expires}, more...), r.dests(&aside, &inline, &body)...)
	if err := scan(dests...); err != nil {
		return 0, 0, err
	}
	j := r.take()
	if j.Payload = inline; aside > 0 {
		j.Payload = body
	}
	g := c.grants[at]
	g.Jobs = append(g.Jobs, store.Leased{Job: *j, Lease: uuid.UUID(lease).String(), ExpiresAt: instant(expires)})
	return at, n, nil
}

// leave scans what is left for a want.
func (c *claims) leave(scan func(...any) error) error {
	var at int32
	var running, next int64
	var due bool
	if err := scan(&at, &running, &due, &next); err != nil {
		return err
	}
	w, g := c.wants[at], c.grants[at]
	got := int64(len(g.Jobs))
	if w.MaxRunning != nil {
		room := max(0, *w.MaxRunning-(running-got))
		if due && room < int64(w.Max) && got == room {
			g.Held = []store.Hold{{What: store.HoldMaxRunning}}
		}
	}
	if got == 0 {
		g.NextAt = instant(next)
	}
	return nil
}
