package redis

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"flexiq/pkg/store"
)

// Recount implements [store.Upkeep]. It looks through all keys of the server
// that has the namespace's, because an index may be what is wrong. Jobs that
// move meanwhile may be counted where they were or where they are.
func (s *Store) Recount(ctx context.Context, ns string) (store.Usage, error) {
	u, err := s.Usage(ctx, []string{ns})
	if err != nil {
		return store.Usage{}, err
	}
	out := u[0]
	out.Pending, out.Running, out.Archived, out.Dead, out.Shed = 0, 0, 0, 0, 0
	prefix := s.key(tag(ns), "j:")
	node, err := s.node(ctx, prefix)
	if err != nil {
		return store.Usage{}, s.fail(ctx, "recount", err)
	}
	seen := make(map[string]bool)
	for cursor := uint64(0); ; {
		keys, next, err := s.scan(ctx, node, cursor, prefix)
		if err != nil {
			return store.Usage{}, s.fail(ctx, "recount", err)
		}
		var cmds []*command
		for _, k := range keys {
			if !seen[k] {
				seen[k] = true
				cmds = append(cmds, plain("getrange", k, 1, 2))
			}
		}
		if err := s.run(ctx, again, cmds...); err != nil {
			return store.Usage{}, s.fail(ctx, "recount", err)
		}
		for _, c := range cmds {
			if v := c.text(); len(v) == 2 {
				count(&out, v[0], v[1])
			}
		}
		if cursor = next; cursor == 0 {
			return out, nil
		}
	}
}

func count(u *store.Usage, state, flags byte) {
	switch state {
	case statePending:
		u.Pending++
	case stateRunning:
		u.Running++
	case stateComplete, stateCancelled:
		u.Archived++
	case stateDead:
		u.Dead++
		if flags&flagShed != 0 {
			u.Shed++
		}
	}
}

// node is the server that has a key.
func (s *Store) node(ctx context.Context, key string) (*redis.Client, error) {
	switch db := s.db.(type) {
	case *redis.ClusterClient:
		return db.MasterForKey(ctx, key)
	case *redis.Client:
		return db, nil
	}
	return nil, redis.ErrClosed
}

func (s *Store) scan(ctx context.Context, node *redis.Client, cursor uint64, prefix string) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return node.Scan(ctx, cursor, literal.Replace(prefix)+"*", 1000).Result()
}

// literal makes a pattern of a text that matches only that text.
var literal = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`, `\`, `\\`)
