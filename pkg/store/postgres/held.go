package postgres

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"flexiq/pkg/store"
)

// heldClaims are claims in namespaces where overrides hold queues or tasks.
//
// One statement claims jobs in order up to the first that a cap would forbid
// which others of the same grant have filled. Then that cap is full, and another
// statement goes on past all that it holds. So each takes what one by one would
// have taken, and there are at most as many as caps.
type heldClaims struct {
	claims
	turn   *dispatch
	spaces []*space // of the wants
	asked  map[string]int64
}

func (h *heldClaims) add(sp *space, w *store.Want, g *store.Grant) {
	if h.asked == nil {
		h.asked = make(map[string]int64)
	}
	h.asked[sp.name] += int64(w.Max)
	h.claims.add(w, g)
	h.spaces = append(h.spaces, sp)
}

// close reports whether a cap may be filled in the middle of a grant: then it is
// not known before how many statements serve it.
func (h *heldClaims) close() bool {
	settled := make(map[string]int64)
	for i := range h.turn.settlements {
		settled[h.turn.settlements[i].Namespace]++
	}
	for _, sp := range h.spaces {
		if sp.relabelling || slices.ContainsFunc(sp.rooms, func(room int64) bool {
			return room+settled[sp.name] > 0 && room < h.asked[sp.name]
		}) {
			return true
		}
	}
	return false
}

// serve sends what is written first, claims, and commits.
func (h *heldClaims) serve(ctx context.Context, t *tx, first func(*batch), now time.Time) error {
	if len(h.wants) == 0 {
		return t.commit(ctx, first)
	}
	if !h.close() {
		return t.commit(ctx, func(b *batch) {
			first(b)
			for _, r := range h.rounds {
				h.queue(b, r, now)
			}
		})
	}
	if err := t.read(ctx, first); err != nil {
		return err
	}
	for i, sp := range h.spaces {
		if !sp.relabelling || slices.Index(h.spaces, sp) != i {
			continue
		}
		var err error
		if sp.relabelling, err = t.relabel(ctx, sp.name); err != nil {
			return err
		}
	}
	for _, r := range h.rounds {
		for again := true; again; again = r.stopped {
			r.stopped = false
			if err := t.read(ctx, func(b *batch) { h.queue(b, r, now) }); err != nil {
				return err
			}
		}
	}
	return t.commit(ctx, func(*batch) {})
}

// queue queues one claim of a round's wants for what they did not get yet, and
// the look at what it leaves.
func (h *heldClaims) queue(b *batch, r *round, now time.Time) {
	most, bytes, got := make([]int64, len(r.at)), make([]int64, len(r.at)), make([]bool, len(r.at))
	relabelling := make([]bool, len(r.at))
	for i, at := range r.at {
		most[i], bytes[i] = r.most[i]-int64(len(h.grants[at].Jobs)), r.bytes[i]
		got[i], relabelling[i] = len(h.grants[at].Jobs) > 0, h.spaces[at].relabelling
		if bytes[i] > 0 {
			for _, l := range h.grants[at].Jobs {
				bytes[i] -= int64(len(l.Job.Payload))
			}
			bytes[i]++ // a bound that the sum must stay below: 0 is none
			most[i] *= min(1, max(0, bytes[i]))
		}
	}
	b.each(claimHeld, func(scan func(...any) error) error {
		var stop int64
		_, n, err := h.take(scan, &stop)
		// Everything before the cap was taken, so bytes did not end it earlier.
		r.stopped = r.stopped || stop > 0 && n == stop-1
		return err
	}, r.at, r.ns, r.worker, most, bytes, r.running, r.lease, r.from, r.to, r.queues, micros(now), got, relabelling)
	b.each(leftHeld, h.leave, r.at, r.ns, r.from, r.to, r.queues, micros(now))
}

// heldLanes are the lanes of w, with what is left of the caps that hold them.
func heldLanes(columns, array, where string) string {
	return `select l.*, q.room as queue_room, t.room as task_room, q.hold as queue_hold, t.hold as task_hold
		from (` + lanesOf(columns, array, where) + `) l
		left join caps q on q.at = w.at and q.kind = 'queue' and q.name = l.queue
		left join caps t on t.at = w.at and t.kind = 'task' and t.name = l.lane and l.lane <> ''`
}

// caps are the overrides that hold queues or tasks of the rows of asked.
var caps = `caps as materialized (
		select w.at, o.kind, o.name, case when paused then 0 else greatest(o.max_concurrent - ` + runningUnder("w.ns") + `, 0) end as room,
			case when paused then 'paused_' else '' end || o.kind || ':' || o.name as hold
		from asked w cross join lateral (
			select kind, name, max_concurrent, coalesce(paused, false) as paused from flexiq.overrides
			where ns = w.ns and (max_concurrent is not null or paused) offset 0
		) o
	)`

// claimHeld is claimJobs under caps. While jobs move between lanes, those in
// the common lane of a queue go by the cap of their task.
var claimHeld = statement(`with asked as materialized (
		select w.*, least(w.most, greatest(w.max_running - coalesce(c.running, 0), 0)) as room
		from unnest($1::int[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::int[], $9::int[], $12::bool[], $13::bool[])
			w(at, ns, worker, most, bytes, max_running, lease_for, first, last, got, relabelling)
		left join lateral (select running from flexiq.usage where ns = w.ns limit 1) c on true
	), ` + caps + `, counted as materialized (
		select w.at, w.worker, w.lease_for, w.bytes, w.got, p.*
		from asked w cross join lateral (
			select j.tid, j.own, row_number() over o as n, sum(j.size) over o as total,
				count(*) over (partition by l.queue order by l.rank, j.run_at, j.id) > l.queue_room
					or count(*) over (partition by j.own order by l.rank, j.run_at, j.id) > j.room as full
			from (
				select * from (` + heldLanes("queue, lane, rank, front_at, front_id", "$10::text[]", "front_at <= $11") + `) l
				where coalesce(l.queue_room, 1) > 0 and coalesce(l.task_room, 1) > 0
				order by l.rank, l.front_at, l.front_id limit w.room
			) l
			cross join lateral (
				select j.ctid as tid, j.run_at, j.id, greatest(j.aside, coalesce(octet_length(j.payload), 0)) as size,
					case when w.relabelling and c.room is not null then j.task else l.lane end as own,
					case when l.lane = '' then c.room else l.task_room end as room
				from flexiq.jobs j
				left join caps c on w.relabelling and l.lane = '' and c.at = w.at and c.kind = 'task' and c.name = j.task
				where j.ns = w.ns and j.queue = l.queue and j.lane = l.lane and j.rank = l.rank and j.state = 0
					and (j.run_at, j.id) >= (l.front_at, l.front_id) and j.run_at <= $11 and coalesce(c.room, 1) > 0
				order by j.run_at, j.id limit least(w.room, l.queue_room, l.task_room)
			) j
			window o as (order by l.rank, j.run_at, j.id)
			order by l.rank, j.run_at, j.id limit w.room
		) p
	), picked as (
		select c.*, (n = 1 and not got) or bytes = 0 or total < bytes as fits, min(n) filter (where c.full) over (partition by at) as stop
		from counted c
	), taken as (
		update flexiq.jobs set state = 1, attempt = attempt + 1, started_at = $11, lease = gen_random_uuid(),
			lease_expires = $11 + least(p.lease_for, timeout / 1000), worker = p.worker, cancelled = false, lane = p.own
		from (select at, n, tid, lease_for, worker, own, stop from picked where fits and n < coalesce(stop, n + 1)) p where jobs.ctid = p.tid
		returning p.at, p.n, lease, lease_expires, coalesce(p.stop, 0) as stop, ` + takenColumns + payloadColumns + `
	)
	select t.*, b.body from taken t
	left join lateral (select body from flexiq.payloads where ns = t.ns and id = t.id and t.aside > 0 limit 1) b on true
	order by t.at, t.n`)

// leftHeld is left under caps, with what holds lanes that have due jobs.
var leftHeld = statement(`with asked as materialized (
		select * from unnest($1::int[], $2::text[], $3::int[], $4::int[]) w(at, ns, first, last)
	), ` + caps + `
	select w.at, coalesce(c.running, 0), coalesce(l.due, false), coalesce(l.next_at, 0), l.holds
	from asked w
	left join lateral (select running from flexiq.usage where ns = w.ns limit 1) c on true
	cross join lateral (
		select bool_or(l.front_at <= $6 and l.is_open) as due, min(case when not l.is_open then null when l.front_at > $6 then l.front_at else (
				select j.run_at from flexiq.jobs j where j.ns = w.ns and j.queue = l.queue and j.lane = l.lane and j.rank = l.rank
					and j.state = 0 and j.run_at > $6 order by j.run_at, j.id limit 1) end) as next_at,
			array_agg(distinct l.queue_hold) filter (where l.queue_room = 0 and l.front_at <= $6)
				|| array_agg(distinct l.task_hold) filter (where l.task_room = 0 and l.front_at <= $6) as holds
		from (select *, coalesce(queue_room, 1) > 0 and coalesce(task_room, 1) > 0 as is_open
			from (` + heldLanes("queue, lane, rank, front_at", "$5::text[]", "front_at is not null") + `) l) l
	) l`)

// leave scans what is left for a want.
func (h *heldClaims) leave(scan func(...any) error) error {
	var at int32
	var running, next int64
	var due bool
	var names []string
	if err := scan(&at, &running, &due, &next, &names); err != nil {
		return err
	}
	w, g := h.wants[at], h.grants[at]
	got := int64(len(g.Jobs))
	capped := w.MaxRunning != nil && max(0, *w.MaxRunning-(running-got)) == got
	g.Held = nil
	// Due jobs that nothing holds were left because of their bytes.
	if got < int64(w.Max) && (capped || !due) {
		for _, n := range names {
			what, name, _ := strings.Cut(n, ":")
			g.Held = append(g.Held, store.Hold{What: store.HoldKind(what), Name: name})
		}
		if due {
			g.Held = append(g.Held, store.Hold{What: store.HoldMaxRunning})
		}
		slices.SortFunc(g.Held, func(a, b store.Hold) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Name, b.Name)) })
	}
	if got == 0 {
		g.NextAt = instant(next)
	}
	return nil
}
