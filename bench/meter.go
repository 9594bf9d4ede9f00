package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// meter tells what a round costs a job: processor time by process and, on
// PostgreSQL, what is written ahead and how many transactions are committed.
type meter struct {
	daemon *flexiqd // nil: a peer, which runs in this process
	db     database // nil: the database is part of a process

	own, ours, theirs time.Duration
	bytes, commits    int64
	profiling         sync.WaitGroup
	last              reading
}

// reading is what a round has cost, per job.
type reading struct {
	jobs                 int64
	own, daemon, db      time.Duration
	bytes, commits       float64
	onPostgres, daemoned bool
}

func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (m *meter) begin(ctx context.Context) {
	if p, ok := m.db.(*postgres); ok {
		m.bytes, m.commits, _ = p.written(ctx) // a reading for information
	}
	m.own = ownCPU()
	if m.daemon != nil {
		m.ours = cpuOf(m.daemon.pid())
	}
	if m.db != nil {
		m.theirs = cpuOf(m.db.pid())
	}
}

func (m *meter) end(ctx context.Context, jobs int64) {
	if jobs == 0 {
		return
	}
	per := func(d time.Duration) time.Duration { return d / time.Duration(jobs) }
	r := reading{jobs: jobs, own: per(ownCPU() - m.own)}
	if m.daemon != nil {
		r.daemoned, r.daemon = true, per(cpuOf(m.daemon.pid())-m.ours)
	}
	if m.db != nil {
		r.db = per(cpuOf(m.db.pid()) - m.theirs)
	}
	if p, ok := m.db.(*postgres); ok {
		bytes, commits, err := p.written(ctx)
		r.onPostgres = err == nil
		r.bytes, r.commits = float64(bytes-m.bytes)/float64(jobs), float64(commits-m.commits)/float64(jobs)
	}
	m.last = r
}

func (m *meter) note() string {
	r := m.last
	if r.jobs == 0 {
		return ""
	}
	parts := []string{fmt.Sprintf("client %.1f", micro(r.own))}
	if r.daemoned {
		parts = append(parts, fmt.Sprintf("flexiqd %.1f", micro(r.daemon)))
	}
	if m.db != nil {
		parts = append(parts, fmt.Sprintf("database %.1f", micro(r.db)))
	}
	s := "CPU µs a job: " + strings.Join(parts, ", ")
	if r.onPostgres {
		s += fmt.Sprintf("; WAL bytes a job: %.0f; commits a job: %.3f", r.bytes, r.commits)
	}
	return s
}

// profile collects profiles of the daemon while a round runs, if they are asked for.
func (m *meter) profile(ctx context.Context, name string, length time.Duration) {
	if m.daemon == nil || m.daemon.pprof == "" {
		return
	}
	dir := m.daemon.env.opts.profile
	get := func(kind, query string) {
		if err := fetch(ctx, "http://"+m.daemon.pprof+"/debug/pprof/"+kind+query, filepath.Join(dir, name+"."+kind+".pprof")); err != nil {
			m.daemon.env.log("  no %s profile: %v", kind, err)
		}
	}
	m.profiling.Go(func() {
		seconds := max(1, int(length.Seconds()))
		get("profile", fmt.Sprintf("?seconds=%d", seconds))
		for _, kind := range []string{"mutex", "block", "allocs"} {
			get(kind, "")
		}
	})
}

func fetch(ctx context.Context, url, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", res.Status, body)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, body, 0o644)
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
