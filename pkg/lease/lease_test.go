package lease

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"flexiq/pkg/fault"
)

const key = "retention"

// serve runs a NATS server with JetStream in dir; port -1 is any.
func serve(t *testing.T, dir string, port int) *server.Server {
	t.Helper()
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, NoLog: true, NoSigs: true,
		JetStream: dir != "", StoreDir: dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		t.Fatal("the NATS server does not start")
	}
	t.Cleanup(func() { shutdown(srv) })
	return srv
}

func shutdown(srv *server.Server) {
	srv.Shutdown()
	srv.WaitForShutdown()
}

func dial(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// house is an election: it issues the terms, and sees to it that nobody begins
// to lead while an earlier leader's guard would let it act.
type house struct {
	t     *testing.T
	url   string
	ttl   time.Duration
	terms atomic.Int64
	began chan *leadership

	mu  sync.Mutex
	all []*leadership
}

// leadership is one call of lead.
type leadership struct {
	of    *candidate
	ctx   context.Context
	term  int64
	leave chan error // makes lead return
}

// candidate is an elector that runs.
type candidate struct {
	*Elector
	js    jetstream.JetStream
	stop  func() // ends Run and waits for it; twice is safe
	ended chan struct{}
}

func newHouse(t *testing.T, srv *server.Server, ttl time.Duration) *house {
	return &house{t: t, url: srv.ClientURL(), ttl: ttl, began: make(chan *leadership, 100)}
}

// join starts a candidate.
func (h *house) join(name string, change ...func(*Elector)) *candidate {
	h.t.Helper()
	js := dial(h.t, h.url)
	e := New(js, Options{
		Key: key, Holder: name, TTL: h.ttl,
		Term: func(context.Context) (int64, error) { return h.terms.Add(1), nil },
	})
	for _, c := range change {
		c(e)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	c := &candidate{Elector: e, js: js, ended: make(chan struct{})}
	c.stop = func() {
		cancel()
		<-c.ended
	}
	h.t.Cleanup(c.stop)
	go func() {
		defer close(c.ended)
		if err := e.Run(ctx, func(ctx context.Context, term int64) error { return h.lead(c, ctx, term) }); err != nil {
			h.t.Errorf("Run of %s: %v", name, err)
		}
	}()
	return c
}

func (h *house) lead(c *candidate, ctx context.Context, term int64) error {
	l := &leadership{of: c, ctx: ctx, term: term, leave: make(chan error, 1)}
	h.mu.Lock()
	for _, earlier := range h.all {
		if Guard(earlier.ctx) == nil {
			h.t.Errorf("term %d of %s begins while term %d of %s may still act", term, c.opts.Holder, earlier.term, earlier.of.opts.Holder)
		}
		if earlier.term >= term {
			h.t.Errorf("term %d came after term %d", term, earlier.term)
		}
	}
	h.all = append(h.all, l)
	h.mu.Unlock()
	h.began <- l
	select {
	case err := <-l.leave:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next waits for the next leadership.
func (h *house) next() *leadership {
	h.t.Helper()
	return <-h.began
}

// nextOf waits for the next leadership of a candidate.
func (h *house) nextOf(c *candidate) *leadership {
	h.t.Helper()
	for {
		if l := h.next(); l.of == c {
			return l
		}
	}
}

// until waits for a condition that some other goroutine brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func (h *house) bucket() jetstream.KeyValue {
	h.t.Helper()
	kv, err := dial(h.t, h.url).KeyValue(h.t.Context(), DefaultBucket)
	if err != nil {
		h.t.Fatal(err)
	}
	return kv
}

// free reports whether nobody holds the bucket's key. A listing of the keys would
// wait for ever for one that lapses in the middle of it.
func free(t *testing.T, kv jetstream.KeyValue) bool {
	t.Helper()
	_, err := kv.Get(t.Context(), key)
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Fatal(err)
	}
	return err != nil
}

func TestTheLeaseGoesFromOneToTheNext(t *testing.T) {
	t.Parallel()
	h := newHouse(t, serve(t, t.TempDir(), -1), 3*time.Second)
	for _, name := range []string{"a", "b", "c"} {
		h.join(name)
	}
	for range 3 {
		l := h.next()
		if s := l.of.State(); s != (State{Leading: true, Term: l.term, Since: s.Since, Leader: l.of.opts.Holder}) && Guard(l.ctx) == nil {
			t.Errorf("the leader's state is %+v", s)
		}
		l.of.stop()
		l.of.stop()
		if err := Guard(l.ctx); err == nil {
			t.Error("the guard lets a stopped leader act")
		}
		if s := l.of.State(); s.Leading || s.Term != 0 {
			t.Errorf("the state of a stopped leader is %+v", s)
		}
	}
	bucket := h.bucket()
	until(t, "nobody holds the lease", func() bool { return free(t, bucket) })
}

func TestFollowersSeeTheLeader(t *testing.T) {
	t.Parallel()
	h := newHouse(t, serve(t, t.TempDir(), -1), 3*time.Second)
	h.join("a")
	h.next()
	b := h.join("b")
	until(t, "the follower names the leader and is healthy", func() bool {
		return b.State().Leader == "a" && b.Check(t.Context()) == nil
	})
}

func TestALeaderThatIsCutOffStopsAndIsSucceeded(t *testing.T) {
	t.Parallel()
	h := newHouse(t, serve(t, t.TempDir(), -1), time.Second)
	for _, name := range []string{"a", "b", "c"} {
		h.join(name)
	}
	first := h.next()
	first.of.js.Conn().Close()
	for h.next().of == first.of { // it may have led twice before its end
	}
	<-first.ctx.Done()
	if err := context.Cause(first.ctx); !errors.Is(err, ErrLost) {
		t.Errorf("the leadership ended with %v, want ErrLost", err)
	}
	until(t, "health tells of the connection", func() bool { return first.of.Check(t.Context()) != nil })
	if got := first.of.State(); got.Problem != noJetStream || got.Leading {
		t.Errorf("state %+v, want the problem %q", got, noJetStream)
	}
	first.of.stop()
}

func TestAnElectionSurvivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	srv := serve(t, dir, -1)
	port := srv.Addr().(*net.TCPAddr).Port
	h := newHouse(t, srv, time.Second)
	candidates := []*candidate{h.join("a"), h.join("b")}
	for range 2 {
		l := h.next()
		shutdown(srv)
		<-l.ctx.Done()
		for _, c := range candidates {
			until(t, "the candidates tell of the loss", func() bool { return c.Check(t.Context()) != nil })
		}
		srv = serve(t, dir, port)
	}
	last := h.next()
	until(t, "all is well again", func() bool {
		return candidates[0].Check(t.Context()) == nil && candidates[1].Check(t.Context()) == nil || Guard(last.ctx) != nil
	})
}

func TestNothingIsLeftAfterManyRounds(t *testing.T) {
	t.Parallel()
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	h := newHouse(t, serve(t, t.TempDir(), -1), MinTTL)
	for i := range rounds {
		c := h.join(strconv.Itoa(i))
		l := h.nextOf(c)
		if i%2 == 0 {
			l.of.js.Conn().Close() // as a process that is killed: nothing is given back
		}
		c.stop()
	}
	bucket := h.bucket()
	until(t, "the last keys lapse", func() bool { return free(t, bucket) })
	until(t, "the markers lapse", func() bool {
		status, err := bucket.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if status.Values() > 1 {
			t.Fatalf("%d messages are left of one key", status.Values())
		}
		return status.Values() == 0
	})
}

func TestWhoGivesUpComesBack(t *testing.T) {
	t.Parallel()
	h := newHouse(t, serve(t, t.TempDir(), -1), 5*time.Second)
	h.join("a")
	for range 2 {
		h.next().leave <- errors.New("the store is silent")
	}
	h.next()
}

func TestWithoutATermNobodyLeads(t *testing.T) {
	t.Parallel()
	h := newHouse(t, serve(t, t.TempDir(), -1), 2*time.Second)
	full := fault.New(fault.StorageUnavailable, "the disk is full")
	var terms, ready atomic.Bool
	ready.Store(true)
	a := h.join("a", func(e *Elector) {
		e.opts.Term = func(context.Context) (int64, error) {
			if !terms.Load() {
				return 0, full
			}
			return h.terms.Add(1), nil
		}
		e.opts.Ready = func(context.Context) error {
			if !ready.Load() {
				return full
			}
			return nil
		}
	})
	until(t, "the term fails", func() bool { return a.State().Problem == noTerm+": the disk is full" })
	ready.Store(false)
	until(t, "it stays out of the election", func() bool { return a.State().Problem == notReady+": the disk is full" })
	b := h.join("b")
	if l := h.next(); l.of != b {
		t.Error("who cannot lead leads")
	}
	terms.Store(true)
	ready.Store(true)
	b.stop()
	h.nextOf(a)
	until(t, "the leader is healthy", func() bool { return a.Check(t.Context()) == nil })
}

func TestALeaderWhoseKeyIsTakenStops(t *testing.T) {
	t.Parallel()
	takes := map[string]func(kv jetstream.KeyValue) error{
		"deleted": func(kv jetstream.KeyValue) error { return kv.Delete(context.Background(), key) },
		"written": func(kv jetstream.KeyValue) error {
			_, err := kv.PutString(context.Background(), key, "graffiti")
			return err
		},
	}
	for name, take := range takes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, serve(t, t.TempDir(), -1), time.Second)
			h.join("a")
			l := h.next()
			if err := take(h.bucket()); err != nil {
				t.Fatal(err)
			}
			<-l.ctx.Done()
			h.next() // once what was written has lapsed
		})
	}
}

func TestTheBucket(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]time.Duration{"missing": -1, "longer": time.Hour, "shorter": MinTTL, "without a length": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, serve(t, t.TempDir(), -1), 10*time.Second)
			if before >= 0 {
				_, err := dial(t, h.url).CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: DefaultBucket, TTL: before})
				if err != nil {
					t.Fatal(err)
				}
			}
			h.join("a")
			h.next()
			status, err := h.bucket().Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			config := status.(*jetstream.KeyValueBucketStatus).StreamInfo().Config
			if config.MaxAge != h.ttl || config.Storage != jetstream.FileStorage || config.MaxMsgsPerSubject != 1 || config.AllowMsgTTL {
				t.Errorf("the bucket is %+v", config)
			}
		})
	}
}

func TestWithoutJetStreamThereIsNoLeader(t *testing.T) {
	t.Parallel()
	h := newHouse(t, serve(t, "", -1), time.Second)
	c := h.join("a")
	until(t, "health says why", func() bool { return c.State().Problem == noJS })
	if err := c.Check(t.Context()); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("Check = %v", err)
	}
	c.stop()
}

func TestRunEndsWhateverTheServerDoes(t *testing.T) {
	t.Parallel()
	srv := serve(t, t.TempDir(), -1)
	h := newHouse(t, srv, time.Minute) // longer than the test: nothing may wait for it
	leader := h.join("a")
	h.next()
	follower := h.join("b")
	until(t, "the other follows", func() bool { return follower.State().Leader == "a" })
	shutdown(srv)
	leader.stop()
	follower.stop()
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	term := func(context.Context) (int64, error) { return 1, nil }
	for name, opts := range map[string]Options{
		"no key":    {Term: term},
		"no term":   {Key: key},
		"too short": {Key: key, Term: term, TTL: MinTTL - 1},
	} {
		if err := New(nil, opts).Run(t.Context(), nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestGuardIsClosedWithoutALease(t *testing.T) {
	t.Parallel()
	if err := Guard(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("Guard of a context without a lease = %v, want ErrLost", err)
	}
	h := newHold(timingOf(time.Hour), time.Now(), 1)
	lead, cancel := context.WithCancelCause(context.WithValue(t.Context(), holdKey{}, h))
	derived, stop := context.WithTimeout(lead, time.Hour)
	defer stop()
	if err := Guard(derived); err != nil {
		t.Errorf("Guard of a context made from lead's = %v", err)
	}
	h.end()
	if err := Guard(derived); !errors.Is(err, ErrLost) {
		t.Errorf("Guard of a lost lease = %v, want ErrLost", err)
	}
	why := fmt.Errorf("why: %w", ErrLost)
	cancel(why)
	if err := Guard(derived); !errors.Is(err, why) {
		t.Errorf("Guard of an ended context = %v, want its cause", err)
	}
}

func TestOnlyGivingTheKeyBackIsToldOf(t *testing.T) {
	t.Parallel()
	srv := serve(t, t.TempDir(), -1)
	venue := natsServer{js: dial(t, srv.ClientURL()), bucket: DefaultBucket, key: key, ttl: time.Minute}
	kv, err := venue.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{}, 10)
	stop := venue.listen(func() { told <- struct{}{} })
	defer stop()
	revision, err := kv.Create(t.Context(), key, []byte("{}"))
	for range 2 {
		if err == nil {
			revision, err = kv.Update(t.Context(), key, []byte("{}"), revision)
		}
	}
	if err == nil {
		err = kv.PurgeAt(t.Context(), key, revision-1)
	}
	if err == nil {
		t.Fatal("a purge of an older revision was accepted")
	}
	<-told // of the attempt: a notice is a hint to look, no more
	if err := kv.PurgeAt(t.Context(), key, revision); err != nil {
		t.Fatal(err)
	}
	<-told
	if len(told) != 0 {
		t.Error("renewals are told of")
	}
}
