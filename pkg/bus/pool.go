package bus

import (
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/rs/zerolog"
)

// pool runs tasks in a bounded number of goroutines, started when they are
// needed. Tasks wait in order; whoever submits them bounds how many.
type pool struct {
	size int
	log  zerolog.Logger

	mu      sync.Mutex
	waiting []func()
	running int
	workers sync.WaitGroup
}

func newPool(size int, log zerolog.Logger) *pool { return &pool{size: size, log: log} }

// submit queues a task and never blocks.
func (p *pool) submit(task func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, task)
	if p.running < p.size {
		p.running++
		p.workers.Go(p.work)
	}
}

// work runs tasks until none waits.
func (p *pool) work() {
	for {
		p.mu.Lock()
		if len(p.waiting) == 0 {
			p.waiting = nil
			p.running--
			p.mu.Unlock()
			return
		}
		task := p.waiting[0]
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		p.mu.Unlock()
		p.run(task)
	}
}

// run keeps a task's panic from ending the process.
func (p *pool) run(task func()) {
	defer func() {
		if v := recover(); v != nil {
			p.log.Error().Str("panic", fmt.Sprint(v)).Bytes("stack", debug.Stack()).Msg("a task panicked")
		}
	}()
	task()
}

// close waits until every task has run. Nothing may be submitted after it.
func (p *pool) close() { p.workers.Wait() }
