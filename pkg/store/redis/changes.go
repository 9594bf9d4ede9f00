package redis

import (
	"context"
	"crypto/rand"
	"hash/maphash"
	"strings"
	"sync"

	"flexiq/pkg/store"
)

// Objects in the feed of changes are their kind, a colon and their key.
func quotaChange(ns string) string {
	if ns == "" {
		return string(store.KindDefaultQuota) + ":"
	}
	return string(store.KindQuota) + ":" + ns
}

// announcement is a change of an object whose keys lie in another slot than the
// feed.
type announcement struct {
	standing
	id, change string
}

// announce registers a namespace and says that one of its objects is about to
// change.
func (s *Store) announce(ctx context.Context, change, ns string) (announcement, error) {
	a := announcement{id: rand.Text(), change: change}
	c := s.on(installation, announceScript, a.id, a.change, ns)
	if err := s.run(ctx, again, c); err != nil {
		return a, err
	}
	r := c.list()
	a.revision, a.term = r.int(), r.int()
	return a, nil
}

// finish says whether an announced change was made.
func (s *Store) finish(ctx context.Context, a announcement, changed bool) error {
	return s.run(ctx, again, s.on(installation, finishScript, a.id, a.change, flag(changed)))
}

// Changes implements [store.Quotas].
func (s *Store) Changes(ctx context.Context, since int64, limit int) (store.Changes, error) {
	if err := s.lookPastTheDoor(ctx); err != nil {
		return store.Changes{}, s.fail(ctx, "changes", err)
	}
	limit = max(limit, 1)
	c := s.on(installation, changesScript, since, limit)
	if err := s.run(ctx, again, c); err != nil {
		return store.Changes{}, s.fail(ctx, "changes", err)
	}
	r := c.list()
	out := store.Changes{Latest: r.int()}
	waiting := r.int()
	last := int64(0)
	for r.more() {
		kind, key, _ := strings.Cut(r.text(), ":")
		out.Items = append(out.Items, store.Change{Kind: store.Kind(kind), Key: key})
		last = r.int()
	}
	if len(out.Items) == limit {
		out.Latest = last
	}
	if waiting > 0 {
		if err := s.deliver(ctx); err != nil {
			s.log.Warn().Err(err).Msg("audit records wait in the outbox")
		}
	}
	return out, nil
}

// mostWatched bounds the documents that a handle watches.
const mostWatched = 20_000

// watch remembers the documents that a handle gave out, so that Changes can
// tell when one was overwritten past the door. A decision of the database
// notices that by itself; this is for those who only read.
type watch struct {
	mu   sync.Mutex
	seed maphash.Seed
	seen map[string]uint64 // by namespace, empty for the default; the hash of the document
}

func (w *watch) saw(ns string, raw []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == nil {
		w.seed, w.seen = maphash.MakeSeed(), make(map[string]uint64)
	}
	if _, watched := w.seen[ns]; !watched && len(w.seen) >= mostWatched {
		for other := range w.seen { // any one
			delete(w.seen, other)
			break
		}
	}
	w.seen[ns] = w.hash(string(raw), raw != nil)
}

func (w *watch) hash(raw string, has bool) uint64 {
	if !has {
		return 0
	}
	return maphash.String(w.seed, raw) | 1
}

func (w *watch) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]string, 0, len(w.seen))
	for ns := range w.seen {
		out = append(out, ns)
	}
	return out
}

// changed reports whether a document differs from the one that was seen last.
func (w *watch) changed(ns string, reply any) bool {
	raw, has := reply.(string)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[ns] != w.hash(raw, has)
}

// lookPastTheDoor finds documents that this handle gave out and that are
// different now. Those that got a revision in the usual way are only seen anew.
func (s *Store) lookPastTheDoor(ctx context.Context) error {
	names := s.watch.names()
	cmds := make([]*command, len(names))
	for i, ns := range names {
		cmds[i] = plain("hget", s.key(tag(ns), "settings"), quotaField(ns))
	}
	if err := s.run(ctx, again, cmds...); err != nil {
		return err
	}
	var differ []string
	for i, ns := range names {
		if s.watch.changed(ns, cmds[i].reply) {
			differ = append(differ, ns)
		}
	}
	if len(differ) == 0 {
		return nil
	}
	docs, err := s.documents(ctx, differ...)
	for i := range docs {
		s.watch.saw(differ[i], docs[i].Raw)
	}
	return err
}
