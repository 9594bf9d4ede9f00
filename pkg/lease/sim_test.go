package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"
)

// simServer is a bucket on fake time behind a bad network: requests and
// replies are late or lost, a request arrives also when its caller has given
// up, and reads may come from a replica that lags.
type simServer struct {
	ttl    time.Duration
	flying sync.WaitGroup // requests and replies under way

	mu      sync.Mutex
	rand    *rand.Rand
	network network
	cut     map[string]bool // by candidate: nothing gets through
	past    []simKey        // what the key was, newest last
	last    uint64
	told    map[string]func()
}

// network is how bad things are.
type network struct {
	low, high time.Duration // of a request or a reply
	loss      float64       // of either
	lag       time.Duration // of a read
}

// simKey is what the key was from a time on; without a value: given back.
type simKey struct {
	value    []byte
	revision uint64
	at       time.Time
}

func (s *simServer) of(candidate string) venue { return simVenue{s, candidate} }

func (s *simServer) set(n network) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.network = n
}

func (s *simServer) cutOff(candidate string, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut[candidate] = cut
}

// at is what the key was at a time.
func (s *simServer) at(t time.Time) simKey {
	for i := len(s.past) - 1; i >= 0; i-- {
		if k := s.past[i]; !k.at.After(t) {
			if k.value != nil && t.Sub(k.at) >= s.ttl {
				return simKey{} // lapsed
			}
			return k
		}
	}
	return simKey{}
}

// put writes the key if its revision is the given one, as JetStream compares.
func (s *simServer) put(value []byte, revision uint64) (uint64, error) {
	if now := s.at(time.Now()); now.value != nil && now.revision != revision || now.value == nil && revision != 0 {
		return 0, jetstream.ErrKeyExists
	}
	s.last++
	s.past = append(s.past, simKey{value, s.last, time.Now()})
	return s.last, nil
}

// trip is one way through the network; false: lost.
func (s *simServer) trip(candidate string) bool {
	s.mu.Lock()
	n := s.network
	lost := s.rand.Float64() < n.loss
	d := n.low + time.Duration(s.rand.Int64N(int64(n.high-n.low)+1))
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	return !lost && !s.cut[candidate]
}

// simVenue is the server as one candidate reaches it.
type simVenue struct {
	*simServer
	candidate string
}

func (v simVenue) open(context.Context) (keyValue, error) { return v, nil }

func (v simVenue) adjust(context.Context, time.Duration) error { return nil }

func (v simVenue) listen(told func()) (stop func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.told[v.candidate] = told
	return func() {}
}

// ask carries out a request at the server.
func ask[T any](ctx context.Context, v simVenue, carryOut func() (T, error)) (T, error) {
	type reply struct {
		value T
		err   error
	}
	answered := make(chan reply, 1)
	v.flying.Go(func() {
		if !v.trip(v.candidate) {
			return
		}
		v.mu.Lock()
		value, err := carryOut()
		v.mu.Unlock()
		if v.trip(v.candidate) {
			answered <- reply{value, err}
		}
	})
	select {
	case r := <-answered:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

func (v simVenue) Get(ctx context.Context, _ string) (jetstream.KeyValueEntry, error) {
	return ask(ctx, v, func() (jetstream.KeyValueEntry, error) {
		lag := time.Duration(v.rand.Int64N(int64(v.network.lag) + 1))
		if k := v.at(time.Now().Add(-lag)); k.value != nil {
			return simEntry{key: k}, nil
		}
		return nil, jetstream.ErrKeyNotFound
	})
}

func (v simVenue) Create(ctx context.Context, _ string, value []byte, _ ...jetstream.KVCreateOpt) (uint64, error) {
	return ask(ctx, v, func() (uint64, error) { return v.put(value, 0) })
}

func (v simVenue) Update(ctx context.Context, _ string, value []byte, revision uint64) (uint64, error) {
	return ask(ctx, v, func() (uint64, error) { return v.put(value, revision) })
}

func (v simVenue) Status(ctx context.Context) (jetstream.KeyValueStatus, error) {
	return ask(ctx, v, func() (jetstream.KeyValueStatus, error) { return simStatus{ttl: v.ttl}, nil })
}

func (v simVenue) PurgeAt(ctx context.Context, _ string, revision uint64) error {
	_, err := ask(ctx, v, func() (int, error) {
		if _, err := v.put(nil, revision); err != nil {
			return 0, err
		}
		for candidate, told := range v.told {
			if !v.cut[candidate] {
				told()
			}
		}
		return 0, nil
	})
	return err
}

type simEntry struct {
	jetstream.KeyValueEntry
	key simKey
}

func (e simEntry) Value() []byte    { return e.key.value }
func (e simEntry) Revision() uint64 { return e.key.revision }

type simStatus struct {
	jetstream.KeyValueStatus
	ttl time.Duration
}

func (s simStatus) TTL() time.Duration { return s.ttl }

// simElection runs candidates against a simServer and watches them.
type simElection struct {
	srv        *simServer
	candidates []string
	linger     time.Duration // from the end of lead's context to its return
	patience   time.Duration // after which a leader gives up by itself; 0: never

	mu      sync.Mutex
	terms   int64
	leaders []string
	ctxs    []context.Context
	broken  string
}

func newSimElection(seed uint64, candidates int, ttl time.Duration, n network) *simElection {
	e := &simElection{srv: &simServer{
		ttl: ttl, network: n, rand: rand.New(rand.NewPCG(seed, 0)),
		cut: make(map[string]bool), told: make(map[string]func()),
	}}
	for i := range candidates {
		e.candidates = append(e.candidates, fmt.Sprint(i))
	}
	return e
}

// run lets the candidates run until script returns, and waits for them.
func (e *simElection) run(t *testing.T, script func()) {
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, name := range e.candidates {
		elector := New(nil, Options{Key: key, Holder: name, TTL: e.srv.ttl, Term: e.term})
		elector.venue = e.srv.of(name)
		wg.Go(func() {
			err := elector.Run(ctx, func(ctx context.Context, term int64) error { return e.lead(ctx, name, term) })
			if err != nil {
				e.fail("Run: %v", err)
			}
		})
	}
	script()
	stop()
	began := time.Now()
	wg.Wait()
	if took := time.Since(began); took > e.linger+5*timingOf(e.srv.ttl).call {
		e.fail("the candidates took %v to stop", took)
	}
	e.srv.flying.Wait()
}

func (e *simElection) term(context.Context) (int64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.terms++
	return e.terms, nil
}

// lead acts as often as it may. No other leader may act in the meantime.
func (e *simElection) lead(ctx context.Context, name string, term int64) error {
	began := time.Now()
	e.mu.Lock()
	e.leaders = append(e.leaders, name)
	e.ctxs = append(e.ctxs, ctx)
	e.mu.Unlock()
	for ctx.Err() == nil {
		e.mu.Lock()
		if Guard(ctx) == nil {
			for _, other := range e.ctxs {
				if other != ctx && Guard(other) == nil {
					e.broken = fmt.Sprintf("two leaders may act, one with term %d", term)
				}
			}
		}
		e.mu.Unlock()
		rest(ctx, e.srv.ttl/50)
		if e.patience > 0 && time.Since(began) > e.patience {
			return errors.New("the store is silent")
		}
	}
	time.Sleep(e.linger) // a leader may be slow to notice
	return ctx.Err()
}

func (e *simElection) fail(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken = fmt.Sprintf(format, args...)
}

// led reports whether somebody may act now.
func (e *simElection) led() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ctx := range e.ctxs {
		if Guard(ctx) == nil {
			return true
		}
	}
	return false
}

// Whatever the network does, no two leaders may act at once; and once it is
// good again, somebody leads before long.
func TestNeverTwoLeaders(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const ttl = 2 * time.Second
		e := newSimElection(rapid.Uint64().Draw(rt, "seed"), rapid.IntRange(2, 4).Draw(rt, "candidates"), ttl, network{
			high: rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond, 600 * time.Millisecond, 3 * time.Second}).Draw(rt, "delay"),
			loss: rapid.SampledFrom([]float64{0, 0.05, 0.4}).Draw(rt, "loss"),
			lag:  rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(rt, "lag"),
		})
		e.linger = rapid.SampledFrom([]time.Duration{0, ttl}).Draw(rt, "linger")
		cuts := rapid.SliceOfN(rapid.IntRange(0, 3), 0, 6).Draw(rt, "cuts")
		led := false
		synctest.Test(t, func(t *testing.T) {
			e.run(t, func() {
				for _, c := range append(cuts, 0) {
					time.Sleep(1700 * time.Millisecond)
					e.srv.cutOff(e.candidates[c%len(e.candidates)], true)
					time.Sleep(4 * time.Second)
					e.srv.cutOff(e.candidates[c%len(e.candidates)], false)
				}
				e.srv.set(network{high: time.Millisecond})
				time.Sleep(3 * time.Second) // what is under way arrives
				time.Sleep(2*ttl + time.Second)
				led = e.led()
			})
		})
		if e.broken != "" {
			rt.Fatal(e.broken)
		}
		if !led {
			rt.Fatal("nobody leads although the network is good")
		}
	})
}

// A server that is slow, but not slower than a call may be, costs nobody the
// lease: the renewals do not wait for the lease's end.
func TestASlowServerDoesNotCostTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newSimElection(1, 3, 10*time.Second, network{low: 100 * time.Millisecond, high: 750 * time.Millisecond})
		e.run(t, func() { time.Sleep(30 * time.Minute) })
		if e.broken != "" {
			t.Error(e.broken)
		}
		if e.terms != 1 {
			t.Errorf("%d terms in half an hour, want one", e.terms)
		}
	})
}

// A server that is away for less than the lease less its margin costs nobody
// the lease either: a three-node cluster was measured to need up to 7.4 s of 15.
func TestAShortOutageDoesNotCostTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newSimElection(1, 2, DefaultTTL, network{high: 2 * time.Millisecond})
		e.run(t, func() {
			for range 50 {
				time.Sleep(17 * time.Second)
				for _, away := range []bool{true, false} {
					for _, c := range e.candidates {
						e.srv.cutOff(c, away)
					}
					time.Sleep(7400 * time.Millisecond)
				}
			}
		})
		if e.broken != "" || e.terms != 1 {
			t.Errorf("%d terms, want one; %s", e.terms, e.broken)
		}
	})
}

// A leader whose writes are carried out although their replies are lost reads
// back that they were, and stays.
func TestUnknownOutcomesAreResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newSimElection(1, 1, 3*time.Second, network{})
		elector := New(nil, Options{Key: key, Holder: "0", TTL: e.srv.ttl, Term: e.term})
		elector.venue = mute{simVenue{e.srv, "0"}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- elector.Run(ctx, func(ctx context.Context, term int64) error { return e.lead(ctx, "0", term) })
		}()
		time.Sleep(time.Minute)
		if !e.led() || e.terms != 1 {
			t.Errorf("led %v, terms %d; want one leadership all the time", e.led(), e.terms)
		}
		stop()
		err := <-ended
		e.srv.flying.Wait()
		if err != nil || e.srv.at(time.Now()).value != nil {
			t.Errorf("Run = %v, the key is %s; want it given back", err, e.srv.at(time.Now()).value)
		}
	})
}

// mute is a server that carries writes out and never says so.
type mute struct{ simVenue }

func (m mute) open(context.Context) (keyValue, error) { return m, nil }

func (m mute) Create(ctx context.Context, key string, value []byte, opts ...jetstream.KVCreateOpt) (uint64, error) {
	_, _ = m.simVenue.Create(ctx, key, value, opts...)
	<-ctx.Done()
	return 0, ctx.Err()
}

func (m mute) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	_, _ = m.simVenue.Update(ctx, key, value, revision)
	return 0, errors.New("the reply was lost")
}

// Who gives up by itself leaves the lease to the others first.
func TestWhoGivesUpLetsOthersGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newSimElection(1, 3, DefaultTTL, network{high: 5 * time.Millisecond})
		e.patience = time.Minute
		e.run(t, func() { time.Sleep(time.Hour) })
		if e.broken != "" || len(e.leaders) < 50 {
			t.Fatalf("%d leaderships; %s", len(e.leaders), e.broken)
		}
		for i, name := range e.leaders[1:] {
			if name == e.leaders[i] {
				t.Fatalf("%s led twice running: %v", name, e.leaders)
			}
		}
	})
}

func TestTheLeaseCountsFromTheStartOfAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := timingOf(15 * time.Second)
		if tm.call != 2*time.Second || tm.margin != 2*time.Second || tm.renew != 5*time.Second {
			t.Fatalf("timing %+v", tm)
		}
		started := time.Now()
		time.Sleep(time.Second) // the write took so long
		h := newHold(tm, started, 1)
		time.Sleep(12*time.Second - time.Nanosecond)
		if err := h.check(); err != nil {
			t.Errorf("13 s after the start but a moment: %v", err)
		}
		again := time.Now()
		time.Sleep(time.Nanosecond)
		if err := h.check(); !errors.Is(err, ErrLost) {
			t.Errorf("13 s after the start: %v, want ErrLost", err)
		}
		h.renewed(again, 2)
		if err := h.check(); !errors.Is(err, ErrLost) {
			t.Errorf("a renewal that was answered too late brings the lease back: %v", err)
		}
	})
}
