package retention

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// childVariable makes this program a retention process of its own, for tests
// that kill and freeze some.
const childVariable = "FLEXIQ_RETENTION_TEST_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := beChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(servers{m})
}

// servers runs the tests and stops the databases that they shared.
type servers struct{ *testing.M }

func (s servers) Run() int {
	defer testkit.StopRedis()
	defer testkit.StopPostgres()
	return s.M.Run()
}

// child is what a child process is told.
type child struct {
	Database database
	NATS     string // URL
	Name     string

	Tick, Lease    time.Duration
	Call, Patience time.Duration // with the store
}

// said is a line that a child writes.
type said struct {
	Leads   int64 // it began to lead under this term; 0: it is of a delete
	Term    int64 // of the delete
	Rows    int64
	Refused bool // the term was too old
	Unknown bool // it is not known whether it happened
	Held    bool // it waits right before a delete
}

// childRows is how many rows a child deletes at once.
const childRows = 10

// beChild sweeps while it leads. Lines on its input cut it off from the store
// ("off") and let it back ("on"), or hold it right before its next delete ("hold")
// and let it go ("go"); it ends with its input.
func beChild(text string) error {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s, err := c.Database.named(c.Name).open(ctx, nil, 0)
	if err != nil {
		return err
	}
	defer s.Close()
	conn, err := nats.Connect(c.NATS, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.RetryOnFailedConnect(true))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(os.Stdout)
	st := &cuttable{Store: s, held: make(chan struct{}), said: func(l said) { _ = lines.Encode(l) }}
	svc, err := New(Config{Maintenance: true, Tick: c.Tick, Lease: c.Lease},
		Deps{Store: st, JetStream: js, Holder: c.Name, Log: zerolog.Nop()})
	if err != nil {
		return err
	}
	svc.bounds = bounds{rows: childRows, batches: 20, page: 500, call: c.Call, patience: c.Patience}
	go func() {
		defer stop()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			switch in.Text() {
			case "off", "on":
				st.off.Store(in.Text() == "off")
			case "hold":
				st.hold.Store(true)
			case "go":
				st.hold.Store(false)
				st.held <- struct{}{}
			}
		}
	}()
	return svc.Run(ctx)
}

// cuttable is a store that a child can be cut off from, and that tells of each
// term and each delete.
type cuttable struct {
	store.Store
	off  atomic.Bool
	hold atomic.Bool
	held chan struct{} // lets it go on
	said func(said)
}

var errCut = fault.New(fault.StorageUnavailable, "cut off")

func (s *cuttable) NewTerm(ctx context.Context, holder string) (int64, error) {
	if s.off.Load() {
		return 0, errCut
	}
	term, err := s.Store.NewTerm(ctx, holder)
	if err == nil {
		s.said(said{Leads: term})
	}
	return term, err
}

func (s *cuttable) Usage(ctx context.Context, names []string) ([]store.Usage, error) {
	if s.off.Load() {
		return nil, errCut
	}
	return s.Store.Usage(ctx, names)
}

func (s *cuttable) Namespaces(ctx context.Context, after string, limit int) (store.Page[string], error) {
	if s.off.Load() {
		return store.Page[string]{}, errCut
	}
	return s.Store.Namespaces(ctx, after, limit)
}

func (s *cuttable) Quotas(ctx context.Context, names []string) ([]store.Document, error) {
	if s.off.Load() {
		return nil, errCut
	}
	return s.Store.Quotas(ctx, names)
}

// Trim waits a moment before it deletes, so that a process is likely to be
// stopped between its last look at the lease and the delete.
func (s *cuttable) Trim(ctx context.Context, t store.Trim) (store.Trimmed, error) {
	time.Sleep(10 * time.Millisecond)
	if s.hold.Load() {
		s.said(said{Held: true})
		<-s.held
	}
	if s.off.Load() {
		return store.Trimmed{}, errCut
	}
	done, err := s.Store.Trim(ctx, t)
	if err != nil {
		s.said(said{Term: t.Term, Unknown: !errors.Is(err, store.ErrStale)})
		return store.Trimmed{}, err
	}
	s.said(said{Term: t.Term, Rows: done.Dead + done.Shed, Refused: done.Superseded})
	return done, nil
}
