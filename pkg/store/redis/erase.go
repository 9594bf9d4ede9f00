package redis

import (
	"context"

	"flexiq/pkg/namespace"
)

// eraseAtOnce bounds the rows that one script deletes.
const eraseAtOnce = 500

// EraseNamespace implements [store.Upkeep]. The installation's lists let go of
// the namespace last, so that until then whoever looks for it finds it.
func (s *Store) EraseNamespace(ctx context.Context, ns string, limit int) (bool, error) {
	if namespace.Check(ns) != nil {
		return false, nil
	}
	more, err := s.erase(ctx, ns, min(max(limit, 1), eraseAtOnce))
	return more && err == nil, s.fail(ctx, "erase namespace", err)
}

func (s *Store) erase(ctx context.Context, ns string, limit int) (more bool, err error) {
	if err := s.deliver(ctx); err != nil { // or a record would come when all is gone
		return false, err
	}
	tokens := plain("zrange", s.key(installation, "tokens:"+ns), 0, limit-1)
	if err := s.run(ctx, again, tokens); err != nil {
		return false, err
	}
	if r := tokens.list(); r.more() {
		args := []any{ns, len(r.items)}
		return true, s.run(ctx, again, s.on(installation, dropScript, append(args, r.items...)...))
	}
	c := s.on(tag(ns), eraseScript, limit)
	if err := s.run(ctx, again, c); err != nil || c.int() != 0 {
		return true, err
	}
	known := plain("hexists", s.key(tag(ns), "ns"), "known")
	if err := s.run(ctx, again, s.on(installation, forgetScript, ns, quotaChange(ns))); err != nil {
		return false, err
	}
	if err := s.run(ctx, again, known); err != nil || known.int() == 0 {
		return false, err
	}
	// Somebody used it meanwhile, and relies on being on the lists.
	_, _, err = s.register(ctx, []string{ns}, true, true)
	return true, err
}
