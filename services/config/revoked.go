package config

import (
	"context"
	"sync"
	"time"

	"flexiq/pkg/fault"
)

// changedTokens holds the ids of tokens that other processes changed, each
// once, until they were looked at.
type changedTokens struct {
	mu    sync.Mutex
	ids   map[string]struct{}
	ready chan struct{} // holds one signal while ids may be waiting
}

func newChangedTokens() *changedTokens {
	return &changedTokens{ids: map[string]struct{}{}, ready: make(chan struct{}, 1)}
}

func (c *changedTokens) add(id string) {
	c.mu.Lock()
	c.ids[id] = struct{}{}
	c.mu.Unlock()
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

func (c *changedTokens) take() map[string]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := c.ids
	c.ids = map[string]struct{}{}
	return ids
}

// lookTimeout bounds one look at a changed token.
const lookTimeout = 5 * time.Second

// cutRevoked cuts the connections of tokens that other processes revoked, until
// ctx ends. A token that cannot be read now is left: its requests are refused
// by then, and the connection ends with the token.
func (s *Service) cutRevoked(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed.ready:
		}
		for id := range s.changed.take() {
			if s.revoked(ctx, id) {
				s.deps.Cut(id)
			}
		}
	}
}

func (s *Service) revoked(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	t, err := s.store.Token(ctx, id)
	if err != nil {
		return fault.Is(err, fault.NotFound)
	}
	return !t.RevokedAt.IsZero()
}
