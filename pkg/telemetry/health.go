package telemetry

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
)

const (
	// checkTimeout is the deadline of one check.
	checkTimeout = 2 * time.Second
	// reportAge is how long a report is given out again, so that probes from
	// everywhere cost the parts no more than one question a second.
	reportAge = time.Second
)

// Check is one named question to a part of the process.
type Check struct {
	// Name is shown to everybody, as is the message of a fault that Run
	// returns; another error is shown as an internal one.
	Name string
	// Critical tells that the process cannot do its work when the check
	// fails: it is unready then, else degraded.
	Critical bool
	// Run returns nil when all is well. It has two seconds.
	Run func(ctx context.Context) error
}

// Status of a process.
type Status string

// The statuses. Degraded is ready, with something to repair.
const (
	Ready    Status = "ready"
	Degraded Status = "degraded"
	Unready  Status = "unready"
)

// Report is the health of a process; its JSON is the body of /readyz.
type Report struct {
	Status Status   `json:"status"`
	Checks []Result `json:"checks"`
}

// Result is what one check came to.
type Result struct {
	Name     string `json:"name"`
	Status   string `json:"status"` // "ok" or "failed"
	Error    string `json:"error,omitempty"`
	Critical bool   `json:"critical"`
}

// The statuses of a [Result].
const (
	resultOK     = "ok"
	resultFailed = "failed"
)

// Health asks the parts of a process how they are. Make one with [NewHealth];
// it is safe for concurrent use and has no goroutine while nobody asks.
type Health struct {
	log zerolog.Logger

	mu      sync.Mutex
	checks  []*check
	stopped bool
	last    []Result
	at      time.Time     // of last
	round   chan struct{} // closed when the round that is under way ends; nil: none
}

// check is a [Check] and what its last run left.
type check struct {
	Check
	running atomic.Bool // Run has not come back
	failing bool        // of the rounds, which follow one another
}

// NewHealth makes a health. Without any check it is ready. The log is told
// when a check begins to fail and when it passes again.
func NewHealth(log zerolog.Logger, checks ...Check) *Health {
	h := &Health{log: log}
	for _, c := range checks {
		h.Add(c)
	}
	return h
}

// Add adds a check. The next report has it.
func (h *Health) Add(c Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, &check{Check: c})
	h.at = time.Time{}
}

// Stop makes the process unready for good, at once: it is shutting down, and
// whoever sends it work should look elsewhere.
func (h *Health) Stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
}

// Report asks all checks at once and tells what they say. A report less than a
// second old is given again, and callers that come together share one. It
// takes two seconds at most, also when a check ignores its deadline.
func (h *Health) Report() Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.at.IsZero() || time.Since(h.at) >= reportAge {
		if h.round == nil {
			h.round = make(chan struct{})
			go h.ask(h.checks, h.round)
		}
		round := h.round
		h.mu.Unlock()
		<-round
		h.mu.Lock()
	}
	results := append([]Result{}, h.last...)
	if h.stopped {
		results = append(results, Result{Name: "process", Status: resultFailed, Error: "the process is shutting down", Critical: true})
	}
	return Report{Status: overall(results), Checks: results}
}

// overall is what the results make together.
func overall(results []Result) Status {
	status := Ready
	for _, r := range results {
		switch {
		case r.Status == resultOK:
		case r.Critical:
			return Unready
		default:
			status = Degraded
		}
	}
	return status
}

// ask runs one round of checks.
func (h *Health) ask(checks []*check, round chan struct{}) {
	results := make([]Result, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { results[i] = c.result(h.log) })
	}
	wg.Wait()

	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.at, h.round = results, time.Now(), nil
	if len(checks) != len(h.checks) {
		h.at = time.Time{} // one was added meanwhile
	}
	close(round)
}

// result runs a check and logs when its answer changed.
func (c *check) result(log zerolog.Logger) Result {
	err := c.run()
	r := Result{Name: c.Name, Status: resultOK, Critical: c.Critical}
	if err != nil {
		r.Status, r.Error = resultFailed, fault.Of(err).Message
	}
	switch {
	case err != nil && !c.failing:
		log.Warn().Err(err).Str("check", c.Name).Bool("critical", c.Critical).Msg("health check fails")
	case err == nil && c.failing:
		log.Info().Str("check", c.Name).Msg("health check passes again")
	}
	c.failing = err != nil
	return r
}

// run asks the check and waits for its answer no longer than its deadline. One
// that has not come back is not asked again, so that a part that hangs costs
// one goroutine however often somebody asks for the health.
func (c *check) run() error {
	if !c.running.CompareAndSwap(false, true) {
		return fault.New(fault.DeadlineExceeded, "no answer since an earlier check")
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	answer := make(chan error, 1)
	go func() {
		defer cancel()
		err := c.guarded(ctx)
		c.running.Store(false)
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-answer: // its own end and its deadline's came together
		return err
	default:
		return fault.New(fault.DeadlineExceeded, "no answer within %s", checkTimeout)
	}
}

// guarded turns a panic of the check into its failure.
func (c *check) guarded(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fault.Wrap(fmt.Errorf("panic: %v", r), fault.Internal, "internal error")
		}
	}()
	return c.Run(ctx)
}
