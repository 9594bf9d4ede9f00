package postgres

import (
	"strconv"
	"time"

	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// Namespaces are locked in the order of the array, which is that of their bytes.
var (
	lockAll = statement(`select n.name from unnest($1::text[]) u(name)
		cross join lateral (select name from flexiq.namespaces where name = u.name limit 1 for update) n`)
	lockFree = statement(`select n.name from unnest($1::text[]) u(name)
		cross join lateral (select name from flexiq.namespaces where name = u.name limit 1 for update skip locked) n`)
)

// lock queues the statement that locks namespaces, given in byte order, and
// adds those that it got to held.
func (b *batch) lock(names []string, l locking, held map[string]bool) {
	if l.wait > 0 {
		b.Queue("set local lock_timeout = " + strconv.FormatInt(max(1, l.wait.Milliseconds()), 10))
	}
	which := lockAll
	if l.skip {
		which = lockFree
	}
	b.each(which, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		held[name] = true
		return err
	}, names)
}

// space is what transactions read of a namespace first.
type space struct {
	name        string
	stamp       store.Stamp
	hasDocument bool
	pending     int64
	running     int64
	bucket      quota.Bucket
	holds       bool     // overrides hold queues or tasks
	laned       []string // the tasks among those
	rooms       []int64  // how many more jobs may run under each cap, negative where more do
	relabelling bool     // its jobs move between lanes
}

// selectSpaces reads namespaces whether they have rows or not, and the time.
var selectSpaces = statement(`select ` + spaceColumns + fromSpaces)

var (
	spaceColumns = `u.name, coalesce(n.quota_revision, 0), coalesce(n.has_document, false), i.default_revision,
		coalesce(c.pending, 0), coalesce(c.running, 0),
		coalesce(b.rate_count, 0), coalesce(b.rate_unit, 0), coalesce(b.level, 0), coalesce(b.level_at, 0),
		o.holds > 0, o.laned, o.rooms, coalesce(r.relabelling, false), ` + clock
	fromSpaces = ` from unnest($1::text[]) with ordinality u(name, at)` + joinSpaces
	joinSpaces = `
		cross join (select default_revision from flexiq.installation where single) i
		left join lateral (select quota_revision, has_document from flexiq.namespaces where name = u.name limit 1) n on true
		left join lateral (select pending, running from flexiq.usage where ns = u.name limit 1) c on true
		left join lateral (select rate_count, rate_unit, level, level_at from flexiq.buckets where ns = u.name limit 1) b on true
		left join lateral (select true as relabelling from flexiq.relabels where ns = u.name limit 1) r on true
		cross join lateral (
			select count(*) as holds, array_agg(name) filter (where kind = 'task') as laned,
				array_agg(max_concurrent - ` + runningUnder("u.name") + `) filter (where paused is not true) as rooms
			from flexiq.overrides o where ns = u.name and (max_concurrent is not null or paused)
		) o`
)

// runningUnder counts the running jobs of a namespace that count for the override o.
func runningUnder(ns string) string {
	return `case o.kind when 'queue' then (select coalesce(sum(running), 0)::bigint from flexiq.lanes where ns = ` + ns + ` and queue = o.name)
		else (select coalesce(sum(running), 0)::bigint from flexiq.lanes where ns = ` + ns + ` and lane = o.name and lane <> '') end`
}

// spaceRow is a row of spaceColumns as it is scanned.
type spaceRow struct {
	space
	standard int64
	unit     int16
	at       int64
}

// dests are where to scan the columns.
func (r *spaceRow) dests(more ...any) []any {
	return append([]any{&r.name, &r.stamp.Revision, &r.hasDocument, &r.standard, &r.pending, &r.running,
		&r.bucket.Rate.Count, &r.unit, &r.bucket.Level, &r.bucket.At,
		&r.holds, &r.laned, &r.rooms, &r.relabelling, &r.at}, more...)
}

// take gives the namespace, after the scan.
func (r *spaceRow) take() *space {
	r.bucket.Rate.Unit = quota.Unit(r.unit)
	if !r.hasDocument {
		r.stamp.Default = r.standard
	}
	return &r.space
}

// spaces queues the reading of namespaces, after their locks, and sets now to
// the store's clock.
func (s *Store) spaces(b *batch, names []string, into map[string]*space, now *time.Time) {
	b.each(selectSpaces, func(scan func(...any) error) error {
		var r spaceRow
		if err := scan(r.dests()...); err != nil {
			return err
		}
		into[r.name] = r.take()
		*now = s.clock(r.at)
		return nil
	}, names)
}

const (
	// clock is the server's time in microseconds.
	clock = `(extract(epoch from clock_timestamp()) * 1000000)::bigint`
	// nowOr1 is the same for a statement that has [Store.override] as its first
	// parameter. It is evaluated once, so that an index can be searched by it.
	nowOr1 = `(select coalesce($1::bigint, ` + clock + `))`
)

// clock is the store's time, which the server read as micros.
func (s *Store) clock(micros int64) time.Time {
	if s.now != nil {
		return s.now().UTC().Truncate(time.Microsecond)
	}
	return instant(micros)
}

// override is the time of the tests' clock, nil without one.
func (s *Store) override() *int64 {
	if s.now == nil {
		return nil
	}
	at := s.now().UnixMicro()
	return &at
}

var saveBuckets = statement(`insert into flexiq.buckets (ns, rate_count, rate_unit, level, level_at)
	select * from unnest($1::text[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[])
	on conflict (ns) do update set rate_count = excluded.rate_count, rate_unit = excluded.rate_unit,
		level = excluded.level, level_at = excluded.level_at`)

// buckets are token buckets to be stored.
type buckets struct {
	ns               []string
	count, level, at []int64
	unit             []int16
}

func (k *buckets) add(ns string, b quota.Bucket) {
	k.ns = append(k.ns, ns)
	k.count, k.level, k.at = append(k.count, b.Rate.Count), append(k.level, b.Level), append(k.at, b.At)
	k.unit = append(k.unit, int16(b.Rate.Unit))
}

func (k *buckets) save(b *batch) {
	if len(k.ns) > 0 {
		b.exec(saveBuckets, k.ns, k.count, k.unit, k.level, k.at)
	}
}
