package redis

import (
	"context"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

// installation is the tag of what belongs to no namespace.
const installation = namespace.PlatformToken

// defaultQuotaKey is the settings key of the installation's default quota.
const defaultQuotaKey = "installation:quota"

// tag is the hash tag of a namespace's keys; the empty name is the installation.
func tag(ns string) string {
	if ns == "" {
		return installation
	}
	return namespace.Encode(ns)
}

// key is a key of a space.
func (s *Store) key(tag, name string) string { return s.prefix + "{" + tag + "}:" + name }

// standing is what the installation tells a namespace at its registration.
type standing struct {
	revision int64 // of the default quota
	term     int64
}

// register puts namespaces on the installation's lists. With busy they get
// numbers among the busy ones.
func (s *Store) register(ctx context.Context, names []string, busy, trails bool) (standing, []int64, error) {
	args := []any{flag(busy), flag(trails), len(names)}
	for _, n := range names {
		args = append(args, n)
	}
	c := s.on(installation, registerScript, args...)
	if err := s.run(ctx, again, c); err != nil {
		return standing{}, nil, err
	}
	r := c.list()
	st := standing{revision: r.int(), term: r.int()}
	numbers := make([]int64, 0, len(names))
	for r.more() {
		numbers = append(numbers, r.int())
	}
	if busy && len(numbers) != len(names) {
		return standing{}, nil, c.strange()
	}
	return st, numbers, nil
}

// standing reads what the installation would tell, without registering anybody.
func (s *Store) standing(ctx context.Context) (standing, error) {
	st, _, err := s.register(ctx, nil, false, false)
	return st, err
}

// raise tells every registered namespace what the installation's standing is
// now. A namespace that registers meanwhile learns it there.
func (s *Store) raise(ctx context.Context, st standing) error {
	return s.eachKnown(ctx, func(names []string) error {
		cmds := make([]*command, len(names))
		for i, n := range names {
			cmds[i] = s.on(tag(n), raiseScript, st.revision, st.term)
		}
		return s.run(ctx, again, cmds...)
	})
}

// eachKnown visits all registered namespaces, some at a time, in byte order.
func (s *Store) eachKnown(ctx context.Context, visit func(names []string) error) error {
	for after := ""; ; {
		names, err := s.known(ctx, after, atOnce)
		if err != nil {
			return err
		}
		if len(names) > 0 {
			if err := visit(names); err != nil {
				return err
			}
		}
		if len(names) < atOnce {
			return nil
		}
		after = names[len(names)-1]
	}
}

// known lists registered namespaces after a name.
func (s *Store) known(ctx context.Context, after string, limit int) ([]string, error) {
	from := "-"
	if after != "" {
		from = "(" + after
	}
	c := plain("zrange", s.key(installation, "known"), from, "+", "bylex", "limit", 0, limit)
	if err := s.run(ctx, again, c); err != nil {
		return nil, err
	}
	r := c.list()
	var out []string
	for r.more() {
		out = append(out, r.text())
	}
	return out, nil
}

// fallback is the default quota's revision as a namespace without a document
// stands under it: the installation's, which was read after the namespace's own
// note of it. That note is newer only when the installation's keys came from an
// older copy; then theirs is raised, so that nobody is stale for ever.
func (s *Store) fallback(ctx context.Context, noted int64) (int64, error) {
	st, err := s.standing(ctx)
	if err != nil || st.revision >= noted {
		return st.revision, err
	}
	c := plain("hset", s.key(installation, "ns"), "revision", noted)
	return noted, s.run(ctx, again, c)
}

// stale puts right what may have made a caller stale though it knows the newest
// quota: a document that was written past the door, or a default quota of which a
// process was killed before it had told every namespace. The caller loads the
// quota again in any case, so a failure here costs it one more try.
func (s *Store) stale(ctx context.Context, ns string, have store.Stamp, r *list) {
	noted := store.Stamp{Revision: r.int(), Default: r.int()}
	past := r.bool()
	var err error
	switch {
	case past:
		err = s.adopt(ctx, ns)
	case have.Revision == noted.Revision && have.Default > noted.Default:
		var st standing
		if st, err = s.standing(ctx); err == nil {
			err = s.run(ctx, again, s.on(tag(ns), raiseScript, st.revision, st.term))
		}
	}
	if err != nil {
		s.log.Warn().Err(err).Str("namespace", ns).Msg("the quota in force could not be brought up to date")
	}
}
