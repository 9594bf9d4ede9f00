package redis

import (
	"context"
	"time"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

const (
	// eraseAtOnce bounds the rows that one script deletes.
	eraseAtOnce = 500
	// forgetAfter is how long an erased namespace stays on the installation's
	// lists: far longer than any operation takes from registering to writing.
	forgetAfter = 10 * time.Minute
)

// EraseNamespace implements [store.Upkeep].
func (s *Store) EraseNamespace(ctx context.Context, ns string, limit int) (store.Erased, error) {
	if namespace.Check(ns) != nil {
		return store.Erased{}, nil
	}
	out, err := s.erase(ctx, ns, min(max(limit, 1), eraseAtOnce))
	return out, s.fail(ctx, "erase namespace", err)
}

func (s *Store) erase(ctx context.Context, ns string, limit int) (store.Erased, error) {
	if err := s.deliver(ctx); err != nil { // or a record would come when all is gone
		return store.Erased{}, err
	}
	tokens := plain("zrange", s.key(installation, "tokens:"+ns), 0, limit-1)
	if err := s.run(ctx, again, tokens); err != nil {
		return store.Erased{}, err
	}
	if r := tokens.list(); r.more() {
		args := []any{ns, len(r.items)}
		return store.Erased{Any: true, More: true}, s.run(ctx, again, s.on(installation, dropScript, append(args, r.items...)...))
	}
	c := s.on(tag(ns), eraseScript, limit)
	if err := s.run(ctx, again, c); err != nil {
		return store.Erased{}, err
	}
	r := c.list()
	out := store.Erased{More: r.bool(), Any: r.bool()}
	if out.More {
		return out, nil
	}
	note := s.on(installation, erasedScript, ns, quotaChange(ns))
	if err := s.run(ctx, again, note); err != nil {
		return out, err
	}
	out.More = note.int() == 1
	return out, nil
}

// forgetErased takes those namespaces off the installation's lists that were
// erased long ago. One that registered since is none of them; one that is used
// all the same, because its writer had registered before, stays.
func (s *Store) forgetErased(ctx context.Context) error {
	args := []any{0}
	for {
		c := s.on(installation, forgetScript, append([]any{forgetAfter.Microseconds()}, args...)...)
		if err := s.run(ctx, again, c); err != nil {
			return err
		}
		var names []string
		var at []int64
		var used []*command
		for r := c.list(); r.more(); {
			ns := r.text()
			names, at = append(names, ns), append(at, r.int())
			used = append(used, plain("exists", s.key(tag(ns), "ns"), s.key(tag(ns), "trail")))
		}
		if len(names) == 0 {
			return nil
		}
		if err := s.run(ctx, again, used...); err != nil {
			return err
		}
		var kept []string
		args = []any{0}
		for i, ns := range names {
			if used[i].int() > 0 {
				kept = append(kept, ns)
			} else {
				args = append(args, ns, at[i])
			}
		}
		args[0] = len(args) / 2
		if len(kept) > 0 {
			if _, _, err := s.register(ctx, kept, false, true); err != nil {
				return err
			}
		}
	}
}
