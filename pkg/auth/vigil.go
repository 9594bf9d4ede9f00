package auth

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"flexiq/pkg/fault"
)

// vigilInterval is how often the tokens of waiting calls are looked at again.
// With the cache's two seconds' worst case a revocation by a lost hint still
// ends a wait within three.
const vigilInterval = time.Second

// Vigil ends calls that wait when their token stops being valid: a long poll
// would else outlive it by a minute and be handed work. One look a second for
// each token, however many calls wait with it. The zero value is not usable;
// make one with [NewVigil]. Its goroutine lives only while calls wait.
type Vigil struct {
	ids *Verifier

	mu    sync.Mutex
	calls map[vigilKey]map[*context.CancelCauseFunc]struct{}
	idle  chan struct{} // closed when the last call has gone
}

type vigilKey struct{ nsToken, tokenID string }

// NewVigil makes a vigil over the tokens that ids knows.
func NewVigil(ids *Verifier) *Vigil {
	return &Vigil{ids: ids, calls: make(map[vigilKey]map[*context.CancelCauseFunc]struct{})}
}

// Keep returns a context that ends, with the UNAUTHENTICATED fault as its
// cause, when the caller's token stops being valid. The returned function ends
// the watch and must be called.
func (g *Vigil) Keep(ctx context.Context, id Identity) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	key, entry := vigilKey{id.NSToken(), id.TokenID}, &cancel
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.calls) == 0 {
		g.idle = make(chan struct{})
		go g.watch(g.idle)
	}
	if g.calls[key] == nil {
		g.calls[key] = make(map[*context.CancelCauseFunc]struct{})
	}
	g.calls[key][entry] = struct{}{}
	return ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if _, kept := g.calls[key][entry]; !kept {
			return
		}
		cancel(context.Canceled)
		if delete(g.calls[key], entry); len(g.calls[key]) > 0 {
			return
		}
		if delete(g.calls, key); len(g.calls) == 0 {
			close(g.idle)
		}
	}
}

// watch looks until no call waits.
func (g *Vigil) watch(idle <-chan struct{}) {
	tick := time.NewTicker(vigilInterval)
	defer tick.Stop()
	for {
		select {
		case <-idle:
			return
		case <-tick.C:
		}
		g.mu.Lock()
		keys := slices.Collect(maps.Keys(g.calls))
		g.mu.Unlock()
		for _, k := range keys {
			g.look(k)
		}
	}
}

// look ends the calls of one token when it is no longer valid. A token that
// cannot be read now is left alone: new calls are refused meanwhile.
func (g *Vigil) look(k vigilKey) {
	_, known, err := g.ids.IdentifyNow(k.nsToken, k.tokenID)
	if !known {
		ctx, cancel := context.WithTimeout(context.Background(), vigilInterval)
		_, _, err = g.ids.Identify(ctx, k.nsToken, k.tokenID)
		cancel()
	}
	if !fault.Is(err, fault.Unauthenticated) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.calls[k] {
		(*c)(err)
	}
}
