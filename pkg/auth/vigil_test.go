package auth

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// oneToken is a source of one token, or of none.
type oneToken struct {
	mu    sync.Mutex
	token *store.Token
	err   error
}

func (s *oneToken) Token(context.Context, string) (*store.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token, s.err
}

func (s *oneToken) set(t *store.Token, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.err = t, err
}

func TestVigilEndsWaitsWithTheirToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, valid, err := Mint("lark", []Scope{Work}, "w", time.Hour, "", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		src := &oneToken{token: &valid}
		g := NewVigil(NewVerifier(src, time.Now))
		id := Identity{Namespace: "lark", TokenID: valid.ID}
		ctx, end := g.Keep(t.Context(), id)
		defer end()
		other, endOther := g.Keep(t.Context(), id)

		time.Sleep(10 * vigilInterval)
		src.set(nil, errors.New("the store is away"))
		time.Sleep(10 * vigilInterval)
		if ctx.Err() != nil {
			t.Fatalf("a wait ended with %v while its token was good or unknown", context.Cause(ctx))
		}
		endOther()
		endOther()
		if cause := context.Cause(other); !errors.Is(cause, context.Canceled) {
			t.Errorf("a wait that was over has the cause %v", cause)
		}

		revoked := valid
		revoked.RevokedAt = time.Now()
		src.set(&revoked, nil)
		time.Sleep(vigilInterval + time.Millisecond)
		if cause := context.Cause(ctx); !fault.Is(cause, fault.Unauthenticated) {
			t.Errorf("after the revocation the cause is %v", cause)
		}
	})
}

func TestVigilEndsWaitsAtTheExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, short, err := Mint("lark", []Scope{Work}, "w", 4*time.Second, "", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		g := NewVigil(NewVerifier(&oneToken{token: &short}, time.Now))
		ctx, end := g.Keep(t.Context(), Identity{Namespace: "lark", TokenID: short.ID})
		defer end()
		began := time.Now()
		<-ctx.Done()
		if d := time.Since(began); d < 4*time.Second || d > 4*time.Second+vigilInterval {
			t.Errorf("the wait ended after %s, the token after 4s", d)
		}
	})
}
