package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynqPeer is asynq on a Redis server.
type asynqPeer struct {
	opt    asynq.RedisClientOpt
	client *asynq.Client
}

// asynqDB keeps its keys apart from ours.
const asynqDB = 1

// newAsynq has a connection for every caller, so that none waits for one.
func (e *env) newAsynq(r *redisServer, connections int) *asynqPeer {
	p := &asynqPeer{opt: asynq.RedisClientOpt{Addr: r.addr, DB: asynqDB, PoolSize: connections}}
	p.client = asynq.NewClient(p.opt)
	e.later(func() error { return p.client.Close() })
	return p
}

func (p *asynqPeer) enqueue(ctx context.Context) error {
	_, err := p.client.EnqueueContext(ctx, asynq.NewTask("noop", payload))
	return err
}

func (p *asynqPeer) fill(ctx context.Context, n int) error {
	return inParallel(ctx, 64, n, func(ctx context.Context, _ int) error { return p.enqueue(ctx) })
}

// empty forgets all jobs. The client is a new one, as the old one believes that
// the queue is still known.
func (p *asynqPeer) empty(ctx context.Context) error {
	c := redis.NewClient(&redis.Options{Addr: p.opt.Addr, DB: asynqDB})
	defer c.Close()
	old := p.client
	p.client = asynq.NewClient(p.opt)
	return errors.Join(c.FlushDB(ctx).Err(), old.Close())
}

// drain works off n jobs, until the server has forgotten them, as asynq does
// with completed ones unless told otherwise, and returns how many a second that was.
func (p *asynqPeer) drain(ctx context.Context, n, concurrency int) (float64, error) {
	s := asynq.NewServer(p.opt, asynq.Config{
		Concurrency: concurrency, LogLevel: asynq.FatalLevel, Logger: quiet{log.New(io.Discard, "", 0)},
		TaskCheckInterval: 10 * time.Millisecond,
	})
	var left atomic.Int64
	left.Store(int64(n))
	handled := make(chan struct{})
	start := time.Now()
	err := s.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if left.Add(-1) == 0 {
			close(handled)
		}
		return nil
	}))
	if err != nil {
		return 0, err
	}
	defer s.Shutdown()
	select {
	case <-handled:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	inspector := asynq.NewInspector(p.opt)
	defer inspector.Close()
	for {
		info, err := inspector.GetQueueInfo("default")
		if err != nil {
			return 0, err
		}
		if info.Size == 0 {
			break
		}
		if info.Pending > 0 {
			return 0, fmt.Errorf("%d jobs are left", info.Pending)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

// quiet keeps asynq's log to itself.
type quiet struct{ l *log.Logger }

func (q quiet) Debug(args ...any) { q.l.Print(args...) }
func (q quiet) Info(args ...any)  { q.l.Print(args...) }
func (q quiet) Warn(args ...any)  { q.l.Print(args...) }
func (q quiet) Error(args ...any) { q.l.Print(args...) }
func (q quiet) Fatal(args ...any) { q.l.Print(args...) }
