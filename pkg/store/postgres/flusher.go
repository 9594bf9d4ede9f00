package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
)

// flusher makes commits durable that did not wait for the disk.
//
// A transaction that waits for the disk at its commit holds its locks
// meanwhile: one hot namespace then gets no more commits than the disk syncs.
// So group operations commit with synchronous_commit off, which lets their locks
// go at once, and are answered only after a commit of this type, which waits
// for the disk (and for synchronous standbys) as the server is set up to. The log is one
// sequence, so that commit makes all earlier ones durable, those of
// other processes too. Everybody who waits shares it.
//
// That conclusion needs one and the same run of the server from before the
// first commit until after the second: a server that crashed between them lost
// the first and would gladly do the second. A session does not outlive the
// server's crash. So a commit carries the mark of the flusher's session as it
// was before, and a flush in another session does not count for it. Without a
// session the mark is 0 and commits wait for the disk themselves.
type flusher struct {
	config  *pgx.ConnConfig
	timeout time.Duration
	log     zerolog.Logger
	wake    chan struct{}
	stop    context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex
	session uint64 // the present one, 0: none
	last    uint64 // the latest one
	waiting []chan error
}

const (
	firstPause = 50 * time.Millisecond // between attempts to connect
	mostPause  = 2 * time.Second
	// flush writes the smallest record that makes its transaction wait for the log.
	flush = `select pg_logical_emit_message(true, 'flexiq', '')`
	// flushAgain is the same with a parameter, for which pgx prepares it: so the
	// server parses and plans it once a session.
	flushAgain = `select pg_logical_emit_message(true, 'flexiq', $1::text)`
)

// startFlusher starts the goroutine of a flusher, which ends with close.
func startFlusher(config *pgx.ConnConfig, timeout time.Duration, log zerolog.Logger) *flusher {
	ctx, cancel := context.WithCancel(context.Background())
	f := &flusher{config: config, timeout: timeout, log: log, wake: make(chan struct{}, 1), stop: cancel, done: make(chan struct{})}
	go f.run(ctx)
	return f
}

// close ends the goroutine. Whoever still waits is told that the flush was lost.
func (f *flusher) close() {
	f.stop()
	<-f.done
}

// mark is what a transaction remembers before its commit, 0 when it must wait
// for the disk itself.
func (f *flusher) mark() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.session
}

// flush returns when every commit that was answered before the call and carries
// this mark is durable.
func (f *flusher) flush(ctx context.Context, mark uint64) error {
	f.mu.Lock()
	if f.session != mark {
		f.mu.Unlock()
		return errFlushLost
	}
	done := make(chan error, 1)
	f.waiting = append(f.waiting, done)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default: // it will look anyway
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *flusher) run(ctx context.Context) {
	defer close(f.done)
	pause := firstPause
	for ctx.Err() == nil {
		conn, err := f.connect(ctx)
		if err == nil {
			pause = firstPause
			err = f.serve(ctx, conn)
		}
		if ctx.Err() != nil {
			return
		}
		f.log.Warn().Err(err).Msg("no session to flush commits by; they wait for the disk themselves")
		select {
		case <-time.After(pause):
			pause = min(2*pause, mostPause)
		case <-ctx.Done():
		}
	}
}

func (f *flusher) connect(ctx context.Context) (*pgx.Conn, error) {
	own, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	return pgx.ConnectConfig(own, f.config)
}

// serve flushes in one session until it breaks or ctx ends.
func (f *flusher) serve(ctx context.Context, conn *pgx.Conn) error {
	f.mu.Lock()
	f.last++
	f.session = f.last
	f.mu.Unlock()
	defer func() {
		f.lose()
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		if err := conn.Close(own); err != nil {
			f.log.Debug().Err(err).Msg("flusher's session not closed in order")
		}
	}()
	for {
		select {
		case <-f.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := f.round(ctx, conn); err != nil {
			return err
		}
	}
}

// round flushes for everybody who waits at its start.
func (f *flusher) round(ctx context.Context, conn *pgx.Conn) error {
	f.mu.Lock()
	waiting := f.waiting
	f.waiting = nil
	f.mu.Unlock()
	if len(waiting) == 0 {
		return nil
	}
	own, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	_, err := conn.Exec(own, flushAgain, "")
	told := err
	if err != nil {
		f.lose() // before anybody is told, and tries again
		told = errFlushLost
	}
	for _, w := range waiting {
		w <- told
	}
	return err
}

// lose ends the session for everybody who waits or asks for a mark.
func (f *flusher) lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.session = 0
	for _, w := range f.waiting {
		w <- errFlushLost
	}
	f.waiting = nil
}
