package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"
)

// Of every event that blocks for so long a profile has one, on average; finer
// sampling would show in the figures that it explains.
const (
	blockRate     = 100 * time.Microsecond
	mutexFraction = 20
)

// openProfiles serves profiles of the process for benchmarks, on the loopback,
// when they are asked for.
func (d *daemon) openProfiles(ctx context.Context) error {
	if d.opts.PprofListen == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(d.opts.PprofListen)
	if err != nil || !loopback(host) {
		return &usageError{"--pprof-listen", fmt.Sprintf("must be HOST:PORT of the loopback, got %q", d.opts.PprofListen)}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.opts.PprofListen)
	if err != nil {
		return fmt.Errorf("cannot listen for profiles: %w", err)
	}
	runtime.SetBlockProfileRate(int(blockRate))
	runtime.SetMutexProfileFraction(mutexFraction)
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	d.run("profiles", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { _ = s.Close() }) // a profile that is read then is lost
		defer stop()
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("profiles: %w", err)
		}
		return nil
	})
	return nil
}
