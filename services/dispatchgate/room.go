package dispatchgate

import (
	"strings"
	"time"

	"flexiq/pkg/configcache"
	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// room is where claims wait. It decides who asks the store next and who is
// answered with what; it does no I/O, starts nothing and takes the time as an
// argument. It is not safe for concurrent use: a lane guards it.
//
// Claims of one namespace for the same queues stand in one line, first come,
// first served. A line is hungry when the store may have work for it: it then
// takes its turn in the namespace's ring, and the namespace takes its turn in
// the room's. When the store had nothing, the line is parked and costs memory
// only, until somebody wakes it: a hint, a settlement, a changed quota, the
// time at which its next job is due, or the look round once a second.
//
// A wake-up is never lost between "the store had nothing" and parking: each
// one raises the line's count of wakes, and a line is parked only when the
// count is what it was as the store was asked.
//
// A namespace at its cap is full: see full.go.
//
// What is to be done outside is collected in out, cold and stale, for the
// lane to take.
type room struct {
	tenants map[string]*tenant
	ring    []*tenant // hungry namespaces, each once
	agenda  agenda
	seq     uint64 // of the last claim that joined
	size    int    // claims in the room
	asked   int    // of them, those that the store is being asked for
	closed  bool

	out   []reply
	cold  []string // namespaces whose quota is to be loaded
	stale []string // the same, and what the cache holds is out of force
}

// reply is the end of a claim.
type reply struct {
	w    *waiter
	jobs []store.Leased
	err  error
	// gone says that the claim was answered before, because its caller went
	// away: the jobs are to be released.
	gone bool
}

// waiter is one claim.
type waiter struct {
	want   store.Want
	answer func([]store.Leased, error) // called once, outside the room
	until  appointment                 // the end of its wait

	line       *line
	seq        uint64
	prev, next *waiter
	asked      bool // the store is being asked for it
	gone       bool // its caller went away
	done       bool // it has left the room
}

// line is the claims of one namespace for the same queues.
type line struct {
	tenant      *tenant
	key         string
	queues      []string
	first, last *waiter

	queued  bool    // it stands in the tenant's ring
	asked   int     // how many of the first claims the store is being asked for
	lastAsk *waiter // the last of these
	burst   int     // how many may be asked for at once: grows while all get work
	wakes   uint64
	picked  uint64      // wakes when the store was asked
	frees   uint64      // of the wakes, those that may mean a free slot
	chosen  uint64      // frees when the store was asked
	held    bool        // the last answer left due work because of the namespace's cap
	narrow  bool        // or because of a pause or cap of a queue or task
	vain    int         // answers in a row that were narrow and gave nothing
	resume  time.Time   // new work does not make a vain line hungry before
	asOf    uint64      // the newest claim in the room when the store was asked
	seen    uint64      // claims up to this one have had an answer of the store
	late    []*waiter   // waits that ended before the store was asked for them
	due     appointment // when its next job is due
	early   int         // how often in a row that time was too early
	err     error       // of the last asking, until one works again
	verdict verdict     // of the asking that is being concluded
}

// verdict gathers what the store said to the claims of a line.
type verdict struct {
	granted int
	drained bool // one got nothing
	capped  bool // the namespace's cap left due work
	narrow  bool // a pause or cap of a queue or task did
	stale   bool
	nextAt  time.Time
	err     error
}

// hold is why a namespace does not take its turns.
type hold uint8

const (
	open       hold = iota
	loading         // its quota is being loaded
	unreadable      // its quota cannot be read; it waits to be woken
)

// tenant is a namespace with claims in the room.
type tenant struct {
	name   string
	lines  map[string]*line
	ring   []*line // hungry lines, each once
	queued bool    // it stands in the room's ring
	hold   hold
	quota  *configcache.Quota // just loaded, for the next asking; nil: look it up
	stale  int                // askings in a row that were out of force

	full   bool      // the last answer was that no slot is free
	fullAt time.Time // when it came
	asked  int       // claims that the store is being asked for
	burst  int       // how many may be asked for at once: few after it was full
}

func newRoom() *room { return &room{tenants: make(map[string]*tenant)} }

// lineKey joins queue names, sorted, each once. Names have no control characters.
func lineKey(queues []string) string { return strings.Join(queues, "\x00") }

// join adds a claim whose wait ends at until. The store is asked for it at
// least once before it is answered empty, unless the namespace is known to be
// full.
func (r *room) join(w *waiter, until, now time.Time) {
	if r.closed || w.gone {
		w.done = true
		if !w.gone {
			r.out = append(r.out, reply{w: w})
		}
		return
	}
	t := r.tenants[w.want.Namespace]
	if t == nil {
		t = &tenant{name: w.want.Namespace, lines: make(map[string]*line), burst: roundWants}
		r.tenants[t.name] = t
	}
	key := lineKey(w.want.Queues)
	l := t.lines[key]
	if l == nil {
		l = &line{tenant: t, key: key, queues: w.want.Queues, burst: 1}
		l.due.line = l
		t.lines[key] = l
	}
	r.seq++
	r.size++
	w.seq, w.line, w.until.waiter = r.seq, l, w
	l.push(w)
	known := t.known(now)
	switch {
	case until.After(now):
		r.agenda.set(&w.until, until)
	case known:
		r.end(w)
		r.tidy(l)
	default:
		l.late = append(l.late, w)
	}
	if known {
		l.seen = r.seq
		return
	}
	if t.hold == unreadable { // perhaps it has been repaired; its quota says
		t.hold = open
	}
	r.wakeLine(l)
}

// leave takes out a claim whose caller went away.
func (r *room) leave(w *waiter) {
	switch {
	case w.done:
	case w.line == nil: // it has not joined yet
		w.gone = true
	case w.asked: // what it gets is released
		w.gone = true
	default:
		r.remove(w)
		r.tidy(w.line)
	}
}

// dismiss ends the claims of a worker that are waiting. Those that the store is
// being asked for are answered, which undoes them when nobody is there.
func (r *room) dismiss(ns, worker string) {
	t := r.tenants[ns]
	if t == nil {
		return
	}
	for _, l := range t.lines {
		for w := l.first; w != nil; {
			next := w.next
			if !w.asked && w.want.Worker == worker {
				r.remove(w)
				r.out = append(r.out, reply{w: w, err: fault.New(fault.Cancelled, "the worker has signed off")})
			}
			w = next
		}
		r.tidy(l)
	}
}

// wake tells that a namespace has work. That is no news to one that is full.
func (r *room) wake(ns string) {
	t := r.tenants[ns]
	if t == nil || t.full {
		return
	}
	if t.hold == unreadable {
		t.hold = open
	}
	for _, l := range t.lines {
		if l.vain < manyVain || !l.idle() {
			r.wakeLine(l)
		} else if l.due.pos == 0 || l.due.at.After(l.resume) {
			r.agenda.set(&l.due, l.resume)
		}
	}
}

// reopen tells that a namespace may be served again, whatever held it.
func (r *room) reopen(ns string) {
	if t := r.tenants[ns]; t != nil {
		r.wakeTenant(t)
	}
}

// wakeAll wakes every namespace.
func (r *room) wakeAll() {
	for _, t := range r.tenants {
		r.wakeTenant(t)
	}
}

func (r *room) wakeTenant(t *tenant) {
	t.full = false
	if t.hold == unreadable {
		t.hold = open
	}
	for _, l := range t.lines {
		l.frees++
		r.wakeLine(l)
	}
}

func (r *room) wakeLine(l *line) {
	l.wakes++
	r.hunger(l)
}

// hunger gives a line its place in the rings, unless the store is being asked
// for it: then the answer decides.
func (r *room) hunger(l *line) {
	if r.closed || l.asked > 0 || l.first == nil {
		return
	}
	if !l.queued {
		l.queued = true
		l.tenant.ring = append(l.tenant.ring, l)
	}
	r.enter(l.tenant)
}

// enter gives a namespace its place in the room's ring.
func (r *room) enter(t *tenant) {
	if !t.queued && t.hold == open && len(t.ring) > 0 && t.asked < t.burst {
		t.queued = true
		r.ring = append(r.ring, t)
	}
}

// tick ends the waits and wakes the lines whose time has come.
func (r *room) tick(now time.Time) {
	for {
		a := r.agenda.pop(now)
		switch {
		case a == nil:
			return
		case a.line != nil:
			r.wakeLine(a.line)
		default:
			r.expire(a.waiter)
		}
	}
}

// next is when tick has something to do, zero for never.
func (r *room) next() time.Time { return r.agenda.first() }

// expire ends a claim's wait. One that the store was not asked for yet is
// answered as soon as it was.
func (r *room) expire(w *waiter) {
	l := w.line
	if w.asked || w.seq > l.seen && l.tenant.hold != unreadable {
		l.late = append(l.late, w)
		return
	}
	r.end(w)
	r.tidy(l)
}

// end answers a claim that got nothing.
func (r *room) end(w *waiter) {
	err := w.line.err
	r.remove(w)
	if !w.gone {
		r.out = append(r.out, reply{w: w, err: err})
	}
}

// endLate answers the late claims that the store has been asked for.
func (r *room) endLate(l *line) {
	left := l.late[:0]
	for _, w := range l.late {
		switch {
		case w.done:
		case w.seq <= l.seen && !w.asked:
			r.end(w)
		default:
			left = append(left, w)
		}
	}
	clear(l.late[len(left):])
	l.late = left
}

// close answers every claim empty. Those that the store is being asked for
// are answered with what they get.
func (r *room) close() {
	r.closed = true
	r.ring = nil
	for _, t := range r.tenants {
		t.queued, t.ring = false, nil
		for _, l := range t.lines {
			l.queued = false
			for w := l.first; w != nil; {
				next := w.next
				if !w.asked {
					r.remove(w)
					r.out = append(r.out, reply{w: w})
				}
				w = next
			}
			r.tidy(l)
		}
	}
}

func (r *room) remove(w *waiter) {
	w.line.unlink(w)
	r.agenda.drop(&w.until)
	w.done = true
	r.size--
}

// tidy forgets a line, and its namespace, when nobody is in it. One that still
// stands in a ring is forgotten by its turn.
func (r *room) tidy(l *line) {
	t := l.tenant
	if l.first == nil && l.asked == 0 && !l.queued {
		r.agenda.drop(&l.due)
		delete(t.lines, l.key)
	}
	if len(t.lines) == 0 && !t.queued && t.hold != loading {
		delete(r.tenants, t.name)
	}
}

func (l *line) push(w *waiter) {
	w.prev = l.last
	if l.last != nil {
		l.last.next = w
	} else {
		l.first = w
	}
	l.last = w
}

func (l *line) unlink(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.prev, w.next = nil, nil
}
